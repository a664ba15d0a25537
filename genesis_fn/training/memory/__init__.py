"""The memory of a run: what it takes, what there is, and settings that fit."""
