"""Values that Python, NumPy or torch read out of a transform: the copy would lose a derivative or
an axis, so it raises; what loses nothing is read. And every public name of arrays on tracers."""

from __future__ import annotations

import array
import copy
import inspect
import math
import operator
import pickle
from typing import Any

import jax
import jax.numpy as jax_numpy
import numpy as np
import pytest
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import errors, lax, nn, optim
from genesis_fn.core.primitive import Tracer
from genesis_fn.lax import stop_gradient

# ---- doors ----

DOORS = {
    "float": float, "int": int, "complex": complex, "item": lambda x: x.item(),
    "tolist": lambda x: x.tolist(), "tobytes": lambda x: np.frombuffer(x.tobytes(), "float32")[0],
    "__array__": lambda x: x.__array__(), "asarray": np.asarray, "np.array": lambda x:
    np.array([x, x])[0], "np.exp": lambda x: np.log(np.exp(x)), "np.add": lambda x:
    np.add(np.zeros(1), x)[0], "np.float32": np.float32, "np.full": lambda x: np.full(2, x)[0],
    "np.clip": lambda x: np.interp(x, [0.0, 9.0], [0.0, 9.0]), "math.sin": lambda x:
    math.asin(math.sin(x / 2)) * 2, "math.floor": math.floor, "math.ceil": math.ceil,
    "math.trunc": math.trunc, "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "np.from_dlpack": lambda x: np.from_dlpack(x)[()], "torch.from_dlpack": lambda x:
    torch.from_dlpack(x).item(), "torch.as_tensor": lambda x: torch.as_tensor(x).item(),
    "array.array": lambda x: array.array("f", [x])[0], "percent": lambda x:
    float(operator.mod("%.6f", x)), "arange": lambda x: jnp.arange(x, 99.0)[0], "step": lambda x:
    jnp.arange(0.0, 9.0, x)[1],
}  # fmt: skip
ONE = 1.5


def batch(f):
    return gf.vmap(f)(jnp.array([ONE, 2.5]))


def in_scan(f):
    return lax.scan(lambda c, _: (f(c), None), jnp.float32(ONE), None, length=2)[0]


def in_custom_vjp(f):
    g = gf.custom_vjp(f)
    g.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * 2 * x,))
    return g


def in_custom_jvp(f):
    g = gf.custom_jvp(f)
    g.defjvp(lambda p, t: (f(p[0]), t[0] * 2 * p[0]))
    return g


