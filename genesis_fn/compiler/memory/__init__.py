"""Memory: offsets in the arena, in-place updates, sinking, rematerialisation."""
