"""Derivatives against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from genesis_fn.core import dtypes, tree
from genesis_fn.core.array import from_numpy
from genesis_fn.core.convert import as_array
from genesis_fn.transforms.autodiff.derivatives import jvp, vjp
from genesis_fn.transforms.staging.api_util import name_of

# Relative and absolute tolerance by dtype, and the step of central differences.
_TOLERANCE = {
    dtypes.BF16: 0.1, dtypes.F16: 1e-2, dtypes.F32: 2e-3, dtypes.F64: 1e-5, dtypes.C64: 1e-3,
    dtypes.C128: 1e-5,
}  # fmt: skip
_STEP = 2.0**-11
_Tolerance: TypeAlias = float | Mapping[Any, float] | None


def _host(x: Any) -> Any:
    return tree.map(lambda v: np.asarray(as_array(v)), x)


def _random_like(x: Any, rng: np.random.Generator) -> Any:
    def one(v: Any) -> Any:
        v = as_array(v)
        if not dtypes.is_inexact(v.dtype):
            return from_numpy(np.zeros(v.shape, v.dtype), v.device)
        value = np.asarray(rng.normal(size=v.shape))
        if dtypes.is_complex(v.dtype):
            value = value + 1j * rng.normal(size=v.shape)
        return from_numpy(value.astype(v.dtype), v.device)

    return tree.map(one, x)


def _moved(args: Any, tangents: Any, step: float) -> Any:
    def one(x: Any, t: Any) -> Any:
        value = np.asarray(as_array(x))
        if not dtypes.is_inexact(value.dtype):
            return x
        wide = np.complex128 if dtypes.is_complex(value.dtype) else np.float64
        moved = value.astype(wide) + step * np.asarray(t).astype(wide)
        return from_numpy(moved.astype(value.dtype), as_array(x).device)

    return tree.map(one, args, tangents)


def _numerical_jvp(
    f: Callable[..., Any], args: tuple[Any, ...], tangents: tuple[Any, ...], step: float
) -> Any:
    above = _host(f(*_moved(args, tangents, step / 2)))
    below = _host(f(*_moved(args, tangents, -step / 2)))

    def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        wide = np.complex128 if dtypes.is_complex(a.dtype) else np.float64
        a, b = a.astype(wide), b.astype(wide)
        return np.subtract(a, b, out=np.zeros_like(a), where=a != b) / step  # inf - inf is 0

    return tree.map(difference, above, below)


def _bounds(x: Any, atol: _Tolerance, rtol: _Tolerance) -> tuple[float, float]:
    """What the widest of the tolerances of the values' dtypes allows, as arrays of the library."""
    kinds = [as_array(v).dtype for v in tree.leaves(x)]
    defaults = [_TOLERANCE.get(kind, 0.0) for kind in kinds]

    def bound(given: _Tolerance) -> float:
        if given is None:
            return max(defaults, default=0.0)
        if not isinstance(given, Mapping):
            return float(given)
        # NumPy's dtypes, among which is float0, which no array here has.
        own = {dtypes.dtype(k) if isinstance(k, str) else np.dtype(k): v for k, v in given.items()}
        return max([own.get(k, d) for k, d in zip(kinds, defaults)], default=0.0)

    return bound(atol), bound(rtol)


def _compare(got: Any, expected: Any, what: str, atol: float, rtol: float) -> None:
    for path, a in tree.leaves_with_path(_host(got)):
        b = dict(tree.leaves_with_path(_host(expected)))[path]
        wide = np.complex128 if np.iscomplexobj(a) or np.iscomplexobj(b) else np.float64
        np.testing.assert_allclose(
            a.astype(wide),
            b.astype(wide),
            atol=atol,
            rtol=rtol,
            err_msg=f"{what}{tree.keystr(path)}",
        )


