"""What a backend gives: arrays and executables, and how a primitive is lowered."""
