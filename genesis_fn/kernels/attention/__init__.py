"""Attention: forward, backward and decoding."""
