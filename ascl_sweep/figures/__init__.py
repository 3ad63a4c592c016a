"""Figures: what is plotted as values, and two ways to draw it; loads neither PyTorch nor Ray."""
