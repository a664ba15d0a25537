"""Random keys in programs: the programs on their words that are compiled, and the detection of
reuse."""
