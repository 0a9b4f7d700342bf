"""What depends on the version of another package: `torch.py`, its private names."""
