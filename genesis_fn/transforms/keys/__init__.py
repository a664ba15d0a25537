"""Random keys in programs: their words, and the reuse of one."""