# Where a derivative is taken op by op, so that values are known: f -> df/dx at ONE.
EAGER = {
    "grad": lambda f: gf.grad(f)(ONE),
    "value_and_grad": lambda f: gf.value_and_grad(f)(ONE)[1],
    "jvp": lambda f: gf.jvp(f, (ONE,), (1.0,))[1],
    "vjp": lambda f: gf.vjp(f, ONE)[1](1.0)[0],
    "linearize": lambda f: gf.linearize(f, ONE)[1](1.0),
    "jacfwd": lambda f: gf.jacfwd(f)(ONE),
    "jacrev": lambda f: gf.jacrev(f)(ONE),
    "grad of grad": lambda f: gf.grad(lambda y: gf.grad(lambda x: f(x) * y)(ONE))(1.0),
    "jvp of jvp": lambda f: gf.jvp(
        lambda y: gf.jvp(lambda x: f(x) * y, (ONE,), (1.0,))[1], (1.0,), (1.0,))[1],
    "grad of amp": lambda f: gf.grad(gf.amp(f))(ONE),
    "amp of grad": lambda f: gf.amp(gf.grad(f))(ONE),
    "outer value": lambda f: gf.grad(lambda x: gf.grad(lambda y: y * f(x))(1.0))(ONE),
}  # fmt: skip
# Where values are not known at all, or where reading loses what is outside.
ABSTRACT = {
    "hessian": lambda f: gf.hessian(f)(ONE),
    "vmap": batch,
    "jit": lambda f: gf.jit(f)(ONE),
    "scan": in_scan,
    "while": lambda f: lax.while_loop(lambda c: c < 1, f, jnp.float32(0.5)),
    "fori": lambda f: lax.fori_loop(0, 2, lambda i, c: f(c), jnp.float32(ONE)),
    "cond": lambda f: lax.cond(True, f, lambda x: x, jnp.float32(ONE)),
    "make_jaxpr": lambda f: gf.make_jaxpr(f)(ONE),
    "eval_shape": lambda f: gf.eval_shape(f, ONE),
    "grad of checkpoint": lambda f: gf.grad(gf.checkpoint(f))(ONE),
    "grad of jit": lambda f: gf.grad(gf.jit(f))(ONE),
    "jit of grad": lambda f: gf.jit(gf.grad(f))(ONE),
    "grad of scan": lambda f: gf.grad(lambda x: lax.scan(
        lambda c, _: (f(c), None), x, None, length=2)[0])(ONE),
    "vmap of grad": lambda f: batch(gf.grad(f)),
    "grad of vmap": lambda f: gf.grad(lambda x: gf.vmap(f)(x).sum())(jnp.array([ONE, 2.0])),
    "grad of grad of custom_vjp": lambda f: gf.grad(gf.grad(in_custom_vjp(f)))(ONE),
    "grad of grad of custom_jvp": lambda f: gf.grad(gf.grad(in_custom_jvp(f)))(ONE),
    "jit of amp": lambda f: gf.jit(gf.amp(f))(ONE),
}  # fmt: skip


def read_by(door):
    return lambda x: x * door(x)


@pytest.mark.parametrize("place", [*EAGER, *ABSTRACT])
def test_a01_no_door_loses_a_derivative(place):
    run = {**EAGER, **ABSTRACT}[place]
    for name, door in DOORS.items():
        with pytest.raises(errors.ConcretizationTypeError) as error:
            run(read_by(door))
        text = str(error.value)
        assert "test_reading.py:" in text and len(text.splitlines()) <= 6, (name, text)
        if place in EAGER:
            assert "stop_gradient" in text and "genesis_fn.numpy" in text, (name, text)


@pytest.mark.parametrize("place", EAGER)
def test_a01_what_carries_no_derivative_is_read(place):
    # x * c has derivative c, whatever c is; nested derivatives are by the factor outside.
    for name, door in DOORS.items():
        if place == "outer value":
            break
        if name in ("torch.as_tensor", "np.from_dlpack") and gf.default_backend() != "cpu":
            continue  # torch takes no read-only memory this way, and NumPy none of a GPU
        seen = []

        def f(x, door=door, seen=seen):
            constant = door(stop_gradient(x))
            seen.append(float(np.real(np.asarray(constant))))
            return x * seen[-1]

        got = float(EAGER[place](f))
        exact = {"int": 1, "math.floor": 1, "math.trunc": 1, "math.ceil": 2}.get(name, ONE)
        assert len(seen) == 1 and abs(seen[0] - exact) < 1e-3, (name, seen)
        reference = jax.grad(lambda x, c=seen[0]: x * c)(ONE)
        assert abs(got - float(reference)) < 0.02 * ("amp" in place) + 1e-6, name


def test_a01_integers_and_what_does_not_depend_are_read():
    def f(xp, x, n, other):
        total = x * float(other) * int(n) * n.item()
        if int(x > 0) and int(x.astype(int)) == 1 and np.asarray(x.astype(int)) == 1:
            total = total + x * np.asarray(other)
        return total * xp.asarray(n.tolist())

    got = gf.grad(lambda x: f(jnp, x, jnp.array(3), jnp.array(2.5)))(ONE)
    assert float(got) == float(
        jax.grad(lambda x: f(jax_numpy, x, jax_numpy.array(3), jax_numpy.array(2.5)))(ONE)
    )
    got = gf.value_and_grad(lambda p: p["w"] * p["n"].item(), allow_int=True)(
        {"w": jnp.array(2.0), "n": jnp.array(3)}
    )[1]
    assert float(got["w"]) == 3.0
    # A rule runs on values that it has; what is lost is its own affair.
    assert float(gf.grad(in_custom_vjp(lambda x: x * float(x)))(ONE)) == 2 * ONE
    assert float(gf.grad(in_custom_jvp(lambda x: x * x.item()))(ONE)) == 2 * ONE
    assert float(gf.amp(lambda x: x * float(x))(jnp.array(ONE))) == ONE**2


