"""Functions recorded as programs, and programs looked at."""
