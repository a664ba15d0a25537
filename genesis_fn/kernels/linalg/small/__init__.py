"""Matrices of few rows, each in the registers of a warp or a program."""
