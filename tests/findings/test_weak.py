"""Types of values: weak and strong operands, NumPy's scalars and the scalar types meet as in JAX.

Many functions are called with operands of every kind, eagerly and under transforms, and the dtype
and the weak mark of each result are compared with JAX's.
"""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jjnp
import numpy as np
import optax
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, nn, optim
from genesis_fn.core import dtypes

pytestmark = [
    pytest.mark.filterwarnings("ignore::genesis_fn.errors.RecompilationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

# uint32 is left out beside signed integers: they meet in int64 here, in int32 in JAX without its
# 64-bit flag. `np_` is either library's `numpy`.
OPERANDS: dict[str, Callable[[Any], Any]] = {
    "bool": lambda np_: np_.ones((3,), "bool"), "int8": lambda np_: np_.ones((3,), "int8"),
    "int32": lambda np_: np_.ones((3,), "int32"), "uint8": lambda np_: np_.ones((3,), "uint8"),
    "bfloat16": lambda np_: np_.ones((3,), "bfloat16"),
    "float16": lambda np_: np_.ones((3,), "float16"),
    "float32": lambda np_: np_.ones((3,), "float32"),
    "complex64": lambda np_: np_.ones((3,), "complex64"),
    "True": lambda np_: True, "3": lambda np_: 3, "2.5": lambda np_: 2.5, "1j": lambda np_: 1 + 1j,
    "weak int": lambda np_: np_.full((3,), 2), "weak float": lambda np_: np_.arange(3) * 0.5,
    "weak complex": lambda np_: np_.ones((3,), "int32") * 1j,
    "weak scalar": lambda np_: np_.asarray(2) * 0.5,
    "np.int8": lambda np_: np.int8(2), "np.int64": lambda np_: np.int64(2),
    "np.float16": lambda np_: np.float16(2), "np.float32": lambda np_: np.float32(2),
    "np.float64": lambda np_: np.float64(2), "np.complex64": lambda np_: np.complex64(2),
    "np.bfloat16": lambda np_: dtypes.BF16.type(2),
    "jnp.float32": lambda np_: np_.float32(2), "jnp.bfloat16": lambda np_: np_.bfloat16(2),
    "float64 ndarray": lambda np_: np.ones(3), "int64 ndarray": lambda np_: np.arange(3),
}  # fmt: skip

ONE = (
    "abs negative sign square sqrt exp log sin tanh floor ceil rint round real imag conj sum prod "
    "mean var std max min any all argmax cumsum cumprod median ptp sort argsort ravel zeros_like "
    "ones_like asarray array atleast_1d nansum nanmean nanmax nanvar cbrt log2 log10 log1p expm1 "
    "exp2 sinc i0 deg2rad signbit spacing nan_to_num isnan isposinf logical_not count_nonzero "
    "reciprocal nanstd nanmedian average copy isfinite transpose fabs"
).split()
TWO = (
    "add subtract multiply divide maximum minimum floor_divide remainder fmod power float_power "
    "logaddexp2 hypot copysign fmax fmin gcd lcm equal less bitwise_and logical_and isclose dot "
    "inner outer vdot kron append tensordot arctan2 nextafter array_equal left_shift vecdot_ "
    "where_ clip_ concatenate_ stack_ array_ full_like_ full_ select_ set_ add_ linspace_ average_ "
    "interp_ quantile_ cross_ insert_ pad_ cov_ trapezoid_ polyval_ divmod_ einsum_ isin_ union_ "
    "initial_ greatest_ histogram_ bincount_ unwrap_ gradient_ mixed_ setdiff_ place_ choose_"
).split()


def _flat(np_: Any, x: Any) -> Any:
    return np_.broadcast_to(np_.asarray(x), (3,))


def _number(y: Any) -> Any:
    return y if np.ndim(y) == 0 else 0


CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "vecdot_": lambda n, x, y: n.vecdot(_flat(n, x), _flat(n, y)),
    "where_": lambda n, x, y: n.where(n.array([True, False, True]), x, y),
    "clip_": lambda n, x, y: n.clip(x, y, None),
    "concatenate_": lambda n, x, y: n.concatenate([n.atleast_1d(x), n.atleast_1d(y)]),
    "stack_": lambda n, x, y: n.stack([_flat(n, x), _flat(n, y)]),
    "array_": lambda n, x, y: n.array([_flat(n, x)[0], _flat(n, y)[0]]),
    "full_like_": lambda n, x, y: n.full_like(x, y),
    "full_": lambda n, x, y: n.full((3,), y),
    "select_": lambda n, x, y: n.select([n.array([True, False, True])], [_flat(n, x)], _number(y)),
    "set_": lambda n, x, y: n.asarray(x).at[...].set(y),
    "add_": lambda n, x, y: n.atleast_1d(x).at[0].add(_number(y)),
    "linspace_": lambda n, x, y: n.linspace(x, y, 4),
    "average_": lambda n, x, y: n.average(_flat(n, x), weights=_flat(n, y)),
    "interp_": lambda n, x, y: n.interp(x, n.array([0.0, 1.0, 2.0]), _flat(n, y)),
    "quantile_": lambda n, x, y: n.quantile(x, y),
    "cross_": lambda n, x, y: n.cross(_flat(n, x), _flat(n, y)),
    "insert_": lambda n, x, y: n.insert(n.atleast_1d(x), 0, y),
    "pad_": lambda n, x, y: n.pad(n.atleast_1d(x), 1, constant_values=_number(y)),
    "cov_": lambda n, x, y: n.cov(_flat(n, x), _flat(n, y)),
    "trapezoid_": lambda n, x, y: n.trapezoid(_flat(n, x), _flat(n, y)),
    "polyval_": lambda n, x, y: n.polyval(n.atleast_1d(x), y),
    "divmod_": lambda n, x, y: n.divmod(x, y)[1],
    "einsum_": lambda n, x, y: n.einsum("i,i->i", _flat(n, x), _flat(n, y)),
    "isin_": lambda n, x, y: n.isin(x, y),
    "union_": lambda n, x, y: n.union1d(x, y, size=4),
    "initial_": lambda n, x, y: n.sum(n.asarray(x), initial=_number(y)),
    "greatest_": lambda n, x, y: n.max(n.asarray(x), initial=_number(y)),
    "histogram_": lambda n, x, y: n.histogram(_flat(n, x), weights=_flat(n, y))[0],
    "bincount_": lambda n, x, y: n.bincount(n.array([0, 1, 1]), weights=_flat(n, y), length=2),
    "unwrap_": lambda n, x, y: n.unwrap(n.atleast_1d(x)),
    "gradient_": lambda n, x, y: n.gradient(_flat(n, x), y if np.ndim(y) == 0 else 1.0),
    "mixed_": lambda n, x, y: n.asarray(x) * 0.5 * y,
    "setdiff_": lambda n, x, y: n.setdiff1d(x, y, size=2),
    "place_": lambda n, x, y: n.place(n.asarray(x), n.asarray(x) > 0, y, inplace=False),
    "choose_": lambda n, x, y: n.choose(n.array([0, 1, 0]), [_flat(n, x), _flat(n, y)]),
}  # fmt: skip

# Where JAX's own mark is an accident of how a function is written there, or depends on more than
# the operands: (function, reason).
APART = {
    "heaviside": "weak or strong by which of its two operands is an integer",
    "angle": "strong and float32 for scalars, weak and of the operand's dtype for arrays",
    "log2": "strong up to JAX 0.10, weak since",
    "det": "weak up to 3 x 3 matrices, strong above; slogdet likewise",
}


def _kind(x: Any) -> str:
    x = x[0] if isinstance(x, (list, tuple)) else x
    return f"{np.dtype(x.dtype).name}{' weak' if x.weak_type else ''}"


def _call(np_: Any, name: str, *xs: Any) -> Any:
    return CALLS[name](np_, *xs) if name in CALLS else getattr(np_, name)(*xs)


def _theirs(f: Callable, *xs: Any) -> str | None:
    """The kind of JAX's result, None where JAX refuses."""
    try:
        return _kind(jax.eval_shape(f, *xs))
    except (TypeError, ValueError, OverflowError, IndexError):
        return None


def _complex(*names: str) -> bool:
    return any("complex" in n or n == "1j" for n in names)


def _differences(names: list[str], pairs: list[tuple[str, ...]], mode: str) -> list[str]:
    wrong = []
    for name in names:
        if name in APART:
            continue
        for operands in pairs:
            theirs = [OPERANDS[o](jjnp) for o in operands]
            ours = [OPERANDS[o](jnp) for o in operands]
            if name == "gradient_" and not all(np.ndim(x) for x in ours[:1]):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                want = _theirs(lambda: _call(jjnp, name, *theirs))
                if want is None or (_complex(*operands) and name in _NO_COMPLEX):
                    continue
                call = (lambda *xs: _call(jnp, name, *xs)) if mode == "eager" else None
                if mode == "jit":
                    want = _theirs(lambda *xs: _call(jjnp, name, *xs), *theirs)
                    call = gf.jit(lambda *xs: _call(jnp, name, *xs))
                if want is None:
                    continue
                try:
                    got = _kind(call(*ours))
                except (TypeError, ValueError) as error:
                    got = f"{type(error).__name__}: {error}"
            if got != want:
                wrong.append(f"{name}({', '.join(operands)}): {got}, in JAX {want}")
    return wrong


# Complex operands of these are a matter of their own.
_NO_COMPLEX = {
    "less", "maximum", "minimum", "fmax", "fmin", "logaddexp2", "interp_", "clip_", "rint",
    "greatest_", "nanmax", "spacing", "copysign", "bitwise_and", "hypot", "union_", "isin_",
    "setdiff_", "arctan2", "nextafter", "heaviside", "unwrap_", "round", "median", "nanmedian",
    "set_", "add_", "full_like_", "full_", "place_", "insert_", "histogram_", "average_",
    "initial_", "float_power", "isclose", "pad_", "sort", "max", "min", "ptp",
}  # fmt: skip


def test_c04_every_function_of_one_operand_gives_jaxs_type():
    assert not _differences(ONE, [(o,) for o in OPERANDS], "eager")


@pytest.mark.parametrize("part", range(4))
def test_c04_every_function_of_two_operands_gives_jaxs_type(part):
    draw = random.Random(part)
    kinds = list(OPERANDS)
    for name in TWO[part::4]:
        pairs = [(draw.choice(kinds), draw.choice(kinds)) for _ in range(10)]
        wrong = _differences([name], pairs, "eager")
        assert not wrong, "\n".join(wrong[:10])


def test_c04_and_the_same_under_jit():
    draw = random.Random(5)
    for name in TWO[::4]:
        pairs = [(draw.choice(list(OPERANDS)), draw.choice(list(OPERANDS))) for _ in range(2)]
        wrong = _differences([name], pairs, "jit")
        assert not wrong, "\n".join(wrong[:10])


# What runs under a transform: (the transforms, numpy, lax, operands) -> a tree of results.
AROUND: dict[str, Callable[[Any, Any, Any, Any, Any], Any]] = {
    "jit": lambda t, n, k, x, y: t.jit(lambda a, b: (a, b, a * b, a * 0.5, a / 2))(x, y),
    "vmap": lambda t, n, k, x, y: t.vmap(lambda a: (a * 0.5 * y, a, a + 1))(_flat(n, x)),
    "vmap shared": lambda t, n, k, x, y: t.vmap(lambda a, b: a * b, (0, None))(_flat(n, x), y),
    "grad": lambda t, n, k, x, y: t.grad(
        lambda a, b: n.sum((a * b).astype("float32")), (0, 1))(x, y),
    "jvp": lambda t, n, k, x, y: t.jvp(lambda a: (a * 2.0, n.sin(a)), (x,), (x,)),
    "jacrev": lambda t, n, k, x, y: t.jacrev(lambda a: a * 2.0)(x),
    "scan": lambda t, n, k, x, y: k.scan(lambda c, v: (c + v, c * 0.5), 0.0, _flat(n, x)),
    "scan carry": lambda t, n, k, x, y: k.scan(
        lambda c, v: (n.sum(c * y), c), 1.0, None, length=2),
    "scan through": lambda t, n, k, x, y: k.scan(lambda c, v: (c * 1, (c, y)), x, None, length=2),
    "while": lambda t, n, k, x, y: k.while_loop(
        lambda c: c[1] < 2, lambda c: (c[0] + n.sum(n.asarray(y)), c[1] + 1), (0.0, 0)),
    "fori": lambda t, n, k, x, y: k.fori_loop(0, 2, lambda i, c: c + i * 0.5, x),
    "cond": lambda t, n, k, x, y: k.cond(
        n.array(True), lambda a, b: a, lambda a, b: b, n.sum(n.asarray(x)), n.sum(n.asarray(y))),
    "cond of a number": lambda t, n, k, x, y: k.cond(
        n.array(True), lambda: 1.0, lambda: n.sum(n.asarray(x)) * 1.0),
    "eval_shape": lambda t, n, k, x, y: t.eval_shape(lambda a, b: (a * b, a * 0.5, a), x, y),
    "map": lambda t, n, k, x, y: k.map(lambda a: (a * 0.5, a * y), _flat(n, x)),
    "scalar types": lambda t, n, k, x, y: (
        n.float32(x) * n.ones(3, "bfloat16"), n.bfloat16(x), n.bool_(x)),
    "pmean": lambda t, n, k, x, y: t.vmap(
        lambda a: (k.psum(a, "i"), k.pmean(a, "i")), axis_name="i")(_flat(n, x)),
}  # fmt: skip
_AROUND_OPERANDS = (
    "bfloat16", "float32", "int32", "3", "2.5", "weak int", "weak float", "weak scalar",
    "np.float32", "np.float64", "np.int64", "jnp.float32",
)  # fmt: skip


@pytest.mark.parametrize("name", AROUND)
def test_c04_types_go_through_transforms_as_in_jax(name):
    wrong = []
    draw = random.Random(name)
    for a in _AROUND_OPERANDS:
        b = draw.choice(_AROUND_OPERANDS)
        try:
            want = AROUND[name](jax, jjnp, jax.lax, OPERANDS[a](jjnp), OPERANDS[b](jjnp))
        except TypeError:  # JAX does not take these, such as integers to differentiate
            continue
        got = AROUND[name](gf, jnp, lax, OPERANDS[a](jnp), OPERANDS[b](jnp))
        ours = [_kind(x) for x in gf.tree.leaves(got)]
        theirs = [_kind(x) for x in jax.tree.leaves(want)]
        if ours != theirs:
            wrong.append(f"{a}, {b}: {ours}, in JAX {theirs}")
    assert not wrong, "\n".join(wrong)


def test_c04_integers_meet_in_64_bits_without_a_flag():
    assert (jnp.ones(2, "uint32") + jnp.ones(2, "int32")).dtype == "int64"
    with jax.enable_x64(True):
        theirs = jjnp.ones(2, "uint64") + jjnp.ones(2, "int64")
        assert _kind(theirs) == "float64 weak"
        assert _kind(theirs * jjnp.ones(2, "bfloat16")) == "bfloat16"
    ours = jnp.ones(2, "uint64") + jnp.ones(2, "int64")
    assert _kind(ours) == "float64 weak"
    assert _kind(ours * jnp.ones(2, "bfloat16")) == "bfloat16"
    assert _kind(ours * 0.5) == _kind(ours + jnp.ones(2, "int32")) == "float64 weak"
    assert _kind(ours + jnp.ones(2, "float64")) == "float64"


@pytest.mark.parametrize("door", ["operator", "reflected", "function", "lax", "where", "at", "jit"])
def test_c04_a_wide_numpy_value_is_not_rounded_on_its_way_to_a_wide_array(door):
    tenth, x = np.float64(0.1), jnp.ones(3, "float64")
    got = {
        "operator": lambda: x * tenth,
        "reflected": lambda: tenth * x,
        "function": lambda: jnp.multiply(x, np.full(3, 0.1)),
        "lax": lambda: lax.mul(x, tenth),
        "where": lambda: jnp.where(x > 0, tenth, x),
        "at": lambda: x.at[...].set(tenth),
        "jit": lambda: gf.jit(lambda a: a * tenth)(x),
    }[door]()
    assert got.dtype == "float64" and not got.weak_type
    np.testing.assert_array_equal(np.asarray(got), np.ones(3) * 0.1)
    assert (jnp.ones(3, "int64") + np.int64(2**40)).tolist() == [2**40 + 1] * 3


@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_c04_noisy_sgd_keeps_the_parameters_dtype(dtype, jitted):
    """A schedule of an integer step times bfloat16 noise: JAX's arithmetic, with optax's form."""
    steps = 3

    def run(t, np_, lax_, x):
        def variance(count):
            return 0.01 / (1 + count) ** 0.55

        def body(state):
            count, w = state
            noise = np_.sqrt(variance(count)) * np_.ones_like(w)
            w = lax_.cond(count % 2 == 0, lambda v: v + noise, lambda v: v - noise, w)
            return count + 1, (w - 0.5 * (count > 1) * w)

        body = t.jit(body) if jitted else body
        state = np_.asarray(np.int32(0)), x
        for _ in range(steps):
            state = body(state)
        return state[1]

    got = run(gf, jnp, lax, jnp.ones(3, dtype))
    want = run(jax, jjnp, jax.lax, jjnp.ones(3, dtype))
    assert _kind(got) == _kind(want) == dtype
    np.testing.assert_allclose(
        np.asarray(got, "float32"),
        np.asarray(want, "float32"),
        rtol=2e-2 if dtype != "float32" else 1e-6,
    )
    theirs = optax.noisy_sgd(0.1, eta=0.01, gamma=0.55, key=jax.random.key(0))
    params = {"w": jjnp.ones(3, dtype)}
    updates, _ = theirs.update(params, theirs.init(params), params)
    assert updates["w"].dtype == dtype
    mine = optim.noisy_sgd(0.1, eta=0.01, gamma=0.55, key=gf.random.key(0))
    own = {"w": jnp.ones(3, dtype)}
    update = gf.jit(mine.update) if jitted else mine.update
    moved, _ = update(own, mine.init(own), own)
    assert optim.apply_updates(own, moved)["w"].dtype == dtype


# ---- scalar types ----

TYPES = (
    "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128",
)  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_b22_a_scalar_type_is_a_dtype_wherever_one_is_asked_for(name):
    t, theirs = getattr(jnp, name), getattr(jjnp, name)
    assert t is getattr(gf.dtypes, name)
    assert isinstance(t.dtype, np.dtype) and t.dtype == theirs.dtype == np.dtype(t) == jnp.dtype(t)
    assert t == theirs.dtype.type and theirs.dtype.type == t and t == t.dtype and t.dtype == t
    assert hash(t) == hash(theirs) and {t: 1}[theirs.dtype.type] == 1
    assert t != "no dtype" and [u for u in TYPES if getattr(jnp, u) == t] == [name]
    for dtype in (
        jnp.zeros(2, t).dtype,
        jnp.ones((2,), dtype=t).dtype,
        np.zeros(2, t).dtype,
        jnp.zeros(2).astype(t).dtype,
        jnp.asarray([1, 0], t).dtype,
        np.ones(2).astype(t).dtype,
        lax.convert_element_type(1, t).dtype,
        jnp.zeros(2, "bool").astype(dtype=t).dtype,
        jnp.full((2,), 1, t).dtype,
        gf.ShapeDtypeStruct((), t).dtype,
        jnp.promote_types(t, t),
        jnp.result_type(t),
        jnp.sum(jnp.zeros(2, t), dtype=t).dtype,
    ):
        assert dtype == t.dtype
    for abstract in (np.generic, np.number, np.integer, np.floating, np.complexfloating, np.bool_):
        assert jnp.issubdtype(t, abstract) == jjnp.issubdtype(theirs, abstract)
    assert jnp.issubdtype(t, t) and jnp.issubdtype(t.dtype, t)
    if jnp.issubdtype(t, np.inexact):
        assert float(jnp.finfo(t).max) == float(jjnp.finfo(theirs).max)
    elif name != "bool_":
        assert jnp.iinfo(t).max == jjnp.iinfo(theirs).max
    assert pickle.loads(pickle.dumps(t)) is copy.deepcopy(t) is t
    assert repr(t) == f"<class 'genesis_fn.numpy.{name}'>" and t.__doc__
    assert isinstance(t.dtype.type(1), t) == isinstance(t.dtype.type(1), theirs) is True
    assert not isinstance(t(1), t)


@pytest.mark.parametrize("name", TYPES)
def test_b22_a_call_makes_a_strong_array_and_casts_tracers(name):
    t = getattr(jnp, name)
    given = np.array([0, 1, 3], "int32")
    with jax.enable_x64(True):
        want = np.asarray(getattr(jjnp, name)(given))
    for got in (
        t(given),
        t(jnp.asarray(given)),
        gf.jit(t)(given),
        gf.vmap(t)(jnp.asarray(given)),
        gf.jit(gf.vmap(lambda x: t(x)))(given),
        t([0, 1, 3]),
        t(jnp.asarray(given) * 1),
        lax.map(t, jnp.asarray(given)),
        lax.scan(lambda c, x: (c, t(x)), 0, given)[1],
    ):
        assert isinstance(got, gf.Array) and got.dtype == t.dtype and not got.weak_type
        np.testing.assert_array_equal(np.asarray(got), want)
    for one in (t(1), t(True), t(np.float64(1)), t(jnp.asarray(1.0)), gf.jit(t)(1.0)):
        assert one.dtype == t.dtype and one.shape == () and not one.weak_type and bool(one == 1)


def test_b22_a_scalar_type_beside_bfloat16():
    x, theirs = jnp.ones(3, "bfloat16"), jjnp.ones(3, "bfloat16")
    for name in ("float32", "bfloat16", "int32", "float16", "bool_"):
        got = getattr(jnp, name)(2) * x
        assert _kind(got) == _kind(getattr(jjnp, name)(2) * theirs), name
    assert (
        gf.jit(lambda a, dtype: a.astype(dtype), static_argnames="dtype")(
            x, dtype=jnp.float32
        ).dtype
        == "float32"
    )
    assert gf.jit(lambda a: a * jnp.float32(2))(x).dtype == "float32"


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "complex64"])
def test_a01_a_cast_by_a_scalar_type_is_differentiated(name):
    ours, theirs = getattr(jnp, name), getattr(jjnp, name)
    got = gf.grad(lambda x: jnp.real(ours(x) ** 2).astype("float32"))(1.5)
    want = jax.grad(lambda x: jjnp.real(theirs(x) ** 2).astype("float32"))(1.5)
    assert float(got) == float(want) == 3.0 and got.weak_type == want.weak_type
    assert float(gf.jit(gf.grad(lambda x: jnp.float32(x) ** 2))(1.5)) == 3.0
    per = gf.vmap(gf.grad(lambda x: jnp.real(ours(x) ** 2).astype("float32")))(jnp.arange(3.0))
    assert per.tolist() == [0.0, 2.0, 4.0]
    assert float(gf.jvp(jnp.float32, (1.5,), (2.0,))[1]) == 2.0


