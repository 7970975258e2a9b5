"""Saving and loading from a training loop: what each rank holds, and when it may be copied."""
