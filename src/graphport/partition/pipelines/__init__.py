"""Pipelines: runs a program in stages, each in a process of its own."""