def steps(xp, x, n):
    y = x
    while y < 20:
        y = y * 2
    for _ in range(n):
        y = y * x
    y = y * [1.0, 2.0, 3.0][n] + xp.zeros(n).sum()
    if 1.0 < x < 2.0 and not (x == 5) and x:
        y = y + max(x, 1.0) + sorted([x, 0.5])[1] + round(x) + divmod(x, 1.0)[1]
    if x in [7.0, 1.5]:
        y = y * np.float32(2) + (np.ones(2, "float32") * x).sum()
    y = y + copy.copy(x) * copy.deepcopy(x) + xp.asarray([x, 1.0, x]).sum() + sum([x, x])
    return y + xp.stack([x, y])[n % 2 - 1]


def test_a01_control_flow_follows_values():
    n, m = jnp.array(2), jax_numpy.array(2)
    expected = jax.grad(lambda x: steps(jax_numpy, x, m))(ONE)
    for place, run in EAGER.items():
        if "amp" not in place and place != "outer value":
            got = run(lambda x: steps(jnp, x, n))
            np.testing.assert_allclose(float(got), float(expected), rtol=1e-5, err_msg=place)
    for place in ("vmap", "jit", "scan", "grad of jit", "vmap of grad"):
        for f in (lambda x: x if x > 0 else -x, lambda x: x * [1, 2, 3][x.astype(int)]):
            with pytest.raises(errors.ConcretizationTypeError, match=r"test_reading\.py:"):
                ABSTRACT[place](f)


V = [3.0, 1.0, 2.0, 1.0]
Q = np.sin(np.arange(16, dtype=np.float32)).reshape(1, 2, 1, 8)
# Functions with a parameter that could be read as a number: (xp, nn, lax, v, x) -> scalar.
PARAMETERS = {
    "full": lambda m, x: m.xp.full((2,), x).sum(),
    "linspace": lambda m, x: m.xp.linspace(x, 2 * x, 3).sum(),
    "clip": lambda m, x: m.xp.clip(m.v, x, 2 * x).sum(),
    "std": lambda m, x: m.xp.nanstd(m.v, ddof=x / 3),
    "quantile": lambda m, x: m.xp.quantile(m.v, x / 4),
    "nan_to_num": lambda m, x: m.xp.nan_to_num(m.v * m.xp.nan, nan=x).sum(),
    "isclose": lambda m, x: m.xp.isclose(m.v, m.v * x, atol=x).sum() * x,
    "trapezoid": lambda m, x: m.xp.trapezoid(m.v, dx=x),
    "interp": lambda m, x: m.xp.interp(-1.0, m.xp.arange(4.0), m.v, left=x),
    "nonzero": lambda m, x: m.v[m.xp.nonzero(m.v * x > 2)].sum() * x,
    "mask": lambda m, x: (m.v * x)[m.v * x > 2].sum(),
    "lstsq": lambda m, x: m.xp.linalg.lstsq(
        m.xp.diag(m.v[:3]), m.v[:3] * x, rcond=x / 100)[0].sum(),
    "at": lambda m, x: m.v.at[0].set(x).at[1].mul(x).sum(),
    "dynamic_slice": lambda m, x: m.lax.dynamic_slice(m.v * x, (1,), (2,)).sum(),
    "elu": lambda m, x: m.nn.elu(-m.v, x).sum(),
    "leaky_relu": lambda m, x: m.nn.leaky_relu(-m.v, x).sum(),
    "standardize": lambda m, x: m.nn.standardize(m.v, mean=x, variance=x)[0],
    "logsumexp": lambda m, x: m.nn.logsumexp(m.v, b=x),
    "attention": lambda m, x: m.nn.dot_product_attention(
        *[m.xp.asarray(Q)] * 3, scale=x / 2)[0, :, 0, 1].sum(),
    "arange by length": lambda m, x: m.xp.arange(x * 2).sum() * x,
}  # fmt: skip


