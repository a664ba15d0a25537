"""Tests of the library under the names of JAX, each in a process of its own."""
