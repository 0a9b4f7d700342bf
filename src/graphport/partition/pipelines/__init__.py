"""Running the pieces of a program: stages as processes on torch.distributed."""
