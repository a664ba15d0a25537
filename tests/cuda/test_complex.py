"""Complex numbers on CUDA: every primitive that takes them, against the CPU and without the host;
their special values; programs of many of them against JAX, NumPy and the CPU."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from programs import get, put
from test_every_primitive import (
    HIGHER,
    REAL,
    Case,
    accepted,
    canonical,
    cases,
    compare,
    host,
    run,
    values,
)

import genesis_fn as gf
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.backends.cuda.lowerings.call import RULES as LOWERED
from genesis_fn.backends.cuda.pipeline import compile_jaxpr
from genesis_fn.backends.cuda.run.executable import CudaExecutable
from genesis_fn.backends.cuda.run.steps import HostStep, Step, has_host
from genesis_fn.compiler.complex_parts.represent import has_parts
from genesis_fn.compiler.options import without
from genesis_fn.core import dtypes, errors
from genesis_fn.core.array import from_numpy
from genesis_fn.core.aval import aval
from genesis_fn.core.device import cpu, cuda, using_device
from genesis_fn.core.dtypes import BOOL, C64, C128, F32, F64, I8, I32, I64
from genesis_fn.core.jaxpr import of_one_equation
from genesis_fn.core.primitive import PRIMITIVES, Primitive, bind
from tests.primitives.specials import BINARY, UNARY, expected, operands

Z = values((6, 5), C64)
W = values((6, 5), C64, 1) + np.complex64(0.5)


# ---- every primitive ----


def as_complex(x: Any) -> Any:
    """A float operand as a complex one with imaginary parts, and finite; any other as it is."""
    kind = _COMPLEX_OF.get(getattr(x, "dtype", None))
    if kind is None:
        return x
    finite = np.where(np.isfinite(x), x, 2)
    return (finite + 1j * np.roll(finite, 1)[()] - 0.25j).astype(kind)


_COMPLEX_OF = {F32: C64, F64: C128}
_KINDS = ("dtype", "preferred_element_type")


def complex_cases(name: str) -> Iterator[Case]:
    """The cases of float32 and float64, with complex operands in their place."""
    for xs, params in cases().get(name, ()):
        changed = {k: _COMPLEX_OF.get(v, v) if k in _KINDS else v for k, v in params.items()}
        made = [as_complex(x) for x in xs]
        arrays = any(dtypes.is_complex(getattr(x, "dtype", F32)) for x in made)
        if arrays or (not xs and changed != params):
            yield made, changed


def others() -> dict[str, list[Case]]:
    """Cases that no case of float32 stands for."""
    wide, bits = values((4, 6), C128), values((4, 2), F64)
    to = [*REAL, C64, C128]
    return {
        "convert_element_type": [([Z], {"dtype": d}) for d in to if d != C64]
        + [([values((5,), d)], {"dtype": C64}) for d in REAL]
        + [([wide], {"dtype": C64})],
        "bitcast_convert_type": [([Z], {"dtype": d}) for d in (I8, I32, I64, F32, F64)]
        + [([wide], {"dtype": d}) for d in (I64, C64)]
        + [([bits], {"dtype": d}) for d in (C64, C128)]
        + [([values((3, 4, 2), F32)], {"dtype": C64})],
        "conj": [([Z], {})],
        "real": [([Z], {})],
        "imag": [([Z], {})],
        "complex": [([values((8,), F32), values((8,), F32, 1)], {})],
        "full": [([], {"value": 1.5 - 2j, "shape": (2, 3), "dtype": C64})],
        "sort": [
            ([np.repeat(Z, 2, 1), values((6, 10), I32)], {"dimension": 1, "num_keys": 2} | _STABLE),
            ([values((6, 5), I32), Z], {"dimension": 0, "num_keys": 2} | _STABLE),
            ([np.array([1 + 1j, np.nan, 1 - 2j, complex(1, np.nan), -0.0], C64)],
             {"dimension": 0, "num_keys": 1} | _STABLE),
        ],
        "integer_pow": [([Z], {"y": y}) for y in (0, 2, 3, 7, -1, -3)],
    }  # fmt: skip


_STABLE = {"is_stable": True}


def one_program(prim: Primitive, xs: Sequence[Any], params: dict[str, Any]) -> CudaExecutable:
    kinds = [aval(x.shape, x.dtype) if hasattr(x, "dtype") else x for x in xs]
    return compile_jaxpr(of_one_equation(prim, kinds, params), cuda())


def host_steps(steps: Sequence[Step]) -> bool:
    return any(isinstance(s, HostStep) or has_host(s) for s in steps)


def on_host(executable: CudaExecutable) -> bool:
    return host_steps(executable.binding.schedule.steps)


def takes_complex() -> list[str]:
    """The first-order primitives that have parts, and those whose cases in complex64 are taken."""
    found = []
    for name, prim in PRIMITIVES.items():
        if name in HIGHER or prim.collective or prim.effect or name == "triton_call":
            continue
        some = any(accepted(prim, *case) for case in complex_cases(name))
        if has_parts(prim) or (some and name not in NOT_COMPLEX):
            found.append(name)
    return found


# Whose shape rules check no dtype; the CPU refuses complex operands.
NOT_COMPLEX = {"polygamma", "window_offset", "random_wrap", "reduce_precision"}
_MOST = 4  # cases of one primitive
TOLERANCE = {"linear_recurrence": 10, "pow": 4, "acosh": 4}


@pytest.mark.parametrize("name", takes_complex())
def test_primitive(name: str) -> None:
    prim = PRIMITIVES[name]
    tried = 0
    listed = [case for case in complex_cases(name) if accepted(prim, *case)]
    for xs, params in [*listed[:: -(-len(listed) // _MOST) or 1], *others().get(name, ())]:
        shown = f"{name} {[getattr(x, 'shape', x) for x in xs]} {params}"
        with np.errstate(all="ignore"):
            want = run(prim, xs, params, cpu())
        executable = one_program(prim, xs, params)
        if has_parts(prim):
            assert not on_host(executable), f"{shown} copies to the host"
        else:
            assert prim in LOWERED, f"{shown}: neither parts nor a lowering"
        got = executable(*[put(np.asarray(x)) for x in xs if hasattr(x, "dtype")])
        wanted = canonical(name, list(map(host, want)))
        for g, w in zip(canonical(name, list(map(get, got))), wanted, strict=True):
            compare(g, w, shown, TOLERANCE.get(name, 1))
        if not tried:
            eager = list(map(host, run(prim, xs, params, cuda())))
            for g, w in zip(canonical(name, eager), wanted, strict=True):
                compare(g, w, f"eager {shown}", TOLERANCE.get(name, 1))
        tried += 1
    assert tried, f"no complex case of {name}"


# ---- special values ----

# What differs from the CPU's results at infinities and NaN, and why.
OTHERWISE: dict[str, Callable[..., np.ndarray]] = {
    # The array API standard's limits; torch's formula multiplies infinity by zero.
    "expm1": lambda z: ~np.isfinite(z),
    # Infinite exponents: products are the plain formula, in C's library they are not; of one
    # infinite part the sign of zero is that of a sine of infinity.
    "pow": lambda x, y: np.isinf(y.real) | np.isinf(y.imag),
    # exp(-z) may be 0 or infinite: torch and JAX differ, too.
    "logistic": lambda z: ~np.isfinite(z),
}
# Where the angle is zero times infinity, C leaves the signs of zeros open, which are a NaN's here:
# processors make NaN of both signs.
OPEN: dict[str, Callable[..., np.ndarray]] = {"pow": lambda x, y: ~np.isfinite(x)}
# Good to this, relative to the size of the result.
BOUND = {C64: 4e-6, C128: 1e-13}


def apart(got: np.ndarray, want: np.ndarray, bound: float) -> np.ndarray:
    """Where results differ: in NaN, infinities, the signs of zeros, or by more than `bound`."""
    bad = np.zeros(got.shape, bool)
    with np.errstate(all="ignore"):
        size = np.abs(want)
        for g, w in [
            (got.real, want.real),
            *([(got.imag, want.imag)] if got.dtype.kind == "c" else []),
        ]:
            scale = np.maximum(np.abs(w), np.where(np.isfinite(size), size, 0))
            near = np.isfinite(g) & np.isfinite(w) & (np.abs(g - w) <= bound * scale)
            zeros = (g == 0) & (w == 0)
            bad |= ~((g == w) | (np.isnan(g) & np.isnan(w)) | near)
            bad |= zeros & (np.signbit(g) != np.signbit(w))
    return bad


def complex_functions(count: int) -> list[str]:
    """The elementwise primitives of `count` complex operands."""
    found = []
    for name in UNARY if count == 1 else BINARY:
        xs = operands(name, C64)
        if name != "complex" and accepted(PRIMITIVES[name], xs, {}):
            found.append(name)
    return found


@pytest.mark.parametrize("kind", [C64, C128], ids=str)
@pytest.mark.parametrize("count", [1, 2])
def test_special_values(kind: Any, count: int) -> None:
    """Infinities, NaN, zeros of both signs: as on the CPU, or as NumPy has them where it is C's
    library that both take them from, and one of them rounds otherwise."""
    names = complex_functions(count)
    assert {"exp", "acosh"} <= {*names} or {"div", "pow"} <= {*names}
    xs = operands(names[0], kind)
    all_of = gf.jit(lambda *xs: [bind(PRIMITIVES[n], *xs) for n in names])
    got = all_of(*[from_numpy(x, cuda()) for x in xs])
    cpus = all_of(*[from_numpy(x, cpu()) for x in xs])
    wrong = []
    for name, g, c in zip(names, map(np.asarray, got), map(np.asarray, cpus), strict=True):
        if g.dtype == BOOL:
            np.testing.assert_array_equal(g, c, err_msg=name)
            continue
        bad = apart(g, c, BOUND[kind]) & apart(g, expected(name, xs, g.dtype), BOUND[kind])
        if name in OTHERWISE:
            bad &= ~OTHERWISE[name](*xs)
        if name in OPEN:
            bad &= ~(OPEN[name](*xs) & (g == 0) & (c == 0))
        for i in np.flatnonzero(bad)[:3]:
            wrong.append(f"{name}({', '.join(str(x[i]) for x in xs)}) = {g[i]}, on the CPU {c[i]}")
    assert not wrong, "\n".join(wrong)


def test_expm1_has_the_limits_of_the_standard() -> None:
    inf, nan = np.inf, np.nan
    z = np.array(
        [complex(*v) for v in ((inf, 0), (-inf, 3), (-inf, inf), (inf, inf), (nan, 0))], C64
    )
    got = get(one_program(PRIMITIVES["expm1"], [z], {})(put(z))[0])
    assert got[0] == complex(inf, 0) and got[1].real == -1 and got[2].real == -1
    assert np.isinf(got[3].real) and np.isnan(got[3].imag)
    assert np.isnan(got[4].real) and got[4].imag == 0


@pytest.mark.parametrize("name", ["abs", "div", "sqrt", "log", "sign"])
def test_large_and_small_numbers(name: str) -> None:
    """Neither squares nor products overflow or vanish on the way."""
    size = np.array([1e30, 3e37, 1e-25, 1.0, 3e-36])
    z = (size[:, None] * np.exp(1j * np.linspace(-3, 3, 7))).astype(C64)
    xs = [z, z[::-1].copy()] if name == "div" else [z]
    wide = [x.astype(C128) for x in xs]
    want = {"abs": np.abs, "div": np.divide, "sqrt": np.sqrt, "log": np.log, "sign": np.sign}[name](
        *wide
    )
    keep = np.isfinite(want.astype(C64)) & (np.abs(want) > 1e-37)
    got = get(one_program(PRIMITIVES[name], xs, {})(*map(put, xs))[0])
    np.testing.assert_allclose(got[keep], want[keep], rtol=2e-6)


def test_near_branch_cuts_and_zeros_of_inverse_functions() -> None:
    """Close to where the plain formulas cancel."""
    tiny = np.array([1e-30, 1e-12, 1e-5, 3e-3])
    x = np.concatenate([[0.0, 0.5, 1 - 1e-7, 1.0, 1 + 1e-6, 3.0], tiny])
    z = (x[:, None] + 1j * np.concatenate([tiny, -tiny, [2.0]])).ravel().astype(C64)
    for name in ("asin", "acos", "atan", "asinh", "acosh", "atanh", "log1p", "expm1"):
        (got,) = one_program(PRIMITIVES[name], [z], {})(put(z))
        # NumPy's cancel near 0.
        exact = {"log1p": scipy.special.log1p, "expm1": scipy.special.expm1}
        known = exact.get(name)
        want = known(z.astype(C128)) if known else expected(name, (z,), C128)
        for g, w in ((get(got).real, want.real), (get(got).imag, want.imag)):
            # Parts on their own, but where one is nothing beside the other.
            allowed = 2e-5 * np.abs(w) + 1e-7 * np.abs(want) + 1e-37
            far = np.flatnonzero(~(np.abs(g - w) <= allowed))
            assert not far.size, f"{name} of {z[far[:3]]}: {g[far[:3]]}, not {w[far[:3]]}"


# ---- programs ----


def agree(
    f: Callable[..., Any], *xs: Any, rtol: float = 2e-5, of: Callable[..., Any] | None = None
):
    """`f` on CUDA, compiled, without the host, against JAX (or `of`, on NumPy's arrays)."""
    given = [from_numpy(np.asarray(x), cuda()) for x in xs]
    got = gf.tree.leaves(gf.jit(f)(*given))
    want = jax.tree.leaves((of or (lambda *xs: f(*map(jnp.asarray, xs))))(*xs))
    assert len(got) == len(want)
    for g, w in zip(map(np.asarray, got), map(np.asarray, want)):
        assert g.dtype == w.dtype and g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol * max(1, np.abs(w).max(initial=0)))


