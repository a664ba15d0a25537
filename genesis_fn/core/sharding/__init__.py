"""Meshes of devices, and how arrays are laid out over them."""
