"""`enable_x64`: dtypes and values are JAX's with its flag, and every public function follows it.

Without the setting nothing differs, which the rest of the tests says.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import tree
from tests.public.agree import Entry
from tests.public.entries_lax import LAX
from tests.public.entries_numpy import FFT, LINALG, NUMPY
from tests.public.entries_special import NUMPY_MORE, SPECIAL_MORE
from tests.public.entries_stats import STATS

DTYPES = "bool int8 int32 int64 uint8 uint32 uint64 bfloat16 float32 float64 complex64".split()
NUMBERS = (2, 1.5, True, 1j, np.int64(2), np.float64(2.5), np.float32(2), np.arange(1, 3))


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with gf.enable_x64(), jax.enable_x64(True), gf.default_prng_impl("threefry2x32"):
        yield


def same(mine: Any, theirs: Any, what: str = "", bound: float = 1e-12) -> None:
    """Structure, dtypes and values agree; narrow results to their own precision."""
    ours, want = tree.leaves(mine), jax.tree.leaves(theirs)
    assert len(ours) == len(want), what
    for x, y in zip(ours, want):
        assert str(np.asarray(x).dtype) == str(np.asarray(y).dtype), what
        narrow = {2: 1e-2, 4: 2e-5}.get(np.real(np.asarray(y)).dtype.itemsize, bound)
        a, b = [np.asarray(v).astype(np.complex128) for v in (x, y)]
        np.testing.assert_allclose(a, b, rtol=narrow, atol=narrow, err_msg=what)


# ---- what is made without a dtype ----

MADE: list[Callable[[Any], Any]] = [
    lambda n: [n.zeros(2), n.ones(2), n.full(2, 1), n.full(2, 1.0), n.eye(2), n.empty(2)],
    lambda n: [n.linspace(0, 1, 3), n.arange(3), n.arange(3.0), n.arange(0, 1, 0.5)],
    lambda n: [n.logspace(0, 1, 3), n.geomspace(1, 2, 3), n.indices((2,)), n.mgrid[0:2]],
    lambda n: [n.zeros_like(1.0), n.full_like(np.ones(2), 2), n.ones_like(np.arange(2))],
    lambda n: [n.asarray(3), n.asarray(3.0), n.asarray(1j), n.array([1, 2.0]), n.array([True])],
    lambda n: [n.asarray(np.arange(3)), n.array(np.ones(2)), n.array(np.uint64(2**40))],
    lambda n: [n.ones(2, float), n.ones(2, int), n.ones(2, complex), n.ones(2, "float32")],
    lambda n: [n.ones(2, "float32").astype(float), n.arange(2).astype(complex)],
    lambda n: [n.hanning(4), n.bartlett(3), n.diag_indices(2), n.tril_indices(2), n.r_[1, 2]],
    lambda n: [n.fft.fftfreq(4), n.fft.rfftfreq(4), n.fft.fft(np.arange(4))],
    lambda n: [n.fromfunction(lambda i: i, (3,)), n.ogrid[0:1:0.5], n.vander(n.arange(3))],
    lambda n: [n.sum(n.ones(2, "int32")), n.prod(n.ones(2, "uint8")), n.cumsum(n.ones(2, bool))],
    lambda n: [n.mean(n.ones(2, t)) for t in ("int32", int, bool)],
    lambda n: [n.var(n.ones(2, "int32")), n.std(n.ones(2, int)), n.median(n.ones(2, int))],
    lambda n: [n.argmax(n.ones(2)), n.argsort(n.ones(2)), n.nonzero(n.ones(2)), n.ptp(n.arange(3))],
    lambda n: [n.searchsorted(n.arange(3), 1), n.bincount(n.arange(3)), n.histogram(n.arange(3))],
    lambda n: [n.count_nonzero(n.ones(2)), n.unique(n.arange(3), return_counts=True)],
    lambda n: [n.lexsort([n.arange(2)]), n.argwhere(n.ones(2)), n.argpartition(n.ones(3), 1)],
    lambda n: [n.result_type(1, 2.0), n.promote_types(int, float), n.finfo(float).dtype],
    lambda n: list(n.__array_namespace_info__().default_dtypes().values()),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MADE)))
def test_made_without_a_dtype(number: int) -> None:
    mine, theirs = MADE[number](jnp), MADE[number](jax.numpy)
    if all(isinstance(x, np.dtype) for x in mine):
        assert mine == theirs
    else:
        same(mine, theirs)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": lambda a, b: a / b, "//": lambda a, b: a // b, "%": lambda a, b: a % b,
    "**": lambda a, b: a**b, "r-": lambda a, b: b - a, "r/": lambda a, b: b / a,
    "==": lambda a, b: a == b,
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    f, met = OPERATORS[name], 0
    for d in DTYPES:
        for number in NUMBERS:
            try:
                want = f(jax.numpy.ones(2, d), number)
            except TypeError:
                continue
            same(f(jnp.ones(2, d), number), want, f"{d} {name} {number!r}")
            met += 1
    assert met > 40


# ---- every public function ----

KINDS = (
    {"i": "int32", "f": "float32", "u": "uint8", "b": "bool", "s": "float32", "c": "complex64"},
    {"i": "int64", "f": "float64", "u": "uint32", "b": "bool", "s": "float64", "c": "complex128"},
)
TABLES: list[tuple[str, dict[str, list[Entry]]]] = [
    ("numpy", NUMPY | NUMPY_MORE), ("numpy.linalg", LINALG), ("numpy.fft", FFT), ("lax", LAX),
    ("scipy.special", SPECIAL_MORE), ("scipy.stats", STATS),
]  # fmt: skip
# Where JAX's own dtypes are accidents of how it computes.
NOT_JAXS = {"owens_t", "sph_harm_y", "cumulative_prod", "tri"}  # JAX's tri changed with 0.11


def _calls(entry: Entry) -> Iterator[list[np.ndarray]]:
    """Operands of the entry: the plainest kinds that they admit and the last, narrow and wide."""
    seen = set()
    for kinds in KINDS:
        for end in (0, -1):
            found: list[str] = []
            for o in entry.operands:
                own = found[0] if entry.same and found and found[0] in o.dtypes() else ""
                found.append(own or kinds[o.kinds[end]])
            if tuple(found) not in seen:
                seen.add(tuple(found))
                rng = np.random.default_rng(0)
                yield [o.draw(rng, d) for o, d in zip(entry.operands, found)]


def _dtypes(xs: Any) -> list[str]:
    return [str(x.dtype) for x in xs if hasattr(x, "dtype")]


@pytest.mark.parametrize("module, table", TABLES, ids=[m for m, _ in TABLES])
def test_dtypes_of_every_function(module: str, table: dict[str, list[Entry]]) -> None:
    """Both are traced only, which is quick: values are the business of `tests/public`."""
    mine, theirs = [importlib.import_module(f"{m}.{module}") for m in ("genesis_fn", "jax")]
    met, wrong = 0, []
    for name, entries in table.items():
        f, g = getattr(mine, name, None), getattr(theirs, name, None)
        if f is None or g is None or name in NOT_JAXS:
            continue
        for entry in entries:
            for xs in _calls(entry) if entry.peer and entry.jit else ():
                arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in xs]
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        want = jax.eval_shape(lambda *v: entry.call(g, *v), *arrays)
                except Exception:
                    continue  # not for these operands, or by value
                given = [gf.ShapeDtypeStruct(x.shape, x.dtype) for x in xs]
                got = gf.eval_shape(lambda *v: entry.call(f, *v), *given)
                met += 1
                ours, want = _dtypes(tree.leaves(got)), _dtypes(jax.tree.leaves(want))
                if ours != want:
                    wrong.append(f"{name} of {[str(x.dtype) for x in xs]}: {ours}, JAX {want}")
    assert met and not wrong, "\n".join(wrong)


# ---- samplers ----

DRAWN: dict[str, Callable[[Any, Any], Any]] = {
    "uniform": lambda r, k: r.uniform(k, (5,)), "bits": lambda r, k: r.bits(k, (5,)),
    "randint": lambda r, k: r.randint(k, (5,), 0, 1000),
    "exponential": lambda r, k: r.exponential(k, (5,)), "gumbel": lambda r, k: r.gumbel(k, (5,)),
    "logistic": lambda r, k: r.logistic(k, (5,)), "cauchy": lambda r, k: r.cauchy(k, (5,)),
    "bernoulli": lambda r, k: r.bernoulli(k, 0.3, (9,)), "split": lambda r, k: r.key_data(
        r.split(k)), "permutation": lambda r, k: r.permutation(k, 7),
    "choice": lambda r, k: r.choice(k, 5, (3,)), "float": lambda r, k: r.uniform(k, (5,), float),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_samplers_are_jaxs(name: str) -> None:
    mine, theirs = [np.asarray(DRAWN[name](m.random, m.random.key(7))) for m in (gf, jax)]
    assert mine.dtype == theirs.dtype
    if mine.dtype.kind == "f" and name not in ("uniform", "float"):  # libm's last bit
        np.testing.assert_allclose(mine, theirs, rtol=4e-16)
    else:
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("seed", [0, -1, 2**31, 2**40 + 5, -(2**40)])
def test_seeds(seed: int) -> None:
    same(*[m.random.key_data(m.random.key(seed)) for m in (gf, jax)])


@pytest.mark.parametrize("name", ["normal", "glorot_uniform", "he_normal", "truncated_normal"])
def test_initializers(name: str) -> None:
    mine, theirs = [getattr(m.nn.initializers, name)()(m.random.key(1), (4, 3)) for m in (gf, jax)]
    same(mine, theirs)


# ---- transforms ----

TRANSFORMED: dict[str, Callable[[Any, Any], Any]] = {
    "scan": lambda m, n: m.lax.scan(lambda c, x: (c + 0.5, c * x), 1.0, n.arange(3)),
    "while": lambda m, n: m.lax.while_loop(lambda c: c < 5.0, lambda c: c * 1.5, 1.0),
    "fori": lambda m, n: m.lax.fori_loop(0, 3, lambda i, c: c + i, 0),
    "cond": lambda m, n: m.lax.cond(True, lambda x: x * 2, lambda x: x + 1, 1.5),
    "grad": lambda m, n: m.grad(lambda x: x**2 / 3)(3.0),
    "hessian": lambda m, n: m.hessian(lambda x: n.sum(x**3))(n.arange(3.0)),
    "vmap": lambda m, n: m.vmap(lambda x: x * 2.5)(n.arange(3)),
    "jit": lambda m, n: m.jit(lambda x, y, z: (x * y, z))(3.0, 2, np.float64(1 / 3)),
    "map": lambda m, n: m.lax.map(lambda x: x / 2, n.arange(4)),
    "checkpoint": lambda m, n: m.grad(m.checkpoint(lambda x: n.sin(x) * 2))(1.0),
    "callback": lambda m, n: m.pure_callback(
        lambda x: np.asarray(x) * 2, m.ShapeDtypeStruct((), "float64"), 1 / 3),
    "nn": lambda m, n: [m.nn.one_hot(n.arange(3), 3), m.nn.gelu(1.0), m.nn.softmax(n.arange(3))],
    "ravel": lambda m, n: importlib.import_module(f"{m.__name__}.flatten_util").ravel_pytree(
        [1, 2.0])[0],
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms(name: str) -> None:
    same(TRANSFORMED[name](gf, jnp), TRANSFORMED[name](jax, jax.numpy))


# ---- the setting ----


def test_a_function_traced_under_one_value_is_traced_again_under_the_other() -> None:
    f = gf.jit(lambda x: jnp.zeros(2) + x)
    g = gf.grad(lambda x: jnp.sum(gf.lax.scan(lambda c, _: (c * x, c), 1.0, length=3)[1]))
    for _ in range(2):
        for on, name in ((True, "float64"), (False, "float32")):
            with gf.enable_x64(on), gf.explain_cache_misses(False):
                assert [f(1).dtype, f(1.5).dtype, g(0.5).dtype] == [np.dtype(name)] * 3
                assert (jnp.asarray(1) + 1).dtype.itemsize == (8 if on else 4)


def test_weak_values_take_the_width_of_the_setting_that_meets_them() -> None:
    with gf.enable_x64(False):
        one = jnp.asarray(1)
    assert one.dtype == np.int32 and (one + 1).dtype == np.int64 and (one / 2).dtype == np.float64
    assert (jnp.ones(2, "int32") + 1).dtype == np.int32


def test_a_block_is_of_its_thread() -> None:
    found = []

    def look() -> None:
        found.append((jnp.zeros(1).dtype, gf.config.enable_x64))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    look()
    assert found == [(np.dtype("float32"), False), (np.dtype("float64"), True)]


def test_the_setting_and_the_block() -> None:
    with gf.enable_x64(False):
        assert gf.config.jax_enable_x64 is False
        gf.config.update("jax_enable_x64", True)
        try:
            assert gf.config.enable_x64 is False, "the block is nearer"
        finally:
            gf.config.update("enable_x64", False)
        with pytest.raises(OverflowError, match="pass dtype='int64'"):
            jnp.asarray(2**40)
    assert jnp.asarray(2**40).dtype == np.int64
    with pytest.raises(OverflowError, match="pass a float"):
        jnp.asarray(2**70)

    @gf.enable_x64(False)
    def narrow() -> Any:
        return jnp.zeros(1).dtype

    assert narrow() == np.float32 and gf.dtypes.canonicalize_dtype(float) == np.float64


def test_tri_is_of_the_default_float_as_numpys() -> None:
    with gf.enable_x64(False):
        assert gf.numpy.tri(2).dtype == np.float32
    with gf.enable_x64(True):
        assert gf.numpy.tri(2).dtype == np.tri(2).dtype == np.float64
