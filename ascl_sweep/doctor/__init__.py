"""Checks of `ascl-sweep doctor`, for this machine or for every node of a Ray cluster."""
