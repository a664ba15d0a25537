"""Tests of `genesis_fn.experimental`."""
