"""One checker for every primitive: values, derivatives, batching and staging against a reference.

`check(f, reference, *inputs)` takes a function of this library's arrays, the same function of JAX
arrays, and NumPy inputs. Inputs are positional and flat; a function returns one array or a list.
JAX must be in its 64-bit mode: in this folder a fixture sees to that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

from genesis_fn.core import dtypes
from genesis_fn.core.array import ArrayImpl, from_numpy
from genesis_fn.core.device import default_device
from genesis_fn.core.primitive import LinearOperand, typeof
from genesis_fn.primitives.factories import instantiate
from genesis_fn.transforms.autodiff.linearize import jvp_flat, linearize_flat
from genesis_fn.transforms.autodiff.transpose import transpose_flat
from genesis_fn.transforms.batching.batch import vmap_flat
from genesis_fn.transforms.staging.stage_trace import evaluate, stage

jax.config.update("jax_platforms", "cpu")

# Relative and absolute tolerance by dtype: a few units in the last place of sums of ~100 terms.
TOLERANCE = {
    dtypes.F8E4: 0.13, dtypes.F8E5: 0.26, dtypes.BF16: 2e-2, dtypes.F16: 3e-3,
    dtypes.F32: 2e-5, dtypes.F64: 1e-11, dtypes.C64: 2e-5, dtypes.C128: 1e-11,
}  # fmt: skip


# ---- arrays ----


def to_array(x: np.ndarray) -> ArrayImpl:
    """An array of the default device with the values of `x`."""
    return from_numpy(np.asarray(x))


def to_numpy(x: Any) -> np.ndarray:
    """The values of an array, or of a JAX array."""
    return x.device.backend.to_numpy(x) if type(x) is ArrayImpl else np.asarray(x)


def address(x: ArrayImpl) -> int:
    """Where the array's memory starts."""
    return x.data.address if hasattr(x.data, "address") else x.data.data_ptr()


def as_list(x: Any) -> list:
    """The outputs of a function that returns one array or several."""
    return list(x) if isinstance(x, (list, tuple)) else [x]


def listed(f: Callable) -> Callable[..., list]:
    """`f`, returning a list."""
    return lambda *xs: as_list(f(*xs))


