"""What a backend gives: executables, and how a primitive is lowered."""
