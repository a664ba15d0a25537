"""Derivatives: grad, vjp, jvp, linearize, Jacobians, checkpoint.

In reading order: `linearize` (primals and tangents), `transpose` (reverse mode), `derivatives` and
`jacobians` (what users call), `checkpointing`.
"""
