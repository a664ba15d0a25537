"""Gathering, scattering and concatenation of rows."""