def check_jvp(
    f: Callable[..., Any],
    f_jvp: Callable[..., Any],
    args: Sequence[Any],
    atol: _Tolerance = None,
    rtol: _Tolerance = None,
    eps: float | None = None,
    err_msg: str = "",
) -> None:
    """Raise AssertionError unless `f_jvp(primals, tangents)` agrees with differences of `f`."""
    args, rng = tuple(args), np.random.default_rng(0)
    tangents = _random_like(args, rng)
    out, t_out = f_jvp(args, tangents)
    atol, rtol = _bounds((args, out), atol, rtol)
    what = f"{err_msg or name_of(f)}: "
    _compare(out, f(*args), what + "value ", atol, rtol)
    _compare(t_out, _numerical_jvp(f, args, tangents, eps or _STEP), what + "jvp ", atol, rtol)


def check_vjp(
    f: Callable[..., Any],
    f_vjp: Callable[..., Any],
    args: Sequence[Any],
    atol: _Tolerance = None,
    rtol: _Tolerance = None,
    eps: float | None = None,
    err_msg: str = "",
) -> None:
    """Raise AssertionError unless `f_vjp(*args)`, a value and pullback, agrees with differences.

    Compares <cotangent, J tangent> computed both ways along a random direction.
    """
    args, rng = tuple(args), np.random.default_rng(1)
    tangents = _random_like(args, rng)
    out, pull = f_vjp(*args)
    cts = _random_like(out, rng)
    back = pull(cts)
    atol, rtol = _bounds((args, out), atol, rtol)
    what = f"{err_msg or name_of(f)}: "
    _compare(out, f(*args), what + "value ", atol, rtol)
    forward = _inner(cts, _numerical_jvp(f, args, tangents, eps or _STEP))
    np.testing.assert_allclose(
        _inner(back, tangents), forward, atol=atol, rtol=rtol, err_msg=what + "vjp"
    )


def _inner(a: Any, b: Any) -> float:
    """Re sum of conj-free products, the pairing under which a vjp is the transpose of a jvp."""
    total = 0.0
    for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        if dtypes.is_inexact(x.dtype) and dtypes.is_inexact(y.dtype):
            wide = np.complex128 if np.iscomplexobj(x) or np.iscomplexobj(y) else np.float64
            total += np.sum(x.astype(wide) * y.astype(wide)).real
    return float(total)


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int,
    modes: Sequence[str] = ("fwd", "rev"),
    atol: _Tolerance = None,
    rtol: _Tolerance = None,
    eps: float | None = None,
) -> None:
    """Raise AssertionError unless the derivatives of `f` up to `order` agree with differences.

    `modes` are those to take each derivative in: "fwd", "rev", or both in every mixture. `atol` and
    `rtol` are numbers, or tolerances by dtype, `{"float32": 1e-3}`; each dtype has a default.
    """
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    unknown = set(modes) - {"fwd", "rev"}
    if unknown:
        raise ValueError(f'check_grads: modes are "fwd" and "rev", got {sorted(unknown)}')
    _check_order(f, tuple(args), order, modes, atol, rtol, eps, name_of(f))


def _check_order(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    order: int,
    modes: tuple[Any, ...],
    atol: Any,
    rtol: Any,
    eps: Any,
    what: str,
) -> None:
    if "fwd" in modes:
        check_jvp(f, lambda p, t: jvp(f, p, t), args, atol, rtol, eps, f"{what}, fwd")
        if order > 1:
            tangents = _random_like(args, np.random.default_rng(order))
            _check_order(
                lambda *xs: jvp(f, xs, tangents),
                args,
                order - 1,
                modes,
                atol,
                rtol,
                eps,
                f"{what}, fwd",
            )
    if "rev" in modes:
        check_vjp(f, lambda *xs: vjp(f, *xs), args, atol, rtol, eps, f"{what}, rev")
        if order > 1:
            cts = _random_like(f(*args), np.random.default_rng(order))
            _check_order(
                lambda *xs: vjp(f, *xs)[1](cts),
                args,
                order - 1,
                modes,
                atol,
                rtol,
                eps,
                f"{what}, rev",
            )
