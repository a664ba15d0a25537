"""Weak types: dtypes of operations on Python scalars and arrays are JAX's, whatever is around."""

from __future__ import annotations

import jax
import jax.numpy as jjnp
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax
from genesis_fn.core import dtypes

# One function is traced for many types here on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::genesis_fn.errors.RecompilationWarning")

SCALARS = {"bool": True, "int": 3, "float": 2.5, "complex": 1.5 + 2.0j}
DTYPES = (
    "bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "bfloat16", "float16", "float32",
    "complex64",
)  # fmt: skip
WIDE = ("int64", "uint64", "float64", "complex128")

# What happens to the scalar before it meets the array.
MAKE = {
    "itself": lambda np_, s: s,
    "sum": lambda np_, s: np_.add(s, s),
    "function": lambda np_, s: np_.cos(s),
    "filled": lambda np_, s: np_.full((2,), s),
    "chosen": lambda np_, s: np_.where(np_.array([True, False]), s, np_.multiply(s, 2)),
    "array": lambda np_, s: np_.asarray(s),
    "cast": lambda np_, s: np_.asarray(s).astype(np_.float32),
}

OPERATIONS = {
    "add": lambda np_, s, x: s + x,
    "divide": lambda np_, s, x: np_.divide(x, s),
    "where": lambda np_, s, x: np_.where(np_.array([True, False]), x, s),
    "less": lambda np_, s, x: np_.equal(s, x),
}


def around(lib, np_, lax_):
    """Name -> what runs `make` on the scalar and `use` on its result and the array."""
    return {
        "eager": lambda make, use, s, x: use(make(s), x),
        "jit": lambda make, use, s, x: lib.jit(lambda a, b: use(make(a), b))(s, x),
        "closed over": lambda make, use, s, x: lib.jit(lambda b: use(make(s), b))(x),
        "inner jit": lambda make, use, s, x: lib.jit(lambda a, b: use(lib.jit(make)(a), b))(s, x),
        "jit, then eager": lambda make, use, s, x: use(lib.jit(make)(s), x),
        "vmap": lambda make, use, s, x: lib.vmap(lambda a, b: use(make(a), b), (None, 0))(
            s, np_.stack([x, x])
        ),
        "vmap of weak": lambda make, use, s, x: lib.vmap(lambda a, b: use(make(a), b))(
            np_.full((2,), s), np_.stack([x, x])
        ),
        "scan carry": lambda make, use, s, x: lax_.scan(
            lambda c, _: (c, use(make(c), x)), s, None, length=2
        )[1],
        "scan constant": lambda make, use, s, x: lax_.scan(
            lambda c, b: (c, use(make(s), b)), 0, np_.stack([x, x])
        )[1],
        "cond": lambda make, use, s, x: use(
            lax_.cond(np_.array(True), lambda a: make(a), lambda a: make(a), s), x
        ),
        "checkpoint": lambda make, use, s, x: lib.jit(lambda a, b: use(lib.checkpoint(make)(a), b))(
            s, x
        ),
        "custom": lambda make, use, s, x: lib.jit(lambda a, b: use(_custom(lib, make)(a), b))(s, x),
    }


def _custom(lib, make):
    f = lib.custom_vjp(make)
    f.defvjp(lambda a: (make(a), None), lambda _, ct: (None,))
    return f


OURS, THEIRS = around(gf, jnp, lax), around(jax, jjnp, jax.lax)


def _result(modes, np_, mode, make, operation, s, x):
    def use(a, b):
        return OPERATIONS[operation](np_, a, b)

    return modes[mode](lambda a: MAKE[make](np_, a), use, s, x)


@pytest.mark.parametrize("mode", OURS)
@pytest.mark.parametrize("kind", SCALARS)
def test_every_dtype_meets_every_scalar_as_in_jax(kind, mode):
    s, wrong = SCALARS[kind], []
    full = mode in ("eager", "jit")
    makes = MAKE if full or mode == "inner jit" else ("itself", "sum")
    cases = [
        (make, name, operation)
        for make in makes
        # JAX warns of the one, and of the other it makes a strong float32.
        if (make, kind) not in (("cast", "complex"), ("function", "bool"))
        for name in DTYPES
        for operation in (OPERATIONS if full else ("add",))
    ]

    def theirs():
        return [
            _result(THEIRS, jjnp, mode, make, operation, s, jjnp.ones(2, dtypes.dtype(name)))
            for make, name, operation in cases
        ]

    for (make, name, operation), want in zip(cases, jax.eval_shape(theirs), strict=True):
        x = jnp.ones(2, name)
        got = _result(OURS, jnp, mode, make, operation, s, x).dtype
        if got != want.dtype:
            wrong.append(f"{operation}({make} of {kind}, {name}): {got}, in JAX {want.dtype}")
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("name", WIDE)
@pytest.mark.parametrize("mode", OURS)
def test_scalars_of_the_same_kind_follow_64_bit_arrays(name, mode):
    d = dtypes.dtype(name)
    for kind, s in SCALARS.items():
        if list(SCALARS).index(kind) <= dtypes.kind_rank(d):
            for make in ("itself", "sum"):
                x = jnp.asarray(np.ones(2, d), dtype=d)
                assert _result(OURS, jnp, mode, make, "add", s, x).dtype == d, (kind, make)


