"""Trainer for adaptive soft contrastive learning in plain PyTorch; independent of `ascl_sweep`."""
