"""The command line: `genesis-fn demo | info`."""
