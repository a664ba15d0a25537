"""Loops whose bodies work row by row, each of which becomes one kernel: start at `row_loops`."""
