"""Triton chooses between compiler and interpreter when it is imported: these tests interpret, but
where `tests/conftest.py` has chosen."""

from __future__ import annotations

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
