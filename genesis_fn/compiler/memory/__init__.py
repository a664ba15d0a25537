"""Where values lie, and which are kept or made again."""
