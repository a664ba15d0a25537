"""A row for every first-order primitive: functions that exercise it, with inputs and references.

`ROWS[name]` is a list of `Row`. A reference is a function of JAX arrays; derivatives are compared
with finite differences, so a reference needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax, numpy as jnp

from genesis_fn.core import dtypes
from genesis_fn.core.convert import as_array
from genesis_fn.primitives import (
    conv,
    dot_general,
    elementwise as ops,
    factories,
    fft,
    linalg,
    ragged_dot,
    random_bits,
    shape as shapes,
    sort,
)
from genesis_fn.primitives.indexing import gather, indexing, scatter
from genesis_fn.primitives.indexing.constants import constant
from genesis_fn.primitives.indexing.gather_dims import (
    GatherDimensionNumbers,
    ScatterDimensionNumbers,
)
from genesis_fn.primitives.reductions import cumulative, reduce, reduce_generic
from tests.primitives.windows import pool

_rng = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    """Normal values, away from ties and kinks."""
    x = _rng.normal(size=shape)
    return np.asarray(np.where(np.abs(x) < 0.1, 0.3, x))


def between(low: float, high: float, *shape: int) -> np.ndarray:
    """Uniform values."""
    return np.asarray(_rng.uniform(low, high, shape))


def integers(*shape: int, kind: Any = np.int32) -> np.ndarray:
    """Integers from 1 to 9."""
    return np.asarray(_rng.integers(1, 10, shape)).astype(kind)


class Row(NamedTuple):
    """`f` of arrays, its JAX `reference`, inputs, and whether and how far it is differentiated."""

    f: Callable
    reference: Callable | None
    inputs: Sequence[np.ndarray]
    order: int = 2
    tolerance: float = 1e-5
    batch: bool = True


A, B = normal(2, 3), normal(2, 3)
POSITIVE = between(0.5, 2.0, 2, 3)
INSIDE = between(-0.8, 0.8, 2, 3)
N, M = integers(2, 3), integers(2, 3)
SQUARE = normal(3, 3)
SPD = SQUARE @ SQUARE.T + 3 * np.eye(3)
FLAGS = A > 0
Z = normal(2, 3) + 1j * normal(2, 3)
LINE = between(-1, 1, 2, 5) + np.arange(5) * 3.0  # no ties
KEY = np.array([1, 2], np.uint32)
IDS = np.array([2, 0, 2, 1], np.int32)
AT = np.array(1, np.int32)

ROWS: dict[str, list[Row]] = {}


def row(name: str, *args: Any, **options: Any) -> None:
    """Add a row."""
    ROWS.setdefault(name, []).append(Row(*args, **options))


# ---- elementwise ----

for _name, _inputs in {
    "neg": (A,),
    "add": (A, B),
    "sub": (A, B),
    "mul": (A, B),
    "div": (A, POSITIVE),
    "pow": (POSITIVE, B),
    "max": (A, B),
    "min": (A, B),
    "atan2": (A, POSITIVE),
    "abs": (A,),
    "exp": (A,),
    "exp2": (A,),
    "expm1": (A,),
    "log": (POSITIVE,),
    "log1p": (POSITIVE,),
    "sqrt": (POSITIVE,),
    "rsqrt": (POSITIVE,),
    "cbrt": (POSITIVE,),
    "logistic": (A,),
    "sin": (A,),
    "cos": (A,),
    "tan": (INSIDE,),
    "asin": (INSIDE,),
    "acos": (INSIDE,),
    "atan": (A,),
    "sinh": (A,),
    "cosh": (A,),
    "tanh": (A,),
    "asinh": (A,),
    "acosh": (POSITIVE + 1.5,),
    "atanh": (INSIDE,),
    "erf": (A,),
    "erfc": (A,),
    "erf_inv": (INSIDE,),
    "lgamma": (POSITIVE,),
    "digamma": (POSITIVE,),
}.items():
    row(_name, getattr(ops, _name), getattr(lax, _name), _inputs)
row("log2", ops.log2, jnp.log2, (POSITIVE,))
row("rem", ops.rem, lax.rem, (A * 3, POSITIVE))
row("integer_pow", lambda x: ops.integer_pow(x, 3), lambda x: x**3, (A,))
row("safe_mul", lambda t, d: ops.safe_mul(t, d), lambda t, d: t * d, (A, B))
row("polygamma", lambda x: ops.polygamma(1, x), lambda x: lax.polygamma(1.0, x), (POSITIVE,))
row("sign", ops.sign, lax.sign, (A,))
row("nextafter", ops.nextafter, lax.nextafter, (A, B), 0)
for _name in ("floor", "ceil"):
    row(_name, getattr(ops, _name), getattr(lax, _name), (A,))
row("trunc", ops.trunc, jnp.trunc, (A * 3,))
row("round_even", ops.round_even, jnp.round, (A * 3,))
row("is_finite", ops.is_finite, lax.is_finite, (np.array([1.0, np.inf, np.nan]),), 0)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    row(_name, getattr(ops, _name), getattr(lax, _name), (N, M), 0)
for _name, _theirs in {
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "not": "bitwise_not",
    "shift_left": "shift_left",
    "shift_right_logical": "shift_right_logical",
    "shift_right_arithmetic": "shift_right_arithmetic",
    "population_count": "population_count",
    "clz": "clz",
}.items():
    _one = _name in ("not", "population_count", "clz")
    row(_name, getattr(ops, _theirs), getattr(lax, _theirs), (N,) if _one else (N, M), 0)
row(
    "convert_element_type",
    lambda x: ops.convert(ops.convert(x, dtypes.I32), dtypes.F64),
    lambda x: x.astype("int32").astype("float64"),
    (A * 4,),
)
row(
    "convert_element_type",
    lambda x: ops.convert(x, dtypes.C128),
    lambda x: x.astype("complex128"),
    (A,),
    0,
)
row(
    "bitcast_convert_type",
    lambda x: ops.bitcast_convert_type(x, dtypes.I64),
    lambda x: lax.bitcast_convert_type(x, "int64"),
    (A,),
    0,
)
row("select", ops.select, lambda c, x, y: jnp.where(c, x, y), (FLAGS, A, B))
row("real", ops.real, lax.real, (Z,), 0)
row("imag", ops.imag, lax.imag, (Z,), 0)
row("conj", ops.conj, lax.conj, (Z,), 0)
row(
    "complex", lambda x, y: ops.abs(ops.complex_(x, y)), lambda x, y: abs(lax.complex(x, y)), (A, B)
)
row("add_n", lambda *xs: ops.total(list(xs)), lambda x, y, z: x + y + z, (A, B, POSITIVE))
row("stop_gradient", lambda x: ops.stop_gradient(x), lax.stop_gradient, (A,), 0)
row("full", lambda: factories.full((2,), 3.0, dtypes.F64), lambda: jnp.full((2,), 3.0), (), 0)

# ---- shapes ----

row(
    "broadcast_in_dim",
    lambda x: shapes.broadcast_in_dim(x, (3, 2, 4, 3), (1, 3)),
    lambda x: lax.broadcast_in_dim(x, (3, 2, 4, 3), (1, 3)),
    (A,),
)
row("reshape", lambda x: shapes.reshape(x, (3, 2)), lambda x: x.reshape(3, 2), (A,))
row(
    "transpose",
    lambda x: shapes.transpose(x, (2, 0, 1)),
    lambda x: x.transpose(2, 0, 1),
    (normal(2, 3, 4),),
)
row("slice", lambda x: shapes.slice(x, (0, 1), (2, 3), (1, 2)), lambda x: x[0:2, 1:3:2], (A,))
row(
    "pad",
    lambda x, v: shapes.pad(x, v, ((1, 0, 1), (-1, 2, 0))),
    lambda x, v: lax.pad(x, v, ((1, 0, 1), (-1, 2, 0))),
    (A, np.array(0.7)),
)
row(
    "concatenate",
    lambda x, y: shapes.concatenate([x, y, x], 1),
    lambda x, y: jnp.concatenate([x, y, x], 1),
    (A, normal(2, 2)),
)
row("split", lambda x: shapes.split(x, (1, 2), 1), lambda x: jnp.split(x, [1], 1), (A,))
row("rev", lambda x: shapes.rev(x, (1,)), lambda x: x[:, ::-1], (A,))
row(
    "iota",
    lambda: shapes.iota(dtypes.I32, (2, 3), 1),
    lambda: lax.iota("int32", 3)[None] * jnp.ones((2, 1), "int32"),
    (),
    0,
)
row(
    "constant",
    lambda: constant(np.array([[3, -1], [7, 0]], np.int32)),
    lambda: jnp.array([[3, -1], [7, 0]], "int32"),
    (),
    0,
)
row("copy", shapes.copy, lambda x: x, (A,))
row(
    "optimization_barrier",
    lambda x, y: shapes.optimization_barrier([x, y]),
    lambda x, y: [x, y],
    (A, B),
)
row("reduce_precision", lambda x: shapes.reduce_precision(x, 11, 52), lambda x: x, (A,))

# ---- reductions ----

row("reduce_prod", lambda x: reduce_generic.reduce_prod(x, (1,)), lambda x: jnp.prod(x, 1), (LINE,))
for _name in ("sum", "max", "min"):
    row(
        f"reduce_{_name}",
        lambda x, n=_name: getattr(reduce, f"reduce_{n}")(x, (1,)),
        lambda x, n=_name: getattr(jnp, n)(x, 1),
        (LINE,),
    )
for _name, _theirs in {
    "and": jnp.bitwise_and,
    "or": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
}.items():
    row(
        f"reduce_{_name}",
        lambda x, n=_name: getattr(reduce, f"reduce_{n}")(x, (0,)),
        lambda x, f=_theirs: f.reduce(x, 0),
        (N,),
        0,
    )
for _name in ("argmax", "argmin"):
    row(
        _name,
        lambda x, n=_name: getattr(reduce, n)(x, 1),
        lambda x, n=_name: getattr(jnp, n)(x, 1).astype("int32"),
        (LINE,),
        0,
    )
for _name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
    for _back in (False, True):
        row(
            _name,
            lambda x, n=_name, b=_back: getattr(cumulative, n)(x, 1, b),
            lambda x, n=_name, b=_back: getattr(lax, n)(x, 1, b),
            (LINE * 0.3,),
        )


def _recurrence(a: Any, b: Any) -> Any:
    rows = [b[0]]
    for k in range(1, len(b)):
        rows.append(a[k] * rows[-1] + b[k])
    return jnp.stack(rows)


row("linear_recurrence", cumulative.linear_recurrence, _recurrence, (normal(4, 2), normal(4, 2)))
row(
    "fft",
    lambda x: ops.real(fft.fft(ops.convert(x, dtypes.C128), "FFT", (4,))),
    lambda x: jnp.fft.fft(x).real,
    (normal(2, 4),),
)
row(
    "reduce_window_sum",
    lambda x: pool("sum")(x, (1, 2), (1, 2)),
    lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 2), "VALID"),
    (LINE,),
)
row(
    "reduce_window_max",
    lambda x: pool("max")(x, (1, 2), (1, 2)),
    lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"),
    (LINE,),
)
row(
    "reduce_window_min",
    lambda x: pool("min")(x, (1, 2), (1, 1)),
    lambda x: lax.reduce_window(x, jnp.inf, lax.min, (1, 2), (1, 1), "VALID"),
    (LINE,),
)

# ---- indexing ----

row(
    "dynamic_slice",
    lambda x, i: indexing.dynamic_slice(x, (i, 0), (1, 2)),
    lambda x, i: lax.dynamic_slice(x, (i, AT * 0), (1, 2)),
    (A, AT),
)
row(
    "dynamic_update_slice",
    lambda x, u, i: indexing.dynamic_update_slice(x, u, (0, i)),
    lambda x, u, i: lax.dynamic_update_slice(x, u, (AT * 0, i)),
    (A, normal(1, 2), AT),
)
_g = dict(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))
_s = dict(update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))
row(
    "gather",
    lambda x, i: gather.gather(x, i, GatherDimensionNumbers(**_g), (1, 2), mode="clip"),
    lambda x, i: lax.gather(x, i, lax.GatherDimensionNumbers(**_g), (1, 2), mode="clip"),
    (normal(3, 2), IDS[:, None]),
)
for _name in ("", "_add", "_mul", "_min", "_max"):
    row(
        "scatter",
        lambda x, i, u, n=_name: getattr(scatter, f"scatter{n}")(
            x, i, u, ScatterDimensionNumbers(**_s), unique_indices=True, mode="clip"
        ),
        lambda x, i, u, n=_name: getattr(lax, f"scatter{n}")(
            x, i, u, lax.ScatterDimensionNumbers(**_s), unique_indices=True, mode="clip"
        ),
        (normal(3, 2), IDS[1:3, None], normal(2, 2)),
        batch=False,
    )
row(
    "take_rows",
    lambda x, i: gather.take_rows(x, i),
    lambda x, i: x[i],
    (normal(3, 2), IDS),
    batch=False,
)
row(
    "segment_sum",
    lambda x, i: scatter.segment_sum(x, i, 3),
    lambda x, i: jax.ops.segment_sum(x, i, 3),
    (normal(4, 2), IDS),
)
row("sort", lambda x: sort.sort(x, 1), lambda x: jnp.sort(x, 1), (LINE[:, ::-1].copy(),))
row("top_k", lambda x: sort.top_k(x, 2)[0], lambda x: lax.top_k(x, 2)[0], (LINE,))

# ---- contraction, linear algebra, random ----

_dot = (((2,), (1,)), ((0,), (0,)))
row(
    "dot_general",
    lambda x, y: dot_general.dot_general(x, y, _dot),
    lambda x, y: lax.dot_general(x, y, _dot),
    (normal(2, 3, 4), normal(2, 4, 2)),
)
_sizes = np.array([2, 0, 3], np.int32)  # of six rows
row(
    "ragged_dot",
    lambda x, w: ragged_dot.ragged_dot(x, w, as_array(_sizes)),
    lambda x, w: lax.ragged_dot(x, w, _sizes),
    (normal(6, 4), normal(3, 4, 2)),
)
_ragged_depth = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])
row(
    "ragged_contraction",
    lambda x, y: ragged_dot.ragged_contraction(x, y, as_array(_sizes)),
    lambda x, y: lax.ragged_dot_general(x, y, _sizes, _ragged_depth),
    (normal(6, 4), normal(6, 2)),
)
row(
    "conv_general_dilated",
    lambda x, w: conv.conv_general_dilated(x, w, (1, 2), [(1, 0), (0, 1)]),
    lambda x, w: lax.conv_general_dilated(x, w, (1, 2), [(1, 0), (0, 1)]),
    (normal(1, 2, 3, 4), normal(2, 2, 2, 2)),
)
row("cholesky", lambda x: linalg.cholesky(x), jnp.linalg.cholesky, (SPD,), batch=False)
_lower = np.tril(SQUARE) + 3 * np.eye(3)
row(
    "triangular_solve",
    lambda a, b: linalg.triangular_solve(a, b, left_side=True, lower=True),
    lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
    (_lower, normal(3, 2)),
)
row("solve", linalg.solve, jnp.linalg.solve, (SPD, normal(3, 2)))
row("lu", lambda x: linalg.lu(x)[0], lambda x: lax.linalg.lu(x)[0], (SPD,), 1, batch=False)
row(
    "qr",
    lambda x: [ops.abs(v) for v in linalg.qr(x, full_matrices=False)],
    lambda x: [abs(v) for v in jnp.linalg.qr(x)],
    (SPD,),
    1,
    batch=False,
)
row("eigh", lambda x: linalg.eigh(x)[1], jnp.linalg.eigvalsh, (SPD,), 1, batch=False)
row(
    "eig",
    lambda x: ops.real(linalg.eig(x)[0]),
    lambda x: jnp.real(jnp.linalg.eigvals(x)),
    (SPD,),
    1,
    batch=False,
)
row("svd", linalg.svdvals, lambda x: jnp.linalg.svd(x, compute_uv=False), (SPD,), 1, batch=False)
row(
    "random_bits",
    lambda k: random_bits.random_bits(k, shape=(3,), impl="threefry2x32"),
    lambda k: jax.random.bits(jax.random.wrap_key_data(k), (3,), "uint32"),
    (KEY,),
    0,
    batch=False,
)
row(
    "key_hash",
    lambda k, d: random_bits.fold_in(k, d, impl="threefry2x32"),
    lambda k, d: jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(k), d)),
    (KEY, np.array(7, np.uint32)),
    0,
    batch=False,
)
