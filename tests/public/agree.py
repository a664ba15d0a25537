"""What must hold of a public function whatever its arguments: the checks and what draws operands.

An `Entry` says what operands a function takes and how it is called on them. `agree` draws operands
of the dtypes that it admits and holds the function against itself (compiled, batched, under a
derivative, on NumPy's and torch's arrays and on Python numbers) and, where a peer has a function of
the name, against the peer.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import jax
import ml_dtypes
import numpy as np
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import tree

FLOATS = ["float32", "float16", "bfloat16", "float64"]
DTYPES = {
    "b": ["bool"],
    "i": ["int32", "int8", "int16", "int64"],
    "u": ["uint8", "uint32", "uint16"],
    "f": FLOATS,
    "s": ["float32", "float64"],  # floats of functions that need single precision
    "c": ["complex64", "complex128"],
}
PYTHONS = {"bool", "int32", "float32", "complex64"}  # what Python's numbers become
# Part of the largest result that rounding may take, by the narrowest float among the operands.
TOLERANCE = {"bfloat16": 4e-2, "float16": 4e-3, "float64": 1e-9, "complex128": 1e-9}


@dataclasses.dataclass(frozen=True)
class Operand:
    """An array operand: its shape, the kinds of dtype it may have, and the range of its values."""

    shape: tuple[int, ...] = (3, 4)
    kinds: str = "f"
    low: float = -2.0
    high: float = 2.0
    values: Callable[[np.random.Generator], np.ndarray] | None = None  # instead of the range

    def dtypes(self) -> list[str]:
        """The dtypes that the operand may have, the plainest first."""
        return [d for k in self.kinds for d in DTYPES[k]]

    def draw(self, rng: np.random.Generator, dtype: str) -> np.ndarray:
        """Values of `dtype`."""
        kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
        if self.values is not None:
            return np.asarray(self.values(rng)).astype(kind)
        if dtype == "bool":
            return rng.integers(0, 2, self.shape).astype(bool)
        if kind.kind in "iu":
            low = max(int(np.ceil(self.low)), 0 if kind.kind == "u" else -100)
            return rng.integers(low, max(int(self.high), low) + 1, self.shape).astype(kind)
        x = rng.uniform(self.low, self.high, self.shape)
        if kind.kind == "c":
            x = x + 1j * rng.uniform(self.low, self.high, self.shape)
        return np.asarray(x).astype(kind)


def _plain(f: Callable, *xs: Any) -> Any:
    return f(*xs)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A use of a public function: `call(function, *operands)`."""

    operands: tuple[Operand, ...]
    call: Callable = _plain
    peer: bool = True  # whether the peer's function of the name gives the same
    same: bool = True  # operands that admit one dtype have one
    jit: bool = True  # False: the result's shape depends on values
    vmap: bool = True
    grad: bool = True
    numbers: bool = True  # whether NumPy's and torch's arrays, and Python numbers, are operands


def E(*operands: Operand, call: Callable = _plain, **options: Any) -> Entry:
    """An Entry, shortly."""
    return Entry(operands, call, **options)


def leaves(result: Any) -> list[Any]:
    """The arrays and numbers of a result."""
    return [x for x in tree.leaves(result) if x is not None]


def values(x: Any) -> np.ndarray:
    """An array's values as NumPy's, wide enough to compare."""
    x = np.asarray(x)
    if x.dtype.kind in "biuU":
        return x
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def tolerance(operands: Sequence[np.ndarray], results: Sequence[Any] = ()) -> float:
    """Of the narrowest float among operands and results."""
    names = {str(getattr(x, "dtype", "")) for x in (*operands, *results)}
    return max([TOLERANCE[n] for n in names if n in TOLERANCE and "64" not in n] or [2e-5])


def close(got: Any, want: Any, bound: float, what: str, dtype: bool = True) -> None:
    """Assert that two results agree in structure, dtypes and values."""
    a, b = leaves(got), jax.tree.leaves(want)
    assert len(a) == len(b), f"{what}: {len(a)} results, {len(b)} expected"
    for x, y in zip(a, b):
        if dtype and hasattr(x, "dtype") and hasattr(y, "dtype"):
            assert str(x.dtype) == str(y.dtype), f"{what}: {x.dtype}, expected {y.dtype}"
        p, q = values(x), values(y)
        assert p.shape == q.shape, f"{what}: shape {p.shape}, expected {q.shape}"
        if q.dtype.kind in "biuU":
            np.testing.assert_array_equal(p, q, err_msg=what)
            continue
        finite = np.abs(q[np.isfinite(q)])
        scale = max(1.0, float(finite.max())) if finite.size else 1.0
        np.testing.assert_allclose(p, q, rtol=bound, atol=bound * scale, err_msg=what)


