"""What can be computed: the first-order primitives, one definition each."""
