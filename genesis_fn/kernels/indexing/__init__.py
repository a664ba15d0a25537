"""Rows gathered, scattered and joined."""