def iterated(xp: Any, loops: Any) -> Callable[..., Any]:
    return lambda z, c: loops.fori_loop(0, 5, lambda i, v: v * v * 0.3 + c, z)


def test_a_loop_carries_parts() -> None:
    """No step of it interleaves or copies: its kernel updates both parts where they are."""
    agree(iterated(gnp, lax), Z, W, of=lambda z, c: iterated(jnp, jax.lax)(z, c))
    with without("row_loops", "loop_steps"):  # as steps of a graph
        compiled = gf.jit(iterated(gnp, lax)).lower(put(Z), put(W)).compile()
    text = compiled.as_text()
    (body,) = [line for line in text.splitlines() if line.startswith("  mul")]
    assert body and "interleave" not in text.split("scan[")[1].split("return")[0]
    inside = text.split("return k l }")[-1].split("def pointwise(")
    assert len([k for k in inside if "b5" in k.splitlines()[0]]) == 1


def test_both_parts_are_stored_by_one_kernel() -> None:
    compiled = gf.jit(lambda z, w: gnp.exp(z * w)).lower(put(Z), put(W)).compile()
    kernels = compiled.as_text().split("def ")[1:]
    assert len(kernels) == 1 and kernels[0].count("tl.store") == 1
    assert kernels[0].count("exp(") == 1  # once for both parts