class Mine:
    xp, nn, lax, v = jnp, nn, lax, jnp.array(V)


class Theirs:
    xp, nn, lax, v = jax_numpy, jax.nn, jax.lax, jax_numpy.array(V)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a01_parameters_of_functions_are_differentiated(name):
    f = PARAMETERS[name]
    expected = float(jax.grad(lambda x: f(Theirs, x))(ONE))
    for run in (EAGER["grad"], EAGER["jvp"]):
        np.testing.assert_allclose(float(run(lambda x: f(Mine, x))), expected, rtol=2e-5)


def test_a01_scales_of_initializers_and_counts():
    # The scale of a sample is its derivative, and counts have none.
    init = nn.initializers.variance_scaling
    for law in ("normal", "uniform", "truncated_normal"):

        def f(x, law=law):
            return init(x, "fan_in", law)(gf.random.key(0), (3, 4)).sum()

        np.testing.assert_allclose(gf.grad(f)(ONE), f(ONE) / (2 * ONE), rtol=1e-5)
    for f in (
        lambda x: gf.random.poisson(gf.random.key(0), x, (3,)),
        lambda x: gf.random.binomial(gf.random.key(0), 5, x / 4, (3,)),
    ):
        value = float(f(ONE).sum())
        assert float(gf.grad(lambda x, f=f: f(x).sum() * x)(ONE)) == value


def test_a01_leaked_values_are_no_numbers():
    kept = []
    gf.grad(lambda x: (kept.append(x * 2), x)[1])(ONE)
    for read in (
        bool,
        float,
        np.asarray,
        lambda x: x.item(),
        jnp.sin,
        lambda x: x + 1,
        pickle.dumps,
        lambda x: jnp.where(x > 0, 1, 2),
        lambda x: jnp.zeros(3).at[0].set(x),
        jnp.nonzero,
    ):
        with pytest.raises(errors.UnexpectedTracerError, match="leaked"):
            read(kept[0] if read is not jnp.nonzero else kept[0][None])
    assert "Traced" in repr(kept[0]) and "Traced" in f"{kept[0]:.3f} {kept[0]}"


def test_m02_item_inside_grad():
    def loss(x):
        y = jnp.sin(x)
        return x * y.item()

    with pytest.raises(errors.ConcretizationTypeError) as error:
        gf.grad(loss)(jnp.array(ONE))
    lines = str(error.value).splitlines()
    assert lines[0].startswith(".item() of a value that is being differentiated: f32[] in loss")
    assert "y = jnp.sin(x)" in lines[1] and "return x * y.item()" in lines[2]
    assert "stop_gradient" in lines[3]
    with pytest.raises(errors.ConcretizationTypeError, match="argument x of <lambda>, grad called"):
        gf.grad(lambda x: float(x) ** 2)(ONE)
    with pytest.raises(errors.TracerArrayConversionError):
        gf.grad(lambda x: jnp.sum(jnp.ones(3) * np.exp(x)))(0.5)
    # The line is the user's, not that of the library which asked on his behalf.
    with pytest.raises(errors.TracerArrayConversionError, match=r"test_reading\.py.*np\.linalg"):
        gf.grad(lambda x: np.linalg.norm(x))(jnp.ones(2))


