"""Hugging Face transformers: caches as inputs and outputs of programs."""