NESTS: dict[str, tuple[str, Callable, tuple[int, ...]]] = {
    "tiles": ("tiles", lambda z: z + gnp.conj(gnp.swapaxes(z, -1, -2)), (5, 32, 32)),
    "tiles and masks": ("tiles", lambda z: z * gnp.transpose(z), (70, 70)),
    "a column of tiles": ("tiles", lambda z: gnp.transpose(z) * z[0, 0], (90, 66)),
    "rows": ("rows", gnp.tril, (90, 64)),
    "rows of one number": ("rows", lambda z: z / gnp.sum(z, 1, keepdims=True) + z[:, :1], (70, 37)),
    "a loop": ("loop", lambda z: z / gnp.sum(gnp.abs(z), 1, keepdims=True), (3, 20000)),
    "some stores of a loop": (
        "loop",
        lambda z: (z * 2, lax.complex(z.real, gnp.sum(z.imag, 1, keepdims=True) + z.imag)),
        (3, 20000),
    ),
    "columns": ("rows", lambda z: z - gnp.mean(z, 0), (50, 200)),
}  # fmt: skip


@pytest.mark.parametrize("kind", [C64, C128], ids=str)
@pytest.mark.parametrize("name", NESTS)
def test_both_parts_are_one_access_of_rows_and_tiles(name: str, kind: Any) -> None:
    """Stores of every other number are slow."""
    nest, f, shape = NESTS[name]
    z = values(shape, kind)
    text = gf.jit(f).lower(put(z)).compile().as_text()
    results = []
    for device in (cuda(), cpu()):
        with using_device(device):
            given = from_numpy(z, device)
            results.append([np.asarray(x) for x in gf.tree.leaves((f(given), gf.jit(f)(given)))])
    for got, want in zip(*results, strict=True):
        compare(got, want, name, 100)
    assert f"def {nest}(" in text and re.search(r"tl\.store\(.*tl\.join\(", text), text
    assert not re.search(r"tl\.store\(.*\b[prj] \* 2\b", text), text