def test_m02_printing_never_fails(capsys):
    def f(x):
        print(x, f"{x:.2f} {x}", repr(x), [x])
        gf.debug.print("{x}", x=x)
        gf.debug.callback(lambda v: print(float(v)), x)
        jnp.array_repr(x), jnp.array_str(x)
        return x * 2

    for run in ("grad", "jvp", "grad of grad", "amp of grad"):
        EAGER[run](f)
    for run in ("jit", "vmap", "scan", "grad of checkpoint", "vmap of grad"):
        ABSTRACT[run](f)
    assert "1.50" in capsys.readouterr().out


# ---- every name of an array ----

A = np.array([[2.0, -1.0, 0.5], [1.5, 3.0, -2.5], [0.25, 4.0, 1.0]], np.float32)

# name -> what is done with an array x; results are arrays, or plain values to compare as they are.
NAMES: dict[str, Any] = {
    **{name: lambda x, name=name: getattr(x, name) for name in (
        "T", "mT", "real", "imag", "flat", "shape", "dtype", "ndim", "size", "itemsize", "nbytes",
        "weak_type", "weak", "aval",
    )},
    **{name: lambda x, name=name: getattr(x, name)() for name in (
        "all", "any", "argmax", "argmin", "argsort", "block_until_ready", "conj", "conjugate",
        "copy", "copy_to_host_async", "cumprod", "cumsum", "diagonal", "flatten", "is_deleted",
        "max", "mean", "min", "on_device_size_in_bytes", "prod", "ptp", "ravel", "sort", "squeeze",
        "std", "sum", "trace", "transpose", "var",
    )},
    "argpartition": lambda x: x.argpartition(1).shape, "partition": lambda x: x.partition(1)[:, 1],
    "byteswap": lambda x: x.byteswap().byteswap(),
    "astype": lambda x: x.astype("float16"), "at": lambda x: x.at[0, 1:].add(2.0),
    "choose": lambda x: (x > 0).astype(int).choose([x, -x]), "clip": lambda x: x.clip(0, 1),
    "compress": lambda x: x.compress(np.array([1, 0, 1]), 1, size=2), "dot": lambda x: x.dot(x),
    "nonzero": lambda x: x.nonzero(size=9), "repeat": lambda x: x.repeat(2, axis=0),
    "reshape": lambda x: x.reshape(9), "round": lambda x: x.round(1),
    "searchsorted": lambda x: x[0].sort().searchsorted(0.75),
    "swapaxes": lambda x: x.swapaxes(0, 1), "take": lambda x: x.take(np.array([2, 0]), axis=1),
    "to_device": lambda x: x.to_device(gf.devices()[0]), "view": lambda x: x.view("int32"),
}  # fmt: skip
# What only an array can answer, with the errors of tracers that carry derivatives or are abstract.
OF_ARRAYS = {
    "item": lambda x: x[0, 0].item(), "tolist": lambda x: x.tolist(),
    "tobytes": lambda x: x.tobytes(), "delete": lambda x: x.delete(), "data": lambda x: x.data,
    "sig": lambda x: x.sig, "addressable_shards": lambda x: x.addressable_shards,
    "addressable_data": lambda x: x.addressable_data(0),
    "unsafe_buffer_pointer": lambda x: type(x.unsafe_buffer_pointer()),
}  # fmt: skip
UNKNOWN = ("sig", "addressable_shards", "addressable_data")  # as any name that there is not
PLACED = {
    "device": lambda x: x.device, "devices": lambda x: x.devices(),
    "sharding": lambda x: x.sharding, "committed": lambda x: x.committed,
    "is_fully_addressable": lambda x: x.is_fully_addressable,
    "is_fully_replicated": lambda x: x.is_fully_replicated,
}  # fmt: skip


def evaluated(program, shapes):
    return gf.tree.unflatten(gf.tree.structure(shapes), program(A))


