"""Shape primitives against JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax as jlax

from genesis_fn.core import dtypes, errors
from genesis_fn.core.primitive import typeof
from genesis_fn.primitives import shape as S
from genesis_fn.transforms.staging.stage_trace import stage
from tests.primitives.check import (
    address,
    assert_same,
    check,
    check_batched,
    check_derivatives,
    check_dtypes,
    check_staged,
    check_value,
    random,
    to_array,
)
from tests.support.xla import as_shipped

A = random((3, 4, 5))


def both(name, *args, **kwargs):
    """(this library's function, JAX's) of one operand and the same further arguments."""
    return (
        lambda x: getattr(S, name)(x, *args, **kwargs),
        lambda x: getattr(jlax, name)(x, *args, **kwargs),
    )


@pytest.mark.parametrize(
    "name, args, x",
    [
        ("broadcast_in_dim", ((2, 3, 4), (1, 2)), random((3, 1))),
        ("broadcast_in_dim", ((2, 3), ()), random(())),
        ("broadcast", ((2, 1),), random((3,))),
        ("broadcast", ((0,),), random((3,))),
        ("tile", ((2, 1, 3),), A),
        ("reshape", ((15, 4),), A),
        ("reshape", ((15, 4), (2, 0, 1)), A),
        ("reshape", ((0, 7),), random((3, 0))),
        ("transpose", ((2, 0, 1),), A),
        ("squeeze", ((0, -1),), random((1, 3, 1))),
        ("expand_dims", ((0, -1),), A),
        ("collapse", (0, 2), A),
        ("collapse", (1,), A),
        ("rev", ((0, 2),), A),
        ("slice", ((1, 0, 2), (3, 4, 5)), A),
        ("slice", ((0, 1, 0), (3, 4, 5), (2, 2, 3)), A),
        ("slice", ((1, 2, 2), (1, 4, 2)), A),
        ("slice", ((), ()), random(())),
        ("slice_in_dim", (1, -1, 2, -1), A),
        ("slice_in_dim", (None, None, 3, 1), A),
        ("index_in_dim", (-1, 1), A),
        ("index_in_dim", (1, 2, False), A),
        ("reduce_precision", (5, 10), A),
        ("split", ((1, 3), 1), A),
        ("split", ((2, 0, 2), -2), A),
        ("split", ((4,), 1), A),
    ],
)
def test_one_operand(name, args, x):
    check(*both(name, *args), x)


CONFIGS = [
    [(1, 2, 0), (0, 1, 0)],
    [(0, 0, 2), (1, 0, 1)],
    [(-1, 2, 0), (0, -2, 0)],
    [(-1, -1, 0), (-2, 0, 0)],
    [(-2, 1, 2), (-1, -3, 1)],
    [(-4, 5, 1), (3, -7, 2)],
    [(2, -1, 3), (-5, 0, 0)],
    [(0, 0, 0), (0, 0, 0)],
]


@pytest.mark.parametrize("config", CONFIGS)
def test_pad(config):
    check(
        lambda x, v: S.pad(x, v, config),
        lambda x, v: jlax.pad(x, v, config),
        random((4, 5)),
        random((), seed=3),
    )


def test_pad_of_nothing_and_by_a_python_number():
    check_value(
        lambda x: S.pad(x, 1.5, [(2, 1, 3)]), lambda x: jlax.pad(x, 1.5, [(2, 1, 3)]), random((0,))
    )
    check(
        lambda x: S.pad(x, 0.0, [(2, 1, 3)]), lambda x: jlax.pad(x, 0.0, [(2, 1, 3)]), random((2,))
    )
    check_value(lambda x: S.pad(x, 2.0, []), lambda x: jlax.pad(x, 2.0, []), random(()))


@pytest.mark.parametrize("dimension", [0, 1, -1])
def test_concatenate(dimension):
    def shape(n):
        return tuple([n if i == dimension % 3 else k for i, k in enumerate((2, 3, 4))])

    xs = [random(shape(n), seed=n) for n in (2, 0, 3)]
    axis = dimension % 3
    check(lambda *xs: S.concatenate(xs, dimension), lambda *xs: jlax.concatenate(xs, axis), *xs)
    constant = to_array(xs[2])
    check(
        lambda x, y: S.concatenate([x, constant, y], dimension),
        lambda x, y: jlax.concatenate([x, jnp.asarray(xs[2]), y], axis),
        *xs[:2],
    )


def test_split_is_one_equation_backwards():
    """The transpose of split is one concatenate, and of concatenate one split."""
    xs = [random((2, 3), seed=i) for i in range(3)]
    check_derivatives(
        lambda *xs: S.split(S.concatenate(xs, 0), (1, 5), 0)[1],
        lambda *xs: jlax.split(jlax.concatenate(xs, 0), (1, 5), 0)[1],
        *xs,
    )


def test_iota():
    for kind in dtypes.ALL:
        if kind == dtypes.BOOL:
            continue
        actual = S.broadcasted_iota(kind, (2, 5, 3), 1)
        assert_same(actual, jlax.broadcasted_iota(kind, (2, 5, 3), 1), str(kind))
    assert_same(S.iota(dtypes.I8, 200), np.arange(200).astype(np.int8))
    assert_same(S.iota(dtypes.I32, 0), np.zeros(0, np.int32))
    x = random((3,))
    check(lambda x: S.iota(np.float64, 3), lambda x: jlax.iota(np.float64, 3), x, order=0)


def test_copy_and_barrier():
    check(S.copy, jnp.copy, A)
    check(
        lambda x, y: S.optimization_barrier([x, y])[0],
        lambda x, y: jlax.optimization_barrier((x, y))[0],
        A,
        random((2,)),
    )
    x = to_array(A)
    assert address(S.copy(x)) != address(x)
    assert S.optimization_barrier([]) == []


@pytest.mark.parametrize("bits", [(8, 7), (5, 10), (5, 2), (4, 3), (8, 0), (2, 1), (11, 60)])
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_reduce_precision(bits, kind):
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [
            rng.normal(size=200) * 10.0 ** rng.uniform(-12, 12, 200),
            [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 65504, 65520, 6e-5, 6e-8, 1.5, 2.5, 448, 480],
        ]
    ).astype(kind)
    actual = S.reduce_precision(to_array(x), *bits)
    expected = as_shipped(lambda x: jlax.reduce_precision(x, *bits))(x)
    assert_same(actual, expected, f"{bits} {kind}", exact=True)


UNARY = {
    "broadcast_in_dim": ((2, 3, 4), (1, 2)),
    "reshape": ((4, 3),),
    "transpose": ((1, 0),),
    "rev": ((1,),),
    "slice": ((1, 0), (3, 4), (1, 3)),
    "split": ((1, 2), 0),
}


@pytest.mark.parametrize("name", UNARY)
def test_every_dtype(name):
    check_dtypes(*both(name, *UNARY[name]), lambda kind: [random((3, 4), kind)])


def test_every_dtype_of_many_operands():
    check_dtypes(
        lambda x, y: S.concatenate([x, y], 1),
        lambda x, y: jlax.concatenate([x, y], 1),
        lambda kind: [random((3, 4), kind), random((3, 2), kind, seed=1)],
    )
    config = [(1, 0, 1), (-1, 2, 0)]
    check_dtypes(
        lambda x, v: S.pad(x, v, config),
        lambda x, v: jlax.pad(x, v, config),
        lambda kind: [random((3, 4), kind), random((), kind, seed=1)],
    )
    check_dtypes(
        lambda x: S.pad(x, 1, config),
        lambda x: jlax.pad(x, jnp.ones((), x.dtype), config),
        lambda kind: [random((3, 4), kind)],
    )
    check_dtypes(S.copy, jnp.copy, lambda kind: [random((3, 4), kind)])


def test_scalars_and_empties():
    for shape in [(), (0,), (2, 0, 3)]:
        x = random(shape)
        ndim = len(shape)
        check_value(lambda x, n=ndim: S.rev(x, range(n)), lambda x: jnp.flip(x), x)
        check_staged(lambda x, n=ndim: S.pad(x, 0.0, [(1, 1, 0)] * n), x)
        check_batched(lambda x, n=ndim: S.pad(x, 0.0, [(1, 1, 1)] * n), x)


def test_what_changes_nothing_records_nothing():
    def f(x):
        x = S.slice(S.reshape(S.transpose(x, (0, 1)), (3, 4)), (0, 0), (3, 4))
        return [S.concatenate([S.rev(x, ())], 0)]

    program, _ = stage(f, [typeof(to_array(random((3, 4))))])
    assert program.eqns == []


def x34():
    return to_array(random((3, 4)))


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x: S.slice(x, (0,), (1,)), "needs 2 start"),
        (lambda x: S.slice(x, (0, 2), (3, 9)), r"\[2:9\] along dimension 1 of f64\[3,4\]"),
        (lambda x: S.slice(x, (0, 0), (3, 4), (1, 0)), "must be positive"),
        (lambda x: S.pad(x, 0.0, [(0, 0, 0)]), "needs 2 .low, high, interior. triples"),
        (lambda x: S.pad(x, 0.0, [(0, 0), (0, 0)]), "triples, got"),
        (lambda x: S.pad(x, 0.0, [(0, 0, -1), (0, 0, 0)]), "interior padding -1"),
        (lambda x: S.pad(x, 0.0, [(-2, -2, 0), (0, 0, 0)]), "takes more from dimension 0"),
        (lambda x: S.pad(x, x, [(0, 0, 0)] * 2), "must be a scalar"),
        (lambda x: S.concatenate([x, S.reshape(x, (4, 3))], 0), "shapes differ elsewhere"),
        (lambda x: S.concatenate([x], 2), "axis 2 does not exist"),
        (lambda x: S.concatenate([], 0), "at least one"),
        (lambda x: S.split(x, (1, 1), 0), "must add up to the length 3"),
        (lambda x: S.rev(x, (0, 0)), "repeat"),
        (lambda x: S.squeeze(x, 0), "must have length 1"),
        (lambda x: S.tile(x, (2,)), "repetition counts"),
        (lambda x: S.reshape(x, (5,)), "12 elements"),
        (lambda x: S.broadcasted_iota(np.int32, (3,), 1), "axis 1 does not exist"),
        (lambda x: S.reduce_precision(x, 0, 3), "exponent_bits 0"),
        (lambda x: S.collapse(x, 2, 1), "collapse"),
    ],
)
def test_shape_errors(call, words):
    with pytest.raises(errors.ShapeError, match=words):
        call(x34())


@pytest.mark.parametrize(
    "call",
    [
        lambda x: S.concatenate([x, to_array(random((3, 4), np.float32))], 0),
        lambda x: S.pad(x, to_array(random((), np.float32)), [(1, 1, 0)] * 2),
        lambda x: S.iota(bool, 3),
        lambda x: S.reduce_precision(to_array(random((3,), np.int32)), 5, 10),
    ],
)
def test_dtype_errors(call):
    with pytest.raises(errors.DTypeError):
        call(x34())


def test_an_index_in_dim_out_of_range_says_where():
    with pytest.raises(IndexError, match=r"index 3 out of range for axis 0 of f64\[3,4\]"):
        S.index_in_dim(x34(), 3)


def test_jax_is_the_reference_in_64_bit():
    assert jax.config.jax_enable_x64
