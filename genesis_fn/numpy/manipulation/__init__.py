"""Elements moved, joined, sorted and told apart."""