WRAPPED = {
    "jit": lambda f: gf.jit(f)(A),
    "grad": lambda f: gf.grad(lambda x: (x.sum(), f(x)), has_aux=True)(jnp.array(A))[1],
    "jvp": lambda f: gf.jvp(
        lambda x: (x, f(x)), (jnp.array(A),), (jnp.ones((3, 3)),), has_aux=True)[2],
    "vmap": lambda f: gf.tree.map(lambda y: y[1], gf.vmap(f)(jnp.array([A + 1, A]))),
    "scan": lambda f: gf.tree.map(lambda y: y[0], lax.scan(
        lambda c, _: (c, f(c)), jnp.array(A), None, length=1)[1]),
    "checkpoint": lambda f: gf.grad(
        lambda x: (x.sum(), gf.checkpoint(f)(x)), has_aux=True)(jnp.array(A))[1],
    "make_jaxpr": lambda f: evaluated(*gf.make_jaxpr(f, return_shape=True)(jnp.array(A))),
    "amp": lambda f: gf.amp(f)(jnp.array(A)),
    "grad of amp": lambda f: gf.grad(gf.amp(lambda x: (x.sum(), f(x))), has_aux=True)(
        jnp.array(A))[1],
    "grad of value": lambda f: gf.grad(lambda y: gf.value_and_grad(
        lambda x: (x.sum() * y, f(x)), has_aux=True)(jnp.array(A))[0], has_aux=True)(1.0)[1],
    "jit of grad": lambda f: gf.jit(gf.grad(lambda x: (x.sum(), f(x)), has_aux=True))(A)[1],
    "vmap of grad": lambda f: gf.tree.map(lambda y: y[1], gf.vmap(gf.grad(
        lambda x: (x.sum(), f(x)), has_aux=True))(jnp.array([A + 1, A]))[1]),
    "jit of vmap": lambda f: gf.tree.map(lambda y: y[0], gf.jit(gf.vmap(f))(jnp.array([A, A]))),
}  # fmt: skip
STAGED = ("jit", "scan", "checkpoint", "make_jaxpr", "jit of grad", "jit of vmap")


def public(cls) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def test_s00_every_public_name_of_arrays_is_tried():
    assert public(gf.numpy.ones(1)) == {*NAMES, *OF_ARRAYS, *PLACED}


@pytest.mark.parametrize("place", WRAPPED)
def test_s00_array_names_on_every_kind_of_tracer(place):
    plain = jnp.array(A)
    seen = {}

    def everything(x):
        arrays = {}
        seen["tracer"] = isinstance(x, Tracer)
        for name, use in NAMES.items():
            y = use(x)
            parts = y if isinstance(y, tuple) else (y,)
            if all(hasattr(p, "aval") for p in parts) and parts:
                arrays[name] = parts
            else:
                seen[name] = y
        for name, use in OF_ARRAYS.items():
            if name in ("item", "tolist", "tobytes") and place == "amp":
                assert use(x) == use(plain), name  # values are known, nothing is lost
                continue
            kinds = (errors.ConcretizationTypeError, AttributeError, TypeError)
            with pytest.raises(kinds, match=name if name in UNKNOWN else "test_reading.py:"):
                use(x)
        for name, use in PLACED.items():
            if place in STAGED:
                assert not hasattr(x, "device")
                with pytest.raises(AttributeError, match="the device of .* is not known"):
                    use(x)
            else:
                assert use(x) == use(plain), name
        return arrays

    got = WRAPPED[place](everything)
    found = dict(seen)
    assert found.pop("tracer")
    for name, use in NAMES.items():
        y = use(plain)
        parts = y if isinstance(y, tuple) else (y,)
        if name not in got:
            assert found[name] == y, name
            continue
        for mine, reference in zip(got[name], parts, strict=True):
            assert mine.dtype == reference.dtype and mine.shape == reference.shape, name
            low = "amp" in place and name == "dot"
            np.testing.assert_allclose(
                np.asarray(mine, "float64"),
                np.asarray(reference, "float64"),
                rtol=0.02 if low else 1e-5,
                atol=0.05 if low else 1e-6,
                err_msg=name,
            )


def kinds_of_tracers(cls=Tracer):
    for kind in cls.__subclasses__():
        yield kind
        yield from kinds_of_tracers(kind)


