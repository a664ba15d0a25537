"""The settings of a run: their sections, and how they are read of files and options."""
