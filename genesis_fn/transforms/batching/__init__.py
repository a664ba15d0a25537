"""vmap, named axes, and checks in lanes that may not be active."""
