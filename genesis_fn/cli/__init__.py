"""The command line: `genesis-fn demo | chat | generate | info`."""