def test_s00_no_tracer_hides_a_name_of_arrays():
    meant = {
        "aval",
        "weak",
        "weak_type",
        "devices",
        "block_until_ready",
        "copy_to_host_async",
        "is_deleted",
        "delete",
    }
    names = public(gf.numpy.ones(1))
    kinds = [Tracer, *kinds_of_tracers()]
    assert len(kinds) >= 5
    for kind in kinds:
        own = {n for n in (*vars(kind), *getattr(kind, "__slots__", ())) if n[0] != "_"}
        assert not (own & names) - meant, kind
        assert "__dict__" not in dir(kind), kind


def test_s00_layer_norm_written_with_methods():
    def norm(x):
        return (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + 1e-5) ** 0.5

    expected = norm(A)
    for f in (norm, gf.jit(norm), gf.checkpoint(norm), lambda x: lax.map(norm, x)):
        np.testing.assert_allclose(f(jnp.array(A)), expected, rtol=1e-5, atol=1e-5)


def test_s00_the_names_that_jax_has():
    # Shards of other processes are not known here.
    assert public(jax.Array) - public(gf.numpy.ones(1)) == {"global_shards"}


def test_b24_trace_under_every_transform():
    f = lambda x: x.trace() + x.trace(1)
    expected = np.trace(A) + np.trace(A, 1)
    for place in ("jit", "vmap", "scan", "checkpoint", "jvp", "amp"):
        np.testing.assert_allclose(float(WRAPPED[place](f)), expected, rtol=1e-6)
    np.testing.assert_allclose(gf.grad(f)(jnp.array(A)), np.eye(3) + np.eye(3, k=1))


# ---- habits of torch ----

# what is written -> a word of what it is called here
HABITS = {
    "x.cuda()": "device_put", "x.cpu()": "device_put", "x.to('cuda')": "device_put",
    "x.unsqueeze(0)": "x[None]", "x.detach()": "stop_gradient", "x.numpy()": "asarray",
    "x.backward()": "grad(loss)", "x.grad": "grad(loss)", "x.requires_grad": "grad(loss)",
    "x.requires_grad_()": "grad(loss)", "x.dim()": "x.ndim", "x.permute(1, 0)": "transpose",
    "x.contiguous()": "layouts", "x.expand(2, 3, 3)": "broadcast_to", "x.float()": "astype",
    "x.long()": "astype", "x.half()": "astype", "x.add_(1)": "immutable", "x.zero_()": "immutable",
    "x.numel()": "x.size", "x.masked_fill(x > 0, 0)": "where", "x.exp()": "jnp.exp(x)",
    "x.view(9)": "reshape", "x.view(3, -1)": "reshape", "x.view((9,))": "reshape",
    "x.sum(dim=0)": "axis=", "x.max(dim=0)": "axis=", "x.mean(0, keepdim=True)": "keepdims=",
    "x.std(unbiased=False)": "ddof=", "jnp.sum(x, dim=0)": "axis=", "nn.softmax(x, dim=-1)":
    "axis=", "jnp.stack([x, x], dim=0)": "axis=", "jnp.mean(x, 0, keepdim=True)": "keepdims=",
    "jnp.concatenate([x], dim=0)": "axis=", "nn.logsumexp(x, dim=0)": "axis=",
    "nn.Dense(2, 3)": "Linear", "nn.ReLU()": "relu", "nn.CrossEntropyLoss()": "cross_entropy(",
    "nn.BatchNorm2d(3)": "BatchNorm", "optim.Adam(x)": "adam", "optim.SGD(x)": "sgd",
    "jnp.cat([x, x])": "concatenate", "jnp.tensor([1])": "asarray", "gf.no_grad()": "lax.stop_grad",
    "gf.manual_seed(0)": "random.key", "jnp.randn(3)": "random.normal",
}  # fmt: skip


