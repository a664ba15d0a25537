"""jax.lax's functions against JAX: values, dtypes, and what they refuse."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import genesis_fn.lax as lax
import genesis_fn.numpy as jnp
from genesis_fn.core import errors
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.jitting import jit
from tests.numpy.reference import close, ours, theirs, values

X = values((3, 4), "float32")
P = np.abs(X) + 0.5
N = values((3, 4), "int32", 1)
K = values((2, 3, 5, 5), "float32", 2)
F = values((4, 3, 3, 3), "float32", 3)
S = values((4, 4), "float32", 4)

CASES: list[tuple[Any, ...]] = [
    *[(n, X) for n in ("neg", "abs", "sign", "square", "exp", "sin", "cos", "tanh", "logistic",
                       "erf", "erfc", "floor", "ceil", "round", "is_finite", "expm1", "atan")],
    *[(n, P) for n in ("sqrt", "rsqrt", "log", "log1p", "cbrt", "lgamma", "digamma")],
    *[(n, X, P) for n in ("add", "sub", "mul", "div", "rem", "max", "min", "atan2", "eq",
                          "lt", "ge")],
    *[(n, N, N[::-1].copy()) for n in ("bitwise_and", "bitwise_or", "bitwise_xor")],
    ("erf_inv", X / 4), ("pow", P, X), ("integer_pow", X, 3), ("population_count", N), ("clz", N),
    ("bitwise_not", N), ("shift_left", N, np.full_like(N, 2)), ("add", X, 2.0), ("mul", 3, N),
    ("shift_right_logical", N, np.full_like(N, 1)), ("clamp", -1.0, X, 1.0), ("clamp", 0, N, 3),
    ("select", X > 0, X, -X), ("select_n", X > 0, X, -X), ("select_n", N % 3, N, N * 2, N * 3),
    ("convert_element_type", X, "int32"), ("bitcast_convert_type", X, "int32"),
    ("mulhi", N << 20, N << 20),
    ("full", (2, 3), 1.5), ("full_like", X, 2), ("iota", "int32", 4),
    ("broadcasted_iota", "float32", (2, 3), 1),
    ("broadcast", X, (2,)), ("broadcast_in_dim", X, (2, 3, 4), (1, 2)), ("reshape", X, (4, 3)),
    ("collapse", K, 1, 3), ("squeeze", X[None], (0,)), ("expand_dims", X, (0,)),
    ("transpose", X, (1, 0)),
    ("rev", X, (0,)), ("concatenate", [X, X], 0), ("pad", X, 0.0, [(1, 0, 1), (0, 2, 0)]),
    ("slice", X, (0, 1), (2, 3)), ("slice_in_dim", X, 1, 3), ("index_in_dim", X, 1),
    ("tile", X, (2, 1)),
    ("split", X, (1, 3), 1), ("dynamic_slice", X, (1, 2), (2, 2)),
    ("dynamic_slice_in_dim", X, 9, 2),
    ("dynamic_index_in_dim", X, 1), ("dynamic_update_slice", X, X[:1, :2], (1, 1)),
    ("dynamic_update_slice_in_dim", X, X[:1], 2, 0), ("dynamic_update_index_in_dim", X, X[0], 1, 0),
    ("dot", X, X.T.copy()), ("batch_matmul", K[0], K[1]),
    ("dot_general", X, X, (((1,), (1,)), ((), ()))),
    ("conv", K, F, (1, 1), "SAME"), ("conv_general_dilated", K, F, (2, 2), "VALID"),
    ("conv_with_general_padding", K, F, (1, 1), [(1, 1), (0, 1)], (1, 1), (2, 1)),
    ("reduce_sum", X, (0,)), ("reduce_max", X, (1,)), ("reduce_prod", X, (0, 1)),
    ("reduce_and", X > 0, (0,)),
    ("argmax", X, 1, np.int32), ("argmin", X, 0, np.int32), ("cumsum", X, 1), ("cumprod", X, 0),
    ("cummax", X, 1, True), ("cummin", X, 0), ("cumlogsumexp", X, 1), ("sort", X),
    ("sort_key_val", N[0], X[0]),
    ("top_k", X, 2), ("reduce_precision", X, 5, 3), ("stop_gradient", X),
    ("broadcast_to_rank", X, 4),
    ("linalg.qr", X.T.copy(), True), ("reciprocal", P), ("nextafter", X, P),
    ("broadcast_shapes", (2, 1), (3,)),
    ("index_take", X, (np.array([0, 2], np.int32),), (0,)), ("complex", X, P),
    ("real", values((3,), "complex64")),
    ("conj", values((3,), "complex64")), ("polygamma", 1.0, P), ("stack", [X, X], 1),
    ("unstack", X),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0])
def test_function(case: tuple) -> None:
    name, *args = case
    mine: Any = lax
    reference: Any = jax.lax
    for part in name.split("."):
        mine, reference = getattr(mine, part), getattr(reference, part, None)
    if name == "polygamma":
        expected = reference(np.full_like(P, 1), P)
    elif name == "linalg.qr":
        expected = reference(theirs(args[0]), full_matrices=False)
        got = mine(ours(args[0]), full_matrices=False)
        close([got[0] @ got[1]], [expected[0] @ expected[1]], tolerance=1e-4)
        return
    elif name == "clamp":
        expected = jax.numpy.clip(args[1], args[0], args[2])
    elif name == "convert_element_type":
        expected = reference(args[0], np.int32)
    elif name in ("split", "bitcast_convert_type", "mulhi", "top_k"):
        expected = (
            reference(*[np.int32 if a == "int32" else a for a in theirs(args)])
            if (isinstance(args[-1], str))
            else reference(*theirs(args))
        )
    else:
        if reference is None:
            pytest.skip(f"this JAX has no lax.{name}")
        expected = reference(*theirs(args))
    close(mine(*ours(args)), expected, tolerance=1e-4)
    if name not in ("stack", "stop_gradient"):
        close(mine(*args), expected, tolerance=1e-4)  # ndarrays are arrays too


def test_rounding() -> None:
    x = np.array([0.5, 1.5, -0.5, -2.5, 0.2], np.float32)
    close(lax.round(ours(x)), jax.lax.round(x))
    even = lax.RoundingMethod.TO_NEAREST_EVEN
    close(lax.round(ours(x), even), jax.lax.round(x, jax.lax.RoundingMethod.TO_NEAREST_EVEN))


def test_strictness() -> None:
    with pytest.raises(errors.DTypeError, match="float does not fit int32"):
        lax.add(jnp.arange(3), 1.5)
    with pytest.raises(errors.DTypeError):
        lax.add(jnp.arange(3), jnp.ones(3))
    with pytest.raises(errors.ShapeError):
        lax.add(jnp.ones((2, 3)), jnp.ones(3))
    assert lax.add(jnp.ones((2, 3)), jnp.ones(())).shape == (2, 3)
    assert lax.mul(2, 3).item() == 6 and lax.sqrt(4.0).item() == 2.0


def test_gather_and_scatter() -> None:
    x = values((5, 3), "float32")
    i = np.array([[0], [9], [3]], np.int32)
    mine = lax.GatherDimensionNumbers((1,), (0,), (0,))
    reference = jax.lax.GatherDimensionNumbers((1,), (0,), (0,))
    for mode in ("clip", "fill", None):
        close(
            lax.gather(ours(x), ours(i), mine, (1, 3), mode=mode),
            jax.lax.gather(x, i, reference, (1, 3), mode=mode),
        )
    u = values((3, 3), "float32", 4)
    mine_s = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    reference_s = jax.lax.ScatterDimensionNumbers((1,), (0,), (0,))
    for kind in ("", "_add", "_mul", "_min", "_max", "_sub"):
        name = f"scatter{kind}"
        if hasattr(jax.lax, name):
            close(
                getattr(lax, name)(ours(x), ours(i), ours(u), mine_s),
                getattr(jax.lax, name)(x, i, u, reference_s),
            )


def test_reduce() -> None:
    total = jax.lax.reduce(X, np.float32(0), jax.lax.add, (0,))
    close(lax.reduce(ours(X), 0.0, lax.add, (0,)), total)
    low = jax.lax.reduce(X, np.float32(np.inf), jax.lax.min, (1,))
    close(lax.reduce(ours(X), np.inf, lax.min, (1,)), low)

    def larger(a: Any, b: Any) -> Any:
        keep = a[0] >= b[0]
        return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])

    places = jnp.arange(12).reshape(3, 4)
    best, where = lax.reduce((ours(X), places), (-np.inf, -1), larger, (1,))
    np.testing.assert_array_equal(np.asarray(best), X.max(1))
    np.testing.assert_array_equal(np.asarray(where), X.argmax(1) + np.arange(3) * 4)


@pytest.mark.parametrize("name", ["add", "max", "min"])
def test_reduce_window(name: str) -> None:
    start = {"add": 0.0, "max": -np.inf, "min": np.inf}[name]
    args = ((1, 2), (1, 1), "SAME")
    expected = jax.lax.reduce_window(X, np.float32(start), getattr(jax.lax, name), *args)
    close(lax.reduce_window(ours(X), start, getattr(lax, name), *args), expected)


def test_linalg() -> None:
    spd = (S @ S.T + 4 * np.eye(4)).astype(np.float32)
    close(lax.linalg.cholesky(ours(spd)), jax.lax.linalg.cholesky(spd), tolerance=1e-4)
    low = np.tril(spd)
    options = {"left_side": True, "lower": True}
    expected = jax.lax.linalg.triangular_solve(low, S, **options)
    close(lax.linalg.triangular_solve(ours(low), ours(S), **options), expected, tolerance=1e-4)
    vectors, values_ = lax.linalg.eigh(ours(spd))
    close(values_, jax.lax.linalg.eigh(spd)[1], tolerance=1e-4)
    close(spd @ vectors, vectors * values_, tolerance=1e-3)


def test_control_flow_is_exported() -> None:
    assert lax.scan(lambda c, x: (c + x, c), 0.0, jnp.arange(3.0))[0].item() == 3.0
    assert lax.fori_loop(0, 4, lambda i, x: x + i, 0).item() == 6
    assert lax.while_loop(lambda x: x < 5, lambda x: x * 2, 1).item() == 8
    assert lax.cond(True, lambda x: x, lambda x: -x, 2.0).item() == 2.0
    assert lax.switch(1, [lambda x: x, lambda x: -x], 2.0).item() == -2.0
    assert lax.map(lambda x: x * 2, jnp.arange(3)).tolist() == [0, 2, 4]
    assert lax.associative_scan(jnp.add, jnp.arange(4)).tolist() == [0, 1, 3, 6]


def test_stop_gradient_of_trees() -> None:
    x = jnp.array(2.0)
    assert grad(lambda x: x * lax.stop_gradient({"a": x, "n": 3})["a"])(x).item() == 2.0
    assert jit(lambda x: lax.optimization_barrier((x, x + 1))[1])(x).item() == 3.0


def test_reduce_window_of_several_operands() -> None:
    """The largest element of every window and what stands at its place in another array."""
    args = ((2, 2), (1, 2), ((1, 0), (0, 1)))

    def ours_of(a: Any, b: Any) -> Any:
        return lax.max(a[0], b[0]), lax.select(a[0] > b[0], a[1], b[1])

    def theirs_of(a: Any, b: Any) -> Any:
        return jax.lax.max(a[0], b[0]), jax.lax.select(a[0] > b[0], a[1], b[1])

    found = lax.reduce_window((ours(X), ours(N)), (-np.inf, np.int32(0)), ours_of, *args)
    expected = jax.lax.reduce_window((X, N), (np.float32(-np.inf), np.int32(0)), theirs_of, *args)
    for x, y in zip(found, expected, strict=True):
        close(x, y)
    with pytest.raises(errors.ShapeError, match="2 operands but 1 initial"):
        lax.reduce_window((ours(X), ours(N)), (0.0,), ours_of, *args)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "uint32"])
def test_integer_division_at_the_ends(kind: str) -> None:
    """By zero, of the least number by -1 (where the processor would trap), of large exponents."""
    info = np.iinfo(kind)
    some = np.array([info.min, 1, 2, 7, info.max, info.max - 2], kind)
    x, y = [v.ravel() for v in np.meshgrid(some, np.array([0, -1, info.max, 3]).astype(kind))]
    for name in ("div", "rem"):
        found = getattr(lax, name)(ours(x), ours(y))
        close(found, getattr(jax.lax, name)(x, y))
        close(jit(getattr(lax, name))(ours(x), ours(y)), found)
    if info.min:
        close(lax.div(ours(x), -1), jax.lax.div(x, np.full_like(x, -1)))
    for name in ("remainder", "fmod"):
        close(getattr(jnp, name)(ours(x), ours(y)), getattr(jax.numpy, name)(x, y))
    for exponent in (9, 300):
        close(lax.integer_pow(ours(some), exponent), jax.lax.integer_pow(some, exponent))
    close(jnp.bitwise_count(ours(some)), jax.numpy.bitwise_count(some))
    five, two = np.array(5, kind), np.array(2, kind)
    close(lax.clamp(ours(five), ours(some), ours(two)), jax.lax.clamp(five, some, two))


def test_scatter_apply_of_a_function_with_one_result_for_all_elements():
    numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))
    x, rows = jnp.arange(6.0).reshape(3, 2), jnp.array([[0], [2]])
    for f in (lambda v: 7.0, lambda v: jnp.full((2,), 7.0)):
        y = lax.scatter_apply(x, rows, f, numbers, update_shape=(2, 2))
        assert y.tolist() == [[7.0, 7.0], [2.0, 3.0], [7.0, 7.0]]


def test_stack_of_lists_and_of_no_sequence():
    assert lax.stack([[1, 2], [3, 4]], 1).tolist() == [[1, 3], [2, 4]]
    assert lax.stack(np.eye(2, dtype=np.float32)).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(TypeError, match="stack takes a sequence of arrays, got float"):
        lax.stack(1.0)  # pyright: ignore
    for stack in (lax.stack, jnp.stack):
        with pytest.raises(ValueError, match="stack needs at least one array"):
            stack(jnp.zeros((0, 3)))


@pytest.mark.parametrize("name", ["conv", "gather", "scatter", "reduce"])
def test_functions_bear_their_public_name(name: str):
    assert getattr(lax, name).__name__ == name


def test_operands_by_name():
    assert lax.reshape(operand=np.arange(4), new_sizes=(2, 2)).shape == (2, 2)
    assert lax.squeeze(array=[[1.0]][0][0], dimensions=()).shape == ()
    assert lax.linalg.cholesky(x=np.eye(2, dtype=np.float32)).tolist() == [[1.0, 0.0], [0.0, 1.0]]