def test_m12_a_scalar_type_takes_a_traced_value():
    for t in (jnp.float32, jnp.int32, jnp.bool_, jnp.bfloat16, gf.dtypes.float32):
        assert gf.jit(lambda x, t=t: t(x))(1).dtype == t.dtype
        assert gf.make_jaxpr(t)(1.0) is not None
        assert gf.grad(lambda x, t=t: t(x).astype("float32") * x)(2.0).shape == ()
    with pytest.raises(TypeError):
        jnp.float32("a text")


# ---- reductions and statistics ----

_RESULTS = ("int8", "int32", "uint8", "float16", "bfloat16", "float32", "complex64", "bool")
_REDUCE_OPERANDS = ("bool", "int8", "int32", "uint8", "float16", "bfloat16", "float32", "complex64")


@pytest.mark.parametrize("name", [
    "sum", "prod", "mean", "var", "std", "nansum", "nanprod", "nanmean", "nanvar", "nanstd",
    "cumsum", "cumprod", "nancumsum", "cumulative_sum",
])  # fmt: skip
def test_a16_results_have_the_dtype_asked_for_as_in_jax(name):
    wrong = []
    for a in _REDUCE_OPERANDS:
        for d in _RESULTS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                want = _theirs(lambda: getattr(jjnp, name)(OPERANDS[a](jjnp), dtype=d))
            if want is None or (d == "bool" and "cum" in name):
                continue
            got = _kind(getattr(jnp, name)(OPERANDS[a](jnp), dtype=d))
            if got != want:
                wrong.append(f"{name}({a}, dtype={d}): {got}, in JAX {want}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "nansum", "nanmax"])
def test_a16_an_initial_value_does_not_change_the_dtype(name):
    wrong = []
    for a in _REDUCE_OPERANDS:
        for start in (0, 1.5, True, np.float32(1), np.int8(1)):
            if a == "complex64" and name[-3:] in ("max", "min"):
                continue
            want = _theirs(lambda: getattr(jjnp, name)(OPERANDS[a](jjnp), initial=start))
            if want is None:
                continue
            x = OPERANDS[a](jnp)
            eager = _kind(getattr(jnp, name)(x, initial=start))
            jitted = _kind(gf.jit(lambda v: getattr(jnp, name)(v, initial=start))(x))
            if not eager == jitted == want:
                wrong.append(f"{name}({a}, initial={start!r}): {eager}, {jitted}, in JAX {want}")
    assert not wrong, "\n".join(wrong)
    assert jnp.max(jnp.array([True, False]), initial=0).dtype == "bool"


@pytest.mark.parametrize("name", ["quantile", "percentile", "nanquantile", "nanpercentile"])
def test_a16_quantiles_have_the_dtype_of_the_array(name):
    for a in ("int32", "bfloat16", "float32"):
        for q in (0.5, np.float32(0.5), np.float64(0.5), "array", "half"):

            def at(np_, q=q):
                return (
                    np_.asarray(0.5, {"array": "float32", "half": "float16"}[q])
                    if (isinstance(q, str))
                    else q
                )

            want = _kind(getattr(jjnp, name)(OPERANDS[a](jjnp), at(jjnp)))
            x, own = OPERANDS[a](jnp), at(jnp)
            assert _kind(getattr(jnp, name)(x, own)) == want, (a, q)
            assert _kind(gf.jit(getattr(jnp, name))(x, own)) == want, (a, q)
    f64 = jnp.asarray(np.arange(11.0), "float64")
    assert float(getattr(jnp, name)(f64, np.float64(0.1))) == pytest.approx(
        float(getattr(np, name)(np.arange(11.0), 0.1)), rel=1e-15
    )


def test_a16_the_deviation_of_complex_numbers_has_the_dtype_of_a_part():
    x, theirs = OPERANDS["complex64"](jnp), OPERANDS["complex64"](jjnp)
    for name in ("std", "var", "nanstd", "nanvar"):
        want = _theirs(lambda: getattr(jjnp, name)(theirs, dtype="complex64"))
        assert _kind(getattr(jnp, name)(x, dtype="complex64")) == want, name


@pytest.mark.parametrize("name", [
    "relu", "relu6", "sigmoid", "silu", "gelu", "softplus", "soft_sign", "log_sigmoid", "elu",
    "leaky_relu", "hard_sigmoid", "hard_swish", "hard_tanh", "celu", "selu", "squareplus", "mish",
    "softmax", "log_softmax", "logsumexp", "standardize",
])  # fmt: skip
def test_c04_activations_give_jaxs_type(name):
    wrong = []
    for a in OPERANDS:
        x = OPERANDS[a](jnp)
        if _complex(a) or (np.ndim(x) == 0 and name in ("softmax", "log_softmax", "standardize")):
            continue
        want = _theirs(lambda: getattr(jax.nn, name)(OPERANDS[a](jjnp)))
        if want is not None and (got := _kind(getattr(nn, name)(x))) != want:
            wrong.append(f"{name}({a}): {got}, in JAX {want}")
    assert not wrong, "\n".join(wrong)