def agree(f: Callable, entry: Entry, data: st.DataObject, peer: Callable | None) -> None:
    """Hold `f` against itself under every transform, and against `peer`, on drawn operands."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**16), label="seed"))
    kinds: list[str] = []
    for o in entry.operands:
        known = [k for k in kinds if k in o.dtypes()] if entry.same else []
        kinds.append(known[0] if known else data.draw(st.sampled_from(o.dtypes()), label="dtype"))
    xs = [o.draw(rng, k) for o, k in zip(entry.operands, kinds)]
    arrays = [jnp.asarray(x, dtype=x.dtype) for x in xs]
    wide = any(k.endswith("64") and k != "complex64" or k == "complex128" for k in kinds)
    run = lambda *vs: entry.call(f, *vs)

    eager = run(*arrays)
    bound = tolerance(xs, leaves(eager))
    if entry.jit and arrays:
        close(gf.jit(run)(*arrays), leaves(eager), bound, "jit")
    if entry.numbers and arrays and not wide:
        close(run(*xs), leaves(eager), bound, "NumPy operands")
        if all(k not in ("bfloat16", "uint32", "uint16") for k in kinds):
            tensors = [torch.from_numpy(np.array(x)) for x in xs]
            close(run(*tensors), leaves(eager), bound, "torch operands")
        if entry.call is _plain and set(kinds) <= PYTHONS:
            _python_numbers(run, [x.flat[0].item() for x in xs], bound)
    if entry.vmap and entry.jit and arrays:
        others = [o.draw(rng, k) for o, k in zip(entry.operands, kinds)]
        second = run(*[jnp.asarray(x, dtype=x.dtype) for x in others])
        stacked = [jnp.asarray(np.stack([x, y]), dtype=x.dtype) for x, y in zip(xs, others)]
        looped = [
            np.stack([np.asarray(a), np.asarray(b)]) for a, b in zip(leaves(eager), leaves(second))
        ]
        close(gf.vmap(run)(*stacked), looped, bound, "vmap")
    if entry.grad and entry.jit:
        _derivatives(run, arrays, eager, bound, rng)
    if peer is not None and entry.peer and not wide:
        with warnings.catch_warnings(), jax.numpy_dtype_promotion("standard"):
            warnings.simplefilter("ignore")
            want = entry.call(peer, *[jax.numpy.asarray(x) for x in xs])
        close(eager, want, bound, "the peer")


def _python_numbers(run: Callable, numbers: list[Any], bound: float) -> None:
    """Python numbers are operands wherever arrays without dimensions are."""
    try:
        want = leaves(run(*map(jnp.asarray, numbers)))
        _ = [values(x) for x in want]  # a GPU says of an index that it is out of bounds when read
    except (TypeError, ValueError, IndexError):
        return  # the function takes no scalars
    close(run(*numbers), want, bound, f"Python numbers {numbers}")


def _derivatives(
    run: Callable, arrays: list[Any], eager: Any, bound: float, rng: np.random.Generator
) -> None:
    """The value under a derivative is the value; eager, compiled and forward derivatives agree."""
    bound = max(bound, 2e-5)  # sums of float32
    floats = [i for i, x in enumerate(arrays) if x.dtype.kind in "fV" and "int" not in str(x.dtype)]
    outs = leaves(eager)
    real = [i for i, y in enumerate(outs) if hasattr(y, "dtype") and y.dtype.kind in "fVc"]
    if not floats or not real:
        return
    weights = [np.cos(np.arange(1, outs[i].size + 1)).reshape(outs[i].shape) for i in real]

    def loss(*moving: Any) -> Any:
        given = list(arrays)
        for i, x in zip(floats, moving):
            given[i] = x
        ys = leaves(run(*given))
        total = 0.0
        for i, w in zip(real, weights):
            y = ys[i]
            parts = [jnp.real(y), jnp.imag(y)] if y.dtype.kind == "c" else [y]
            for part in parts:
                total = total + jnp.sum(part.astype("float32") * w.astype("float32"))
        return total, ys

    moving = [arrays[i] for i in floats]
    nums = tuple(range(len(moving)))
    derivative = gf.value_and_grad(loss, argnums=nums, has_aux=True)
    (_, ys), grads = derivative(*moving)
    close(ys, outs, bound, "the value under a derivative")
    (_, _), compiled = gf.jit(derivative)(*moving)
    close(compiled, leaves(grads), 4 * bound, "the compiled derivative")
    tangents = [jnp.asarray(rng.standard_normal(x.shape), dtype=x.dtype) for x in moving]
    if any(not np.isfinite(values(g)).all() for g in grads):
        return  # a pole: forward and reverse meet infinities in another order
    _, forward = gf.jvp(lambda *m: loss(*m)[0], tuple(moving), tuple(tangents))
    pairs = [(values(g), values(t)) for g, t in zip(grads, tangents)]
    reverse = sum(float((g * t).sum()) for g, t in pairs)
    scale = sum(float(np.abs(g * t).sum()) for g, t in pairs)
    assert abs(float(forward) - reverse) <= 10 * bound * max(scale, 1.0), (float(forward), reverse)