@pytest.mark.parametrize("place", ["eager", "jit", "grad", "vmap", "amp"])
def test_m13_habits_of_torch(place):
    def tried(x):
        for text, word in HABITS.items():
            with pytest.raises((AttributeError, TypeError)) as error:
                eval(text, {"x": x, "jnp": jnp, "nn": nn, "optim": optim, "gf": gf})
            message = str(error.value)
            assert word in message and len(message.splitlines()) <= 6, (text, message)
            assert "\n  at " in message, (text, message)
            assert type(error.value) is (
                TypeError if "=" in text or ".view" in text else AttributeError
            ), text
        for name in ("cuda", "numpy", "requires_grad", "detach", "add_", "exp", "nothing_known"):
            assert not hasattr(x, name) and getattr(x, name, 5) == 5
        return x

    tried(jnp.array(A)) if place == "eager" else WRAPPED[place](tried)


def test_m13_other_mistakes_keep_their_words():
    x = jnp.ones(3)
    with pytest.raises(TypeError, match=r"sum\(\) got an unexpected keyword argument 'axes'"):
        jnp.sum(x, axes=0)
    with pytest.raises(AttributeError, match="'Array' object has no attribute 'nothing_known'"):
        _ = x.nothing_known
    with pytest.raises(AttributeError, match=r"module 'genesis_fn\.numpy' has no attribute 'zz'"):
        _ = jnp.zz
    for function in (jnp.sum, nn.softmax, jnp.concatenate):
        assert pickle.loads(pickle.dumps(function)) is function
        assert "axis" in inspect.signature(function).parameters


def test_m13_each_answer_names_something_that_exists():
    from genesis_fn.core.diagnostics import torch_habits

    for module, names in torch_habits.MODULES.items():
        package = __import__(module, fromlist=["_"])
        for name in names:
            assert not hasattr(package, name), (module, name)
    for name in torch_habits.ARRAYS:
        assert name not in public(gf.numpy.ones(1)) - {"data"}, name


# ---- every public function ----

S, W = np.float32(1.3), np.array([0.3, 1.2, 2.2], np.float32)
CALLS = [(S,), (W, S), (S, W), (S, S + 1.1), (W, S, S + 1.1), (S, S + 0.6, S + 2), (W, W, S)]
# Steps of a rounding are no slope.
STEPS = {"around", "round", "stop_gradient", "frexp"}
MODULES = [jnp, jnp.linalg, jnp.fft, lax, nn, gf.scipy.special, optim]


def total(out):
    """A number that every float of an output changes."""
    floats = [x for x in gf.tree.leaves(out) if hasattr(x, "aval") and x.dtype.kind == "f"]
    return sum(
        [jnp.sum(x * jnp.cos(1.0 + jnp.arange(x.size)).reshape(x.shape)) for x in floats],
        jnp.zeros(()),
    )


def slopes(f, given, place):
    """(derivative, finite difference) of f(*given) by the scalar at `place`; None: not callable."""

    def g(x):
        return total(f(*[x if i == place else jnp.asarray(v) for i, v in enumerate(given)]))

    try:
        step = 1e-2
        change = float(g(jnp.asarray(given[place] + step)) - g(jnp.asarray(given[place] - step)))
    except Exception:  # not what the function takes
        return None
    try:
        return float(gf.grad(g)(jnp.asarray(given[place]))), change / (2 * step)
    except (errors.ConcretizationTypeError, errors.NotDifferentiableError, TypeError):
        return None


def test_a01_no_public_function_loses_a_derivative_of_a_number():
    tried, lost = 0, []
    for module in MODULES:
        for name in sorted(public(module) - STEPS):
            f = getattr(module, name)
            if not callable(f) or inspect.isclass(f) or name.startswith("save"):
                continue
            for given in CALLS:
                for place in range(len(given)):
                    found = slopes(f, given, place) if given[place].ndim == 0 else None
                    tried += found is not None
                    if found is not None and found[0] == 0 and abs(found[1]) > 0.05:
                        lost.append((module.__name__, name, given, place, found))
    assert tried > 500 and not lost, (tried, lost)