def test_a_filter_is_one_kernel_between_transforms() -> None:
    f = gf.jit(lambda z, w: gnp.fft.ifft(gnp.fft.fft(z) * w * 0.5))
    compiled = f.lower(put(Z), put(W)).compile()
    assert compiled.as_text().count("def ") == 1
    got = np.asarray(f(from_numpy(Z, cuda()), from_numpy(W, cuda())))
    np.testing.assert_allclose(got, np.fft.ifft(np.fft.fft(Z) * W * 0.5), rtol=1e-4, atol=1e-5)


def test_control_flow() -> None:
    def program(xp: Any, la: Any, ft: Any) -> Callable[..., Any]:
        def f(z: Any, w: Any, k: Any) -> Any:
            def step(carry: Any, x: Any) -> Any:
                total, n = carry
                return (total * 0.9 + x, n + 1), (xp.conj(total) * x, n)

            last = la.scan(step, (z[0], 0), w, reverse=True)
            grown = la.while_loop(
                lambda s: xp.abs(s[1]).max() < 40, lambda s: (s[0] + 1, s[1] * 2), (0, z)
            )
            branch = la.switch(k, [lambda v: v * 1j, lambda v: v.real + 0j, xp.conj], w)
            return last, grown, branch, la.cond(k > 0, lambda: z, lambda: w)

        return f

    for k in (0, 1, 2):
        agree(
            program(gnp, lax, None),
            Z,
            W,
            np.int32(k),
            of=lambda *xs: program(jnp, jax.lax, None)(*map(jnp.asarray, xs)),
        )


