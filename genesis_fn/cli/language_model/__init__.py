"""A language model in a folder: opened, continuing a prompt, and written by a training run."""