@pytest.mark.parametrize("mode", ["grad", "jvp", "linearize", "hessian"])
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_differentiated_scalars_stay_weak(mode, name):
    seen = []

    def run(lib, np_, seen):
        x = np_.ones(2, name)

        def f(s):
            y = np_.sin(s * 2.0) * x
            seen.append((y.dtype.name, np_.sin(s).weak_type))
            return np_.sum(y.astype(np_.float32))

        if mode == "jvp":
            return lib.jvp(f, (2.0,), (1.0,))[1]
        if mode == "linearize":
            return lib.linearize(f, 2.0)[1](1.0)
        return getattr(lib, mode)(f)(2.0)

    ours, theirs = [], []
    got, want = run(gf, jnp, ours), run(jax, jjnp, theirs)
    assert set(ours) == set(theirs) == {(name, True)}
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-2)
    if mode == "grad":
        assert got.weak_type and want.weak_type
    del seen


def test_results_of_scalars_only_are_weak_and_casts_are_not():
    weak = [
        jnp.sqrt(64),
        jnp.add(1, 2),
        jnp.asarray(1.0),
        jnp.full((2,), 3),
        jnp.maximum(1, 2.0),
        jnp.where(jnp.array(True), 1.0, 2.0),
        gf.jit(lambda a: a * 2)(1.0),
        gf.grad(jnp.sin)(1.0),
        lax.fori_loop(0, 3, lambda i, c: c * 2, 1.0),
        jnp.broadcast_to(1.0, (2,)),
        jnp.abs(-1j),
        lax.add(1.0, 2.0),
        jnp.equal(1, 2),
        lax.scan(lambda c, x: (c * 2, c), 1.0, None, 3)[1],
        gf.vmap(lambda a: a * 2.0)(jnp.full((3,), 1.0)),
        jnp.full((3,), 1.0)[1],
        gf.device_put(1.0),
    ]
    strong = [
        jnp.asarray(1.0).astype("float32"),
        lax.convert_element_type(1.0, "float32"),
        lax.convert_element_type(jnp.asarray(1.0), "float32"),
        jnp.asarray(1.0, "float32"),
        jnp.array([1.0]),
        jnp.zeros(2),
        jnp.arange(3),
        jnp.full((2,), 3.0, "float32"),
        jnp.argmax(jnp.full((3,), 1.0)),
        jnp.asarray(np.float32(1)),
        lax.scan(lambda c, x: (c + x, c), 0.0, jnp.ones(3))[0],
        jnp.sum(jnp.full((3,), 1.0), dtype="float32"),
        gf.jit(lambda a: a.astype("float32"))(1.0),
        jnp.ones(3) + 1.0,
        jnp.ones(2) * jnp.sqrt(2.0),
    ]
    assert [x.weak_type for x in weak] == [True] * len(weak)
    assert [x.weak_type for x in strong] == [False] * len(strong)


def test_dtypes_in_the_body_of_a_loop_with_a_weak_carry():
    x16 = np.ones(3, dtypes.BF16)

    def run(lib, np_, lax_, loop):
        x, seen = np_.asarray(x16), []

        def body(c, x32):
            seen.append(np_.add(c, x).dtype.name)
            return c + x32, c

        if loop == "scan":
            return lax_.scan(body, 0.0, np_.ones(3))[0].dtype.name, seen[-1]
        one = np_.asarray(np.float32(1.0))
        result = lax_.while_loop(lambda c: c < 3, lambda c: body(c, one)[0], 0.0)
        return result.dtype.name, seen[-1]

    for loop in ("scan", "while"):
        assert run(gf, jnp, lax, loop) == run(jax, jjnp, jax.lax, loop)


def test_a_weak_array_and_a_strong_one_have_programs_of_their_own():
    f = gf.jit(lambda s, x: s * x)
    x = jnp.ones(2, "bfloat16")
    for _ in range(2):
        assert f(2.0, x).dtype == "bfloat16"
        assert f(jnp.asarray(2.0), x).dtype == "bfloat16"
        assert f(np.float32(2.0), x).dtype == "float32"  # a NumPy scalar has its own dtype
        assert f(jnp.asarray(2.0, "float32"), x).dtype == "float32"
    assert len(f.traces) == 2


def test_what_a_python_float_made_of_integers_is_weak():
    for y in (jnp.arange(3) + 1.0, jnp.arange(3) ** 0.5, (jnp.arange(3) > 1) * 0.5):
        assert y.dtype == "float32" and y.weak_type
        assert (y + jnp.ones(3, "bfloat16")).dtype == "bfloat16"
    assert not (jnp.arange(3) / 2).weak_type
