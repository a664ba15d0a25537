"""A program as steps over numbered buffers."""
