"""The target runtime: the opsets and kernels that it has, and its sessions."""