def test_derivatives_and_batches() -> None:
    def loss(xp: Any) -> Callable[..., Any]:
        return lambda z, w: xp.sum(xp.abs(xp.exp(z) * w - xp.conj(z) @ w.T @ w) ** 2)

    def both(xp: Any, m: Any) -> Callable[..., Any]:
        def f(z: Any, w: Any) -> Any:
            value, pull = m.vjp(lambda z: xp.sin(z) / w, z)
            push = m.jvp(lambda z: xp.sqrt(z) * w, (z,), (w,))
            rows = m.vmap(lambda a, b: xp.sum(a * xp.conj(b)))(z, w)
            return m.grad(loss(xp), (0, 1))(z, w), value, pull(value), push, rows

        return f

    agree(
        both(gnp, gf),
        Z * 0.3,
        W * 0.3,
        of=lambda *xs: both(jnp, jax)(*map(jnp.asarray, xs)),
        rtol=1e-4,
    )


def test_a_derivative_of_a_loop() -> None:
    def f(xp: Any, m: Any, la: Any) -> Callable[..., Any]:
        body = lambda c: lambda z, _: (z * z + c, xp.abs(z).sum())
        return lambda z, c: m.grad(lambda c: la.scan(body(c), z, None, length=4)[1].sum())(c)

    agree(
        f(gnp, gf, lax),
        Z * 0.3,
        W * 0.2,
        of=lambda *xs: f(jnp, jax, jax.lax)(*map(jnp.asarray, xs)),
        rtol=1e-4,
    )


def test_indexing() -> None:
    def f(xp: Any) -> Callable[..., Any]:
        def g(z: Any, i: Any, w: Any) -> Any:
            added = z.at[i].add(w[: i.shape[0]])
            product = z.at[i].multiply(w[: i.shape[0]])
            return (
                z[i, ::2],
                added,
                product,
                z.at[1:3].set(1 - 2j),
                xp.take(z, i, axis=1),
                z[:, i[0]],
            )

        return g

    i = np.array([1, 3, 1, 0], np.int32)
    agree(f(gnp), Z, i, W, of=lambda *xs: f(jnp)(*map(jnp.asarray, xs)))


