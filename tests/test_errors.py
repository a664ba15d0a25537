"""Messages: what was wrong, with which value, at which user line, and what to write instead."""

from __future__ import annotations

import contextlib
import re

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn import nn
from genesis_fn.core import dtypes, errors, tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import sig
from genesis_fn.core.configuration import config
from genesis_fn.core.device import Device, device
from genesis_fn.core.diagnostics import source_info
from genesis_fn.core.primitive import PRIMITIVES, Primitive, Trace, bind
from genesis_fn.random import key, normal as normal_sample
from genesis_fn.transforms.autodiff.checkpointing import checkpoint
from genesis_fn.transforms.autodiff.derivatives import grad, jvp, linearize, value_and_grad, vjp
from genesis_fn.transforms.autodiff.jacobians import jacfwd, jacrev
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.conditionals import cond
from genesis_fn.transforms.control_flow.loops import fori_loop, while_loop
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.jitting import clear_caches, jit
from genesis_fn.transforms.precision.autocast import amp
from genesis_fn.transforms.staging.tracing import make_jaxpr
from tests.transforms.both import normal, ours

A, V = normal(3, 4), normal(4, seed=2)
kept: list = []


def elsewhere() -> ArrayImpl:
    """An array that says it lives on another device."""
    x = ours(V)
    return ArrayImpl(x.data, sig(x.aval, Device("cpu", 7)))


def donated() -> ArrayImpl:
    x = ours(V)
    jit(lambda y: y * 2, donate_argnums=0)(x)
    return x


def leak(value):
    kept.append(value)
    return value * 2


def leaked(transform):
    kept.clear()
    transform()
    return kept[-1]


