"""`pjit`, which is `jit`."""

from __future__ import annotations

from genesis_fn.transforms.jitting import jit as pjit
