"""The driver interface and its two implementations."""
