"""The trainer: adaptive soft contrastive learning in plain PyTorch. Knows nothing of sweeps."""
