"""Text generation: drawing, penalties, batches, streams, sessions and beams.

A prefill and a loop on the device are each compiled once for a bucket of lengths (`programs`).
"""
