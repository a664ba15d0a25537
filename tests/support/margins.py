"""How much of its tolerance each test uses: `GENESIS_TEST_MARGINS=file` appends a line per test.

A test that uses 0.9 here fails on a processor, or under a BLAS, that rounds another way. What mends
it is better conditioned numbers, or a bound taken from how far a change of one unit in the last
place moves the reference. `python -m tests.sweep` runs the suite under other roundings.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

_used: list[float] = []


def share(got: Any, want: Any, rtol: float, atol: float) -> float:
    """The largest part of `atol + rtol * |want|` that a finite difference takes; 0 without one."""
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype.kind not in "biufc" or want.dtype.kind not in "biufc":
        return 0.0
    wide = np.complex128 if "c" in got.dtype.kind + want.dtype.kind else np.float64
    with np.errstate(all="ignore"):
        difference = np.abs(got.astype(wide) - want.astype(wide))
        parts = difference / (atol + rtol * np.abs(want.astype(wide)))
    parts = parts[np.isfinite(parts) & (difference > 0)]
    return float(parts.max()) if parts.size else 0.0


def _recording(check: Callable, default_rtol: float, default_atol: float) -> Callable:
    @functools.wraps(check)
    def recorded(actual: Any, desired: Any, *args: Any, **kwargs: Any) -> Any:
        rtol = args[0] if args else kwargs.get("rtol", default_rtol)
        atol = args[1] if len(args) > 1 else kwargs.get("atol", default_atol)
        if np.ndim(rtol) == 0 and np.ndim(atol) == 0 and not (rtol == 0 and atol == 0):
            _used.append(share(actual, desired, rtol, atol))
        return check(actual, desired, *args, **kwargs)

    return recorded


def install() -> None:
    """Record the comparisons of NumPy's two functions."""
    np.testing.assert_allclose = _recording(np.testing.assert_allclose, 1e-7, 0.0)
    np.allclose = _recording(np.allclose, 1e-5, 1e-8)


def write(test: str) -> None:
    """Append the largest share of the test that ends now, and forget it."""
    if _used:
        with open(os.environ["GENESIS_TEST_MARGINS"], "a", encoding="utf-8") as f:
            f.write(f"{max(_used):.3f} {test}\n")
        _used.clear()
