"""`pjit`, which is `jit`."""

from __future__ import annotations
