"""How primitives are partitioned: rules for `partition`, by kind of primitive."""
