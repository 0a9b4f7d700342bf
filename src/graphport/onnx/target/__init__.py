"""What files are written for: the opsets, operators and kernels of a runtime, and its sessions."""
