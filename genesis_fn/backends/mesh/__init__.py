"""Runs programs on meshes: one device's part of them, by the backend of that device."""