def random(shape: Sequence[int], dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    """Values of any dtype: normal, integers in [0, 10), or coin flips."""
    rng, kind = np.random.default_rng(seed + 17 * len(shape)), np.dtype(dtype)
    if kind == np.bool_:
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    if dtypes.is_integer(kind):
        return np.asarray(rng.integers(0, 10, shape)).astype(kind)
    x = np.asarray(rng.normal(size=shape))
    if dtypes.is_complex(kind):
        return (x + 1j * rng.normal(size=shape)).astype(kind)
    return x.astype(kind)


def is_inexact(x: Any) -> bool:
    """Whether `x` carries derivatives."""
    return dtypes.is_inexact(np.dtype(x.dtype))


# ---- comparison ----


def assert_same(
    actual: Any, expected: Any, what: str = "", tolerance: float | None = None, exact: bool = False
) -> None:
    """Fail unless shape, dtype and values agree; floats within `tolerance` or that of the dtype."""
    a, e = to_numpy(actual), to_numpy(expected)
    assert a.shape == e.shape, f"{what}: shape {a.shape}, expected {e.shape}"
    assert a.dtype == e.dtype, f"{what}: dtype {a.dtype}, expected {e.dtype}"
    if type(actual) is ArrayImpl:
        assert typeof(actual).shape == a.shape, f"{what}: aval {typeof(actual)}, stored {a.shape}"
    if not is_inexact(a) or exact:
        np.testing.assert_array_equal(widen(a), widen(e), err_msg=what)
        return
    t = TOLERANCE[a.dtype] if tolerance is None else tolerance
    np.testing.assert_allclose(widen(a), widen(e), rtol=t, atol=t, err_msg=what)


def widen(x: np.ndarray) -> np.ndarray:
    """`x` in a dtype that NumPy's own comparisons know."""
    small = x.dtype in (dtypes.F8E4, dtypes.F8E5, ml_dtypes.bfloat16)
    return x.astype(np.float32) if small else x


def assert_all_same(
    actual: Sequence[Any], expected: Sequence[Any], what: str, tolerance: float | None = None
) -> None:
    """`assert_same` for two lists."""
    assert len(actual) == len(expected), f"{what}: {len(actual)} outputs, expected {len(expected)}"
    for i, (a, e) in enumerate(zip(actual, expected)):
        assert_same(a, e, f"{what}, output {i}", tolerance)


# ---- derivatives of flat functions ----


def vjp(f: Callable, xs: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
    """The cotangents of every inexact input of `f` at `xs`, zeros included."""
    nonzero = [is_inexact(typeof(x)) for x in xs]
    outs, has_tangent, program, residuals = linearize_flat(listed(f), xs, nonzero)
    live = [ct for ct, h in zip(cts, has_tangent, strict=True) if h]
    seeds = [LinearOperand(a) for a in program.in_avals[len(residuals) :]]
    back = transpose_flat(program, [*residuals, *seeds], live)[len(residuals) :]
    return [instantiate(ct, seed.aval) for ct, seed in zip(back, seeds, strict=True)]


def jvp(f: Callable, xs: Sequence[Any], ts: Sequence[Any]) -> list[Any]:
    """The tangents of the inexact outputs of `f`; `ts` has one tangent per inexact input."""
    it = iter(ts)
    tangents = [next(it) if is_inexact(typeof(x)) else None for x in xs]
    outs, out_tangents = jvp_flat(listed(f), xs, tangents)
    return [instantiate(t, typeof(o)) for o, t in zip(outs, out_tangents) if is_inexact(typeof(o))]


def _on_inexact(f: Callable, xs: Sequence[np.ndarray]) -> tuple[Callable, list[np.ndarray]]:
    """(a JAX function of the inexact inputs that returns the inexact outputs, those inputs)."""

    def g(*some: Any) -> list:
        it = iter(some)
        full = [next(it) if is_inexact(x) else jax.numpy.asarray(x) for x in xs]
        return [o for o in as_list(f(*full)) if is_inexact(o)]

    return g, [x for x in xs if is_inexact(x)]


def jax_jvp(f: Callable, xs: Sequence[Any], ts: Sequence[Any]) -> list[Any]:
    """JAX's output tangents."""
    g, some = _on_inexact(f, xs)
    return jax.jvp(g, some, list(ts))[1]


def jax_vjp(f: Callable, xs: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
    """JAX's input cotangents."""
    g, some = _on_inexact(f, xs)
    return list(jax.vjp(g, *some)[1]([c for c in cts if is_inexact(c)]))


# ---- the checks ----


def check(
    f: Callable,
    reference: Callable,
    *inputs: np.ndarray,
    order: int = 2,
    batch: bool = True,
    examples: Sequence[Sequence[np.ndarray]] | None = None,
    tolerance: float | None = None,
) -> None:
    """Everything at once: values, staging, derivatives to `order`, and vmap.

    `examples`: further inputs to stack into batches (default: the inputs, elements moved round).
    `order=0` for what has no derivative; a primitive whose JAX counterpart lacks one may be checked
    with `check_numeric` instead.
    """
    check_value(f, reference, *inputs, tolerance=tolerance)
    check_staged(f, *inputs, tolerance=tolerance)
    if order and any(map(is_inexact, inputs)):
        check_derivatives(f, reference, *inputs, order=order, tolerance=tolerance)
    if batch:
        check_batched(f, *inputs, examples=examples, tolerance=tolerance)
        if order and any(map(is_inexact, inputs)):
            check_batched_vjp(f, *inputs, examples=examples, tolerance=tolerance)


def check_value(
    f: Callable, reference: Callable, *inputs: np.ndarray, tolerance: float | None = None
) -> None:
    """Eager values against the reference."""
    outs = as_list(f(*map(to_array, inputs)))
    expected = as_list(reference(*map(jax.numpy.asarray, inputs)))
    assert_all_same(outs, expected, "value", tolerance)


def check_staged(f: Callable, *inputs: np.ndarray, tolerance: float | None = None) -> None:
    """The recorded program, evaluated and compiled, against the eager values."""
    xs = list(map(to_array, inputs))
    eager = as_list(f(*xs))
    program, captured = stage(listed(f), [typeof(x) for x in xs])
    assert_all_same(evaluate(program, *captured, *xs), eager, "staged", tolerance)
    place = default_device()
    compiled = place.backend.compile(program, place)(*captured, *xs)
    assert_all_same(compiled, eager, "compiled", tolerance)
    assert_all_same([to_numpy(x) for x in xs], list(inputs), "inputs after the run", 0.0)


def check_derivatives(
    f: Callable,
    reference: Callable,
    *inputs: np.ndarray,
    order: int = 2,
    tolerance: float | None = None,
) -> None:
    """jvp and vjp against JAX's. Order 2 differentiates the vjp, in both modes, with respect to the
    inputs and to the cotangents (so that linear operations have a second order too)."""
    outs = [to_numpy(o) for o in as_list(f(*map(to_array, inputs)))]
    ts = [random(x.shape, x.dtype, seed=5 + i) for i, x in enumerate(inputs) if is_inexact(x)]
    cts = [random(o.shape, o.dtype, seed=50 + i) for i, o in enumerate(outs)]
    xs = list(map(to_array, inputs))
    actual = jvp(f, xs, list(map(to_array, ts)))
    assert_all_same(actual, jax_jvp(reference, inputs, ts), "jvp", tolerance)
    actual = vjp(f, xs, list(map(to_array, cts)))
    assert_all_same(actual, jax_vjp(reference, inputs, cts), "vjp", tolerance)
    if order > 1 and any(map(is_inexact, outs)):
        n = len(inputs)
        back = lambda *args: vjp(f, args[:n], args[n:])
        jax_back = lambda *args: jax_vjp(reference, args[:n], args[n:])
        args = [*inputs, *cts]
        more = [random(x.shape, x.dtype, seed=500 + i) for i, x in enumerate(args) if is_inexact(x)]
        actual = jvp(back, list(map(to_array, args)), list(map(to_array, more)))
        assert_all_same(actual, jax_jvp(jax_back, args, more), "jvp of vjp", tolerance)
        actual = vjp(back, list(map(to_array, args)), list(map(to_array, ts)))
        assert_all_same(actual, jax_vjp(jax_back, args, ts), "vjp of vjp", tolerance)


def rolled(inputs: Sequence[np.ndarray], count: int = 3) -> list[list[np.ndarray]]:
    """`count` variants of the inputs: elements moved round; lone floats scaled."""

    def variant(x: np.ndarray, i: int) -> np.ndarray:
        if x.ndim:
            return np.roll(x.reshape(-1), i).reshape(x.shape)
        return (x * (1 + i / 4)).astype(x.dtype) if is_inexact(x) else x

    return [[variant(np.asarray(x), i + k) for k, x in enumerate(inputs)] for i in range(count)]


def placements(inputs: Sequence[np.ndarray]) -> list[tuple[int | None, ...]]:
    """Which batch dimensions to try: each input alone at every dimension, pairs, all, and mixed."""
    n = len(inputs)
    found = []
    for i, x in enumerate(inputs):
        for d in range(x.ndim + 1):
            found.append(tuple([d if k == i else None for k in range(n)]))
    for i, k in itertools.combinations(range(n), 2) if n > 2 else ():
        found.append(tuple([0 if m in (i, k) else None for m in range(n)]))
    found.append((0,) * n)
    found.append(tuple([x.ndim for x in inputs]))
    found.append(tuple([min(i % 2, x.ndim) for i, x in enumerate(inputs)]))
    return list(dict.fromkeys(found))


def check_batched(
    f: Callable,
    *inputs: np.ndarray,
    examples: Sequence[Sequence[np.ndarray]] | None = None,
    tolerance: float | None = None,
    dims: Sequence[tuple[int | None, ...]] | None = None,
) -> None:
    """vmap against a loop over the examples, for every placement of the batch dimension."""
    examples = [[np.asarray(x) for x in e] for e in (examples or rolled(inputs))]
    for places in dims or placements([np.asarray(x) for x in inputs]):
        columns = list(zip(*examples))
        batched = [
            to_array(column[0] if d is None else np.stack(column, d))
            for column, d in zip(columns, places)
        ]
        actual = vmap_flat(listed(f), len(examples), batched, places)
        rows = [
            as_list(f(*[to_array(c[0] if d is None else c[i]) for c, d in zip(columns, places)]))
            for i in range(len(examples))
        ]
        expected = [np.stack([to_numpy(o) for o in outs]) for outs in zip(*rows)]
        assert_all_same(actual, expected, f"vmap{places}", tolerance)


def check_batched_vjp(
    f: Callable,
    *inputs: np.ndarray,
    examples: Sequence[Sequence[np.ndarray]] | None = None,
    tolerance: float | None = None,
) -> None:
    """vmap of the vjp, over everything and over the cotangents alone."""
    examples = [[np.asarray(x) for x in e] for e in (examples or rolled(inputs))]
    n = len(inputs)
    outs = [to_numpy(o) for o in as_list(f(*map(to_array, inputs)))]
    args = [
        [*e, *(random(o.shape, o.dtype, seed=90 + 7 * i + k) for k, o in enumerate(outs))]
        for i, e in enumerate(examples)
    ]
    dims = [(0,) * (n + len(outs)), (*(None,) * n, *(0,) * len(outs))]
    back = lambda *xs: vjp(f, xs[:n], xs[n:])
    check_batched(back, *args[0], examples=args, tolerance=tolerance, dims=dims)


def check_numeric(
    f: Callable, *inputs: np.ndarray, tolerance: float = 1e-5, eps: float = 1e-6
) -> None:
    """jvp against central differences (give float64), and vjp against jvp by the inner product."""
    xs = list(map(to_array, inputs))
    ts = [random(x.shape, x.dtype, seed=5 + i) for i, x in enumerate(inputs) if is_inexact(x)]

    def moved(h: float) -> list[np.ndarray]:
        it = iter(ts)
        at = [to_array(x + h * next(it) if is_inexact(x) else x) for x in inputs]
        return [to_numpy(o) for o in as_list(f(*at)) if is_inexact(typeof(o))]

    expected = [(a - b) / (2 * eps) for a, b in zip(moved(eps), moved(-eps))]
    actual = [to_numpy(t) for t in jvp(f, xs, list(map(to_array, ts)))]
    assert_all_same(actual, expected, "jvp against differences", tolerance)
    outs = [to_numpy(o) for o in as_list(f(*xs))]
    cts = [random(o.shape, o.dtype, seed=50 + i) for i, o in enumerate(outs)]
    back = [to_numpy(c) for c in vjp(f, xs, list(map(to_array, cts)))]
    left = sum(np.sum(c * t) for c, t in zip([c for c in cts if is_inexact(c)], actual))
    right = sum(np.sum(b * t) for b, t in zip(back, ts))
    np.testing.assert_allclose(left, right, rtol=1e-8, err_msg="<ct, J t> = <J' ct, t>")


def check_dtypes(
    f: Callable,
    reference: Callable,
    make: Callable[[Any], Sequence[np.ndarray]],
    kinds: Sequence[Any] = dtypes.ALL,
) -> None:
    """Values and staging for every dtype in `kinds`; `make(dtype)` gives the inputs."""
    for kind in kinds:
        inputs = make(kind)
        try:
            check_value(f, reference, *inputs)
            check_staged(f, *inputs)
        except Exception as error:
            error.add_note(f"for dtype {kind}")
            raise