# call, exception, what the message must say; whether it names a line of this file.
CASES = {
    "leaked from jit": (
        lambda: leaked(lambda: jit(leak)(ours(V))) + 1, errors.UnexpectedTracerError,
        ["leaked tracer", "f64[4]", "return the value"], True),
    "leaked from grad": (
        lambda: leaked(lambda: grad(lambda x: leak(x).sum())(ours(V))) + 1,
        errors.UnexpectedTracerError, ["leaked tracer", "f64[4]"], True),
    "leaked from vmap": (
        lambda: leaked(lambda: vmap(leak)(ours(A))) + 1, errors.UnexpectedTracerError,
        ["leaked tracer", "f64[4]", "vmap"], True),
    "leaked into another jit": (
        lambda: jit(lambda y: y + leaked(lambda: jit(lambda v: leak(v))(ours(V))))(ours(V)),
        errors.UnexpectedTracerError, ["leaked tracer", "argument v of <lambda>"], True),
    "if on a tracer": (
        lambda: jit(lambda x: 1.0 if x > 0 else 2.0)(1.0), errors.TracerBoolConversionError,
        ["bool[]", "where"], True),
    "int of a tracer": (
        lambda: jit(lambda x: [1, 2][x])(1), errors.TracerIntegerConversionError, ["i32[]"], True),
    "range of a tracer": (
        lambda: jit(lambda n: sum(range(n)))(3), errors.TracerIntegerConversionError,
        ["i32[]"], True),
    "float of a tracer": (
        lambda: jit(lambda x: float(x))(1.0), errors.ConcretizationTypeError, ["f32[]"], True),
    "numpy of a tracer": (
        lambda: jit(lambda x: np.sin(np.asarray(x)))(ours(V)), errors.TracerArrayConversionError,
        ["f64[4]"], True),
    "boolean mask of a tracer": (
        lambda: jit(lambda x: x[x > 0])(ours(V)), errors.NonConcreteBooleanIndexError,
        ["bool[4]", "where"], True),
    "shapes": (
        lambda: ours(A) @ ours(A), (errors.ShapeError, TypeError, ValueError),
        ["f64[3,4]"], True),
    "shapes under jit": (
        lambda: jit(lambda x: x @ x)(ours(A)), (errors.ShapeError, TypeError, ValueError),
        ["f64[3,4]"], True),
    "broadcast": (
        lambda: ours(A) + ours(V[:3]), (errors.ShapeError, TypeError, ValueError), ["3"], True),
    "dtypes": (
        lambda: bind(PRIMITIVES["add"], ours(V), ours(V.astype(np.float32))),
        errors.DTypeError, ["add", "f64[4]", "f32[4]"], True),
    "kinds": (
        lambda: bind(PRIMITIVES["exp"], ours(np.arange(3))), errors.DTypeError,
        ["exp takes", "i64[3]"], True),
    "two devices": (
        lambda: ours(V) + elsewhere(), errors.DeviceError, ["cpu()", "device_put"], True),
    "donated": (lambda: donated() + 1, errors.DonatedError,
        ["f64[4]", "donated to", "use the value that the call returned"], True),
    "immutable": (
        lambda: ours(V).__setitem__(0, 1.0), TypeError, ["immutable", "x.at[i].set(v)"], True),
    "unhashable array": (lambda: hash(ours(V)), TypeError, ["not hashable"], False),
    "unhashable static": (
        lambda: jit(lambda x, n: x, static_argnames="n")(1.0, n=[1]), TypeError,
        ["static argument 'n'", "[1]", "hashable"], True),
    "tree mismatch": (
        lambda: tree.map(lambda a, b: a, {"a": 1, "b": [2, 3]}, {"a": 1, "b": [2]}),
        errors.TreeError, ["['b']"], True),
    "list for an array": (lambda: jnp.sum([1, 2]), TypeError, ["sum takes", "asarray"], True),
    "operands that are arguments": (
        lambda: jit(lambda p, x: x @ p["w"])({"w": ours(A)}, ours(A)), errors.ShapeError,
        ["x f64[3,4] @ p['w'] f64[3,4]"], True),
    "operands of a sum": (
        lambda: jit(lambda p: p[0] + p[1])([ours(V), ours(V[:3])]), errors.ShapeError,
        ["p[0] f64[4], p[1] f64[3]"], True),
    "a layer's operands": (
        lambda: nn.Linear(4, 2)(nn.Linear(4, 2).init(key(0)), jnp.ones((2, 5))),
        errors.ArgumentError, ["the input is f32[2,5]", "(in nn/module.py:"], True),
    "static array": (
        lambda: jit(lambda x, n: x, static_argnums=1)(1.0, ours(V)), TypeError,
        ["static argument 'n' of <lambda> is an array", "leave it out"], True),
    "unknown option of jit": (
        lambda: jit(lambda x: x, donate="x"), TypeError, ["donate_argnames"], False),
    "compiled within a transform": (
        lambda: jit(jit(jnp.sin).lower(ours(V)).compile())(ours(V)), TypeError,
        ["compiled", "call the jitted function there"], True),
    "scan: no pair": (
        lambda: scan(lambda c, x: c, 1.0, ours(V)), errors.TreeError, ["(carry, y)"], True),
    "scan: shape of the carry": (
        lambda: scan(lambda c, x: (jnp.append(c, x), None), ours(V), ours(V)), TypeError,
        ["f64[4]", "f64[5]", "its shape must stay"], True),
    "scan: how the carry is treated": (
        lambda: scan(lambda c, x: (c, x), 1.0, ours(V), carry="loose"), ValueError,
        ["'loose'", '"cast"'], True),
    "fori_loop": (
        lambda: fori_loop(0, 3, lambda i, c: {"a": c["a"].astype("float32")}, {"a": ours(V)}),
        TypeError, ["fori_loop: the value['a']", "comes out of <lambda> as f32[4]"], True),
    "derivative by a name": (lambda: key(0)[1.5], TypeError, ["integers and names"], True),
    "not a key": (lambda: normal_sample(3), TypeError, ["random.key(seed)"], True),
    "axis of argmax": (lambda: jnp.argmax(ours(A), (0, 1)), TypeError, ["argmax", "(0, 1)"], False),
    "cotangent structure": (
        lambda: vjp(lambda x: {"a": x}, ours(V))[1](ours(V)), errors.TreeError,
        ["the cotangent", "the output"], True),
    "vmap sizes": (
        lambda: vmap(lambda x, y: x)(ours(A), ours(V)), ValueError,
        ["argument 0: f64[3,4] has 3", "argument 1: f64[4] has 4"], True),
    "scan carry": (
        lambda: scan(lambda c, x: (c + x, x), jnp.zeros(4, "float32"), ours(A)), TypeError,
        ["f32[4]", "f64[4]", 'carry="cast"'], True),
    "grad of an integer": (
        lambda: grad(lambda p: p["w"].sum())({"w": ours(V), "n": [ours(np.arange(2))]}), TypeError,
        ["argument 0['n'][0] is i64[2]", 'nonfloat="none"'], True),
    "grad of a vector": (
        lambda: grad(lambda x: x * 2)(ours(V)), TypeError, ["f64[4]", "jacrev"], True),
    "branches": (
        lambda: cond(True, lambda: ours(V), lambda: 1.0), TypeError, ["f64[4]", "f32[]", "astype"],
        True),
    "unknown dtype": (
        lambda: jnp.zeros(3, "float33"), errors.DTypeError, ["'float33'", "bfloat16"], False),
    "not an array": (
        lambda: jit(lambda x: bind(PRIMITIVES["sin"], "text"))(1.0), TypeError, ["'text'"], False),
    "not an array, eagerly": (
        lambda: bind(PRIMITIVES["sin"], [1.0]), TypeError, ["sin takes arrays", "[1.0]"], True),
    "output of a traced function": (
        lambda: jit(lambda x: {"a": "text"})(1.0), errors.TreeError, ["'text'", "['a']"], False),
    "index": (lambda: ours(V)[7], IndexError, ["index 7", "axis 0", "f64[4]"], True),
    "unknown setting": (lambda: config.update("debug_nan", True), AttributeError,
        ["'debug_nan'", "debug_nans"], False),
    "type of a setting": (lambda: config.update("debug_nans", 1), TypeError, ["bool"], False),
    "device index": (lambda: device("cpu", 5), errors.BackendError, ["cpu(5)"], False),
    "unknown device": (lambda: device("tpu"), errors.BackendError, ["'tpu'", "cpu"], False),
    "primitive defined twice": (lambda: Primitive("sin", lambda x: x), ValueError,
        ["twice"], False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_message(name):
    call, kind, words, line = CASES[name]
    with pytest.raises(kind) as error:
        call()
    text = str(error.value)
    assert len(text.splitlines()) <= 6, text
    for word in words:
        assert word in text, text
    if line:
        assert "test_errors.py:" in text, text


def stored(p):
    kept.append(p["w"])
    kept.append(p["w"] * 2)
    return kept[-1].sum()


P = {"w": ours(A)}
TRANSFORMS = {
    "grad": lambda: grad(stored)(P),
    "value_and_grad": lambda: value_and_grad(stored)(P),
    "vjp": lambda: vjp(stored, P),
    "linearize": lambda: linearize(stored, P),
    "jvp": lambda: jvp(stored, (P,), (P,)),
    "jacfwd": lambda: jacfwd(stored)(P),
    "jacrev": lambda: jacrev(stored)(P),
    "vmap": lambda: vmap(stored)(P),
    "amp": lambda: amp(stored, "bfloat16")(P),
    "grad of vmap": lambda: grad(lambda p: vmap(stored)(p).sum())(P),
    "vmap of grad": lambda: vmap(grad(stored))(P),
    "jit": lambda: jit(stored)(P),
    "jit of grad": lambda: jit(grad(stored))(P),
    "scan": lambda: scan(lambda c, p: (c + stored(p), None), jnp.zeros((), "f8"), P),
    "while_loop": lambda: while_loop(lambda p: p["w"].sum() < 0, lambda p: stored(p) and p, P),
    "cond": lambda: cond(True, stored, lambda p: p["w"].sum(), P),
    "checkpoint": lambda: jit(checkpoint(stored))(P),
}
# These know every line; those, the lines of what has a tangent.
RECORDED = {"jit", "jit of grad", "scan", "while_loop", "cond", "checkpoint"}
TAPED = {"grad", "value_and_grad", "vjp", "linearize", "jacrev", "grad of vmap", "vmap of grad"}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_leak_names_the_argument_or_line_it_is_from(name):
    kept.clear()
    with contextlib.suppress(errors.ConcretizationTypeError):
        TRANSFORMS[name]()
    argument, made = kept[:2]
    for value in (argument, made):
        with pytest.raises(errors.UnexpectedTracerError) as error:
            value + 1
        text = str(error.value)
        assert len(text.splitlines()) <= 4 and "test_errors.py:" in text, text
        if value is argument:
            assert re.search(r"argument \w+\['w'\] of (stored|<lambda>)", text), text
        elif name in RECORDED | TAPED:
            assert 'kept.append(p["w"] * 2)' in text, text
        else:
            assert re.search(r"a line of stored, (jvp|jacfwd|vmap|amp) called at .*test_err", text)


def test_a_leaked_value_is_no_argument_either():
    for transform in (lambda: grad(stored)(P), lambda: jit(stored)(P)):
        kept.clear()
        clear_caches()
        transform()
        for use in (jit(lambda y: y), grad(lambda y: y.sum()), vmap(jnp.sin), jnp.sin):
            with pytest.raises(errors.UnexpectedTracerError, match=r"argument p\['w'\] of stored"):
                use(kept[0])


def test_errors_are_what_callers_would_catch():
    assert issubclass(errors.ShapeError, (TypeError, ValueError))
    assert issubclass(errors.NonConcreteBooleanIndexError, IndexError)
    assert issubclass(errors.OutOfMemoryError, MemoryError)
    assert issubclass(errors.NanError, FloatingPointError)
    error = errors.IndexOutOfRange.at(7, 0, ours(V).aval, 2)
    assert (error.axis, error.size, error.index) == (0, 4, 7) and "2 elements" in str(error)


def test_nothing_is_left_behind():
    """After an error inside traces the next operation is eager again."""
    for f in (jit, grad, vmap):
        with pytest.raises(ZeroDivisionError):
            f(lambda x: 1 / 0)(ours(V))
        assert isinstance(ours(V) * 2, ArrayImpl)
    with pytest.raises(ZeroDivisionError):
        scan(lambda c, x: 1 / 0, 0.0, ours(V))
    assert isinstance(ours(V) * 2, ArrayImpl)


def test_settings():
    before = config.current()
    with config.override(check_keys=True) as inside:
        assert inside.check_keys and config.current() is inside
        with config.override(check_keys=False):
            assert not config.current().check_keys
    assert config.current() is before
    config.update("log_compiles", True)
    assert config.current().log_compiles
    config.update("log_compiles", False)
    assert config.current() is before


def test_user_lines():
    where = source_info.where(depth=2)
    assert where.file.endswith("test_errors.py") and "source_info.where" in where.text()
    assert where.function == "test_user_lines"
    assert "test_errors.py:" in str(where) and "source_info.where" in where.describe()
    assert source_info.is_internal(grad.__code__) and not source_info.is_internal(leak.__code__)
    ghost = source_info.SourceLocation(compile("1", "<nowhere>", "exec"), 1)
    assert ghost.text() == "" and ghost.describe() == "<nowhere>:1"


def test_traces_and_tracers_by_themselves():
    with pytest.raises(TypeError, match="does not interpret"):
        Trace("t").process(PRIMITIVES["sin"], (), {})
    seen = []
    jit(lambda x: seen.append((repr(x), x.concrete(), x.origin())) or x)(1.0)
    assert seen[0][1] is None and "argument x" in seen[0][2] and "f32[]" in seen[0][0]
    with pytest.raises(TypeError, match="not hashable"):
        jit(lambda x: {x: 1})(1.0)
    assert dtypes.dtype("f32") == np.float32


def test_a_line_of_a_layer_keeps_each_line_that_called_it():
    def f(x):
        y = nn.silu(x)
        return nn.silu(y)

    first = f.__code__.co_firstlineno
    for _ in range(2):  # lines are made once, and found again
        lines = [e.where for e in make_jaxpr(f)(jnp.ones(3)).jaxpr.eqns]
        own = {(w.code, w.line) for w in lines if w.user}
        assert {w.user.line - first for w in lines if w.user} == {1, 2}
        assert len({(w.code, w.line, w.user.line) for w in lines if w.user}) == 2 * len(own)
