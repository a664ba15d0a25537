"""What can be done to a function or a program, and the higher-order primitives that hold
programs."""