def test_numbers_stand_for_complex_arrays() -> None:
    with using_device(cuda()):
        z = gnp.array(Z)
        for f in (
            lambda z: z * 2j,
            lambda z: 2.0 / z,
            lambda z: z**2.5,
            lambda z: 1j - z,
            lambda z: z + 1,
            lambda z: z ** (1 + 1j),
            lambda z: 2**z,
        ):
            with jax.enable_x64(False):
                want = np.asarray(f(jnp.asarray(Z)))
            for got in (f(z), gf.jit(f)(z)):
                np.testing.assert_allclose(np.asarray(got), want, rtol=2e-5, atol=1e-5)


def test_constants_and_donation() -> None:
    with using_device(cuda()):
        known = gnp.array(W)
        x, step = gnp.array(Z), gf.jit(lambda z: z * known + 1j, donate_argnums=0)
        memory = x.data.address
        y = step(x)
        assert x.is_deleted() and y.data.address == memory
        np.testing.assert_allclose(np.asarray(y), Z * W + 1j, rtol=1e-5)
        assert "updated in place 1" in step.lower(y).compile().as_text()


def test_the_user_sees_complex_arrays() -> None:
    seen = []

    def told(v: Any) -> np.ndarray:
        seen.append((v.dtype, np.asarray(v)[0, 0]))
        return np.asarray(v) * 2

    def f(z: Any) -> Any:
        doubled = gf.pure_callback(told, gf.ShapeDtypeStruct(z.shape, z.dtype), z * 1j)
        called = gf.torch_call(lambda t: t.conj().resolve_conj(), z + 1)
        gf.debug.callback(lambda v: seen.append((v.dtype, v[0, 0])), z)
        return doubled, called

    with using_device(cuda()):
        doubled, called = gf.jit(f)(gnp.array(Z))
        np.testing.assert_allclose(np.asarray(doubled), Z * 2j, rtol=1e-6)
        np.testing.assert_allclose(np.asarray(called), np.conj(Z + 1), rtol=1e-6)
    assert {d for d, _ in seen} == {C64} and len(seen) == 2


def test_errors_name_the_argument_and_the_line() -> None:
    with (
        using_device(cuda()),
        pytest.raises(errors.IndexOutOfRange, match=r"of z, c64\[6,5\]") as caught,
    ):
        np.asarray(gf.jit(lambda z, i: z[i])(gnp.array(Z), gnp.array(9)))
    assert "test_complex.py" in str(caught.value)


@functools.cache
def _sorted_pairs() -> np.ndarray:
    part = np.array([0.0, -0.0, 1.0, np.nan, np.inf, -np.inf])
    return np.array([complex(a, b) for a in part for b in part], C64)


def test_sorts_are_by_real_then_imaginary_part() -> None:
    z = _sorted_pairs()
    f = gf.jit(lambda z: (gnp.sort(z), gnp.argsort(z)))
    for got, want in zip(f(from_numpy(z, cuda())), f(from_numpy(z, cpu()))):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@pytest.mark.parametrize("kind", [C64, C128], ids=str)
def test_eager_views_share_memory(kind: Any) -> None:
    """Of both dtypes; what moves elements does so without a program of its own, where it can."""
    with using_device(cuda()):
        z = gnp.array(Z.astype(kind), dtype=kind)
        assert z.reshape(5, 6).data.address == z.data.address
        rows = z[2:4]
        assert rows.data.address == z.data.address + 10 * kind.itemsize
        moved = [z.T, z[::-1], z[:, 1:3], gnp.concatenate([z, z]), gnp.pad(z, 1), *gnp.split(z, 2)]
        want = [Z.T, Z[::-1], Z[:, 1:3], np.concatenate([Z, Z]), np.pad(Z, 1), *np.split(Z, 2)]
        for g, w in zip([rows, *moved], [Z[2:4], *want], strict=True):
            np.testing.assert_array_equal(np.asarray(g), w.astype(kind))


def test_an_eager_operation_is_compiled_once_for_all_numbers() -> None:
    compiled = []
    with using_device(cuda()), pytest.MonkeyPatch.context() as patch:
        z = gnp.array(values((3, 11), C64))
        compile = cuda().backend.compile
        patch.setattr(cuda().backend, "compile", lambda *xs: compiled.append(1) or compile(*xs))
        got = [np.asarray(z * (0.5j + k)) for k in range(3)]
    for k, g in enumerate(got):
        np.testing.assert_allclose(g, np.asarray(z) * (0.5j + k), rtol=1e-6)
    assert len(compiled) == 1
