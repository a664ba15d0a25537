"""`jit` gives what the function gives now: never the result of other static values, of an object as
it was, or of a torch tensor's earlier batch."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import gc
import itertools
import pickle
import subprocess
import sys
import textwrap
import types
import typing
import warnings
import weakref

import jax
import jax.numpy as J
import numpy as np
import pytest
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, optim, tree, tree_util
from genesis_fn.core.static import Frozen, NotStatic
from genesis_fn.transforms.custom.fused_functions import fused

pytestmark = pytest.mark.filterwarnings(
    "ignore::genesis_fn.transforms.jitting.retrace.RecompilationWarning"
)


class Two(enum.IntEnum):
    """An int by another name."""

    TWO = 2


class Text(str):
    """A string by another name."""


class Pair(typing.NamedTuple):
    """A named tuple."""

    a: typing.Any
    b: typing.Any = 0


@dataclasses.dataclass(frozen=True)
class Frozen1:
    """A configuration that cannot change."""

    scale: typing.Any
    more: typing.Any = ()


@dataclasses.dataclass
class Loose:
    """A configuration that may change."""

    scale: typing.Any = 1
    layers: list = dataclasses.field(default_factory=list)
    names: dict = dataclasses.field(default_factory=dict)
    seen: set = dataclasses.field(default_factory=set)


def scaled(k):
    return lambda x: x * k


# Values of one kind that are all equal to another by `==`, or look alike.
ALIKE = [
    2, 2.0, np.float32(2), np.int32(2), np.float64(2), Two.TWO, 2 + 0j, "2", b"2", Text("2"),
    True, 1, 1.0, np.True_, 0, 0.0, -0.0, False, complex(0.0, -0.0), 0j, None, Ellipsis,
    float("nan"), -float("nan"),
    (), (2,), (2.0,), (True,), (1,), (0.0,), (-0.0,), Pair(2), Pair(2.0), Pair(True), ((1,),),
    ((True,),), frozenset([1]), frozenset([True]), frozenset([1.0]), range(2), slice(2), slice(2.0),
    Frozen1(2), Frozen1(2.0), Frozen1(Two.TWO), Frozen1(1), Frozen1(True), Frozen1(0.0),
    Frozen1(-0.0), Frozen1((1, "a")), Frozen1((1.0, "a")), Frozen1(1, Frozen1(2)),
    Frozen1(1, Frozen1(2.0)), Frozen1([1]), Frozen1([1.0]), Frozen1({1: 2}), Frozen1({True: 2}),
    Frozen1({1: 2.0}), Loose(1), Loose(1.0), Loose(True), Loose(1, [1]), Loose(1, [True]),
    Loose(1, [], {"a": 1}), Loose(1, [], {"a": 1.0}), Loose(1, [], {Text("a"): 1}),
    Loose(1, [], {}, {1}), Loose(1, [], {}, {True}),
    scaled(1), scaled(1.0), scaled(True), scaled([1]), scaled((0.0,)), scaled((-0.0,)),
    functools.partial(scaled, k=1), functools.partial(scaled, k=True),
    functools.partial(scaled, 1.0), np.dtype("float32"), np.float32, float, int, "float32",
    collections.OrderedDict, jnp.sin, jnp.cos, len,
]  # fmt: skip


def test_r01_keys_of_unlike_values_differ_at_every_depth():
    keys = [Frozen(x) for x in ALIKE]
    assert all(k == Frozen(x) and hash(k) == hash(Frozen(x)) for k, x in zip(keys, ALIKE))
    for (i, a), (j, b) in itertools.product(enumerate(keys), repeat=2):
        assert (a == b) == (i == j), (ALIKE[i], ALIKE[j])
    for wrap in (lambda v: (v, 0), lambda v: Frozen1(v), lambda v: Loose(0, [v], {"k": v})):
        keys = [Frozen(wrap(x)) for x in ALIKE]
        for (i, a), (j, b) in itertools.product(enumerate(keys), repeat=2):
            assert (a == b) == (i == j), (ALIKE[i], ALIKE[j])


def kind(v):
    """A number that tells values apart that are equal."""
    text = f"{type(v).__name__}:{v!r}"
    return float(sum(ord(c) * (i + 1) for i, c in enumerate(text)))


@pytest.mark.parametrize("way", ["position", "name", "frozen", "loose", "tuple", "aux", "partial"])
def test_r01_static_arguments_keep_their_type(way):
    """Whatever was called before, each value gets what the function itself gives for it."""
    wrap = {
        "frozen": Frozen1,
        "loose": Loose,
        "tuple": lambda v: (v, "t"),
        "aux": Node,
        "partial": lambda v: functools.partial(kind, v),
    }.get(way, lambda v: v)

    def f(x, s):
        if way == "partial":
            return x * s()
        inside = s.scale if way in ("frozen", "loose") else s[0] if way == "tuple" else s
        inside = inside.meta if way == "aux" else inside
        return x * kind(inside)

    options = (
        {}
        if way in ("frozen", "loose", "aux", "partial")
        else {"name": {"static_argnames": "s"}}.get(way, {"static_argnums": 1})
    )
    g = gf.jit(f, **options)
    values = [
        2,
        2.0,
        True,
        1,
        1.0,
        Two.TWO,
        0.0,
        -0.0,
        np.float32(2),
        "a",
        Text("a"),
        (1,),
        (True,),
    ]
    order = np.random.default_rng(3).integers(0, len(values), 60)
    for i in [*range(len(values)), *order]:
        v = values[i]
        got = g(2.0, s=wrap(v)) if way == "name" else g(2.0, wrap(v))
        assert float(got) == 2.0 * kind(v), v


class Node:
    """A pytree node with static data."""

    def __init__(self, meta, child=1.0):
        self.meta, self.child = meta, child


tree_util.register_pytree_node(Node, lambda n: ((n.child,), n.meta), lambda m, c: Node(m, *c))


def test_r01_as_in_jax():
    def run(jit, np_):
        divide = jit(lambda x, s: x / s if isinstance(s, float) else x // s, static_argnums=1)
        times = jit(lambda x, s: x * s, static_argnames="s")
        total = jit(
            lambda x, k: x.sum(keepdims=k) if k is True else x.sum() + 100, static_argnums=1
        )
        x = np_.arange(4)
        for _ in range(2):
            yield from (divide(x, 2), divide(x, 2.0), times(x, s=2), times(x, s=2.0))
            yield from (total(x, 1), total(x, True))

    for got, want in zip(run(gf.jit, jnp), run(jax.jit, J), strict=True):
        assert got.dtype == want.dtype and np.array_equal(np.asarray(got), np.asarray(want))


def test_r01_keys_of_dicts_keep_their_type():
    f = gf.jit(lambda d: sum(kind(k) * v for k, v in d.items()))
    for _ in range(2):
        for k in (1, True, 1.0, (1,), (True,), (1.0,), "1"):
            assert float(f({k: 2.0})) == 2.0 * kind(k), k
    g = gf.jit(lambda d: {k: v * 2 for k, v in d.items()})
    for _ in range(2):
        assert [type(next(iter(g({k: 1.0})))) for k in (1, True, 1.0)] == [int, bool, float]


def test_r01_structures_tell_static_data_apart():
    kinds = [2, 2.0, True, 1, 0.0, -0.0, Two.TWO, (1,), (True,)]
    trees = [tree.structure(Node(k)) for k in kinds]
    for (i, a), (j, b) in itertools.product(enumerate(trees), repeat=2):
        assert (a == b) == (i == j), (kinds[i], kinds[j])
    held = [1]
    before = tree.structure(Node(held))
    assert before == tree.structure(Node([1])) and hash(before) == hash(tree.structure(Node([1])))
    held.append(2)
    assert before != tree.structure(Node(held))


@pytest.mark.parametrize(
    "transform", ["custom_vjp", "custom_jvp", "checkpoint", "make_jaxpr", "fused"]
)
def test_r01_other_transforms_keep_the_type_too(transform):
    def fun(s, x):
        return x * kind(s)

    if transform == "custom_vjp":
        f = gf.custom_vjp(fun, nondiff_argnums=(0,))
        f.defvjp(lambda s, x: (fun(s, x), None), lambda s, _, ct: (ct * kind(s),))
    elif transform == "custom_jvp":
        f = gf.custom_jvp(fun, nondiff_argnums=(0,))
        f.defjvp(lambda s, p, t: (fun(s, *p), fun(s, *t)))
    elif transform == "checkpoint":
        f = gf.checkpoint(fun, static_argnums=(0,))
    elif transform == "make_jaxpr":
        f = lambda s, x: gf.make_jaxpr(fun, static_argnums=0)(s, x)(x)[0]
    else:
        op = fused(f"kind_of_static_{id(fun)}", static=("s",))(lambda x, *, s: fun(s, x))
        f = lambda s, x: op(x, s=s)
    for s in (2, 2.0, True, 1, 0.0, -0.0, 1.0, Two.TWO):
        value, slope = gf.jit(lambda x: gf.value_and_grad(lambda y: f(s, y))(x))(3.0)
        assert float(value) == 3.0 * kind(s) and float(slope) == kind(s), s


def test_r22_mutable_dataclasses_are_static_by_their_present_contents():
    f = gf.jit(lambda x, s: x * s.scale + len(s.layers) * 10 + s.names.get("b", 0) + len(s.seen))
    s = Loose(2)

    def same():
        for _ in range(2):
            want = 3.0 * s.scale + len(s.layers) * 10 + s.names.get("b", 0) + len(s.seen)
            assert float(f(3.0, s)) == want

    same()
    for change in (
        lambda: s.layers.append(1),
        lambda: s.names.update(b=100),
        lambda: s.seen.add(7),
        lambda: setattr(s, "scale", 5),
        lambda: s.layers.clear(),
        lambda: s.names.clear(),
        lambda: setattr(s, "scale", 5.0),
    ):
        change()
        same()
    assert float(f(3.0, Loose(5.0, seen={7}))) == float(f(3.0, s))
    nested = Loose(2, [{"deep": [1, (2, [3])]}])
    g = gf.jit(lambda x, s: x * s.layers[0]["deep"][1][1][0])
    for k in (3, 4, 3):
        nested.layers[0]["deep"][1][1][0] = k
        assert float(g(1.0, nested)) == k
    itself = Loose()
    itself.layers.append(itself)
    assert float(gf.jit(lambda x, s: x * len(s.layers[0].layers))(2.0, itself)) == 2.0


@pytest.mark.parametrize("options", [{}, {"static_argnums": 1}, {"static_argnames": "s"}])
@pytest.mark.parametrize(
    ("value", "says"),
    [
        (Loose(jnp.ones(2)), r"\.scale in it is an array"),
        (Frozen1(1, ({"w": np.ones(2)},)), r"\.more\[0\]\['w'\] in it is an array"),
        (Loose(1, [torch.ones(2)]), r"\.layers\[0\] in it is an array \(Tensor\)"),
        (Loose(iter([1])), r"\.scale in it is <list_iterator.*changes cannot be seen"),
    ],
)
def test_r22_what_cannot_be_static_is_refused_by_path(options, value, says):
    f = gf.jit(lambda x, s: x, **options)
    with pytest.raises(TypeError, match=rf"(?s)s'? of <lambda>: {says}.*test_jit\.py") as caught:
        f(1.0, value)
    assert len(str(caught.value).splitlines()) <= 6


class Model:
    """A class of the user's, as people write them."""

    gain = 1.0

    def __init__(self, w=None):
        self.w = jnp.arange(3.0) if w is None else w
        self.k, self.steps, self.unread = 2, [1], 0
        self.inner = types.SimpleNamespace(b=jnp.zeros(3))
        self.child = None

    @gf.jit
    def __call__(self, x):
        return x * self.w * self.k

    def apply(self, x):
        y = jnp.sum(x * self.w) * self.k * len(self.steps) * self.gain
        return y if self.child is None else y + self.child.apply(x)

    @property
    def double(self):
        return self.k * 2

    def reads_property(self, x):
        return jnp.sum(x) * self.double


def test_c02_a_jitted_method_sees_its_object_as_it_is():
    m, x = Model(), jnp.ones(3)
    for _ in range(2):
        assert m(x).tolist() == [0.0, 2.0, 4.0]
    m.w = m.w * 3
    for _ in range(2):
        assert m(x).tolist() == [0.0, 6.0, 12.0]
    m.k = 2.5
    assert m(x).tolist() == [0.0, 7.5, 15.0]
    other = Model(jnp.ones(3))
    for _ in range(2):
        assert other(x).tolist() == [2.0, 2.0, 2.0] and m(x).tolist() == [0.0, 7.5, 15.0]


TRANSFORMS = {
    "jit": gf.jit,
    "jit of partial": lambda f: gf.jit(functools.partial(f)),
    "jit of grad": lambda f: lambda x: gf.jit(gf.grad(f))(x).sum(),
    "jit of vmap": lambda f: lambda x: gf.jit(gf.vmap(f))(x[None])[0],
    "jit of checkpoint": lambda f: gf.jit(gf.checkpoint(f)),
    "grad": lambda f: lambda x: gf.grad(f)(x).sum(),
    "vmap": lambda f: lambda x: gf.vmap(f)(x[None])[0],
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (c, f(x)), 0.0, None, length=2)[1][1],
    "fori": lambda f: lambda x: lax.fori_loop(0, 1, lambda i, c: f(x), 0.0),
    "while": lambda f: lambda x: lax.while_loop(
        lambda c: c[1], lambda c: (f(x), False), (0.0, True))[0],
    "cond": lambda f: lambda x: lax.cond(x[0] > 0, f, lambda x: 0.0, x),
    "eval_shape": lambda f: lambda x: f(x) if gf.eval_shape(f, x).shape == () else None,
    "make_jaxpr": lambda f: lambda x: gf.make_jaxpr(f)(x)(x)[0],
    "argument": lambda f: functools.partial(CALLER, f),
}  # fmt: skip
CALLER = gf.jit(lambda f, x: f(x))
CHANGES = {
    "array": lambda m: setattr(m, "w", m.w * 3 + 1),
    "number": lambda m: setattr(m, "k", m.k + 1),
    "type": lambda m: setattr(m, "k", float(m.k)),
    "list": lambda m: m.steps.append(2),
    "object": lambda m: setattr(m, "child", Model(jnp.ones(3))),
    "inside": lambda m: m.child and setattr(m.child, "w", m.child.w + 1),
    "class": lambda m: setattr(Model, "gain", Model.gain + 1.0),
    "own": lambda m: setattr(m, "gain", 5.0),
    "gone": lambda m: m.__dict__.pop("gain"),
    "dict": lambda m: m.__dict__.update(k=7),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_c02_bound_methods_see_their_object_as_it_is(name):
    m, x = Model(), jnp.ones(3)
    f = TRANSFORMS[name](m.apply)
    plain = lambda v: m.apply(v).sum() if "grad" not in name else gf.grad(m.apply)(v).sum()
    try:
        for change in [None, *CHANGES]:
            if change:
                CHANGES[change](m)
            for _ in range(2):
                assert float(f(x)) == float(plain(x)), change
    finally:
        Model.gain = 1.0


def test_c02_what_a_method_does_not_read_may_change():
    m, traces = Model(), []

    class Trainer:
        def __init__(self):
            self.params, self.step, self.log = jnp.ones(3), 0, []
            self.update = gf.jit(self._update)

        def _update(self, params, x):
            traces.append(1)
            return params - 0.5 * x * m.k

        def train(self, x):
            self.params = self.update(self.params, x)
            self.step += 1
            self.log.append(self.step)

    t = Trainer()
    for _ in range(5):
        t.train(jnp.ones(3))
    assert len(traces) == 1 and t.params.tolist() == [-4.0] * 3
    assert type(t).__dict__.get("__getattribute__") is None


def test_c02_partials_callable_objects_and_slots():
    class Slotted:
        __slots__ = ("k",)

        def __init__(self):
            self.k = 2.0

        def __call__(self, x):
            return x * self.k

    s = Slotted()
    f = gf.jit(s)
    items = [1.0]
    g = gf.jit(
        functools.partial(lambda items, x, scale: x * items[0] * scale[0], items, scale=[2.0])
    )
    for k in (2.0, 3.0, 3, 2.0):
        s.k = k
        items[0] = k
        for _ in range(2):
            got = f(1)
            assert float(got) == k and got.dtype == (jnp.float32 if type(k) is float else jnp.int32)
            assert float(g(1.0)) == 2 * k
    m = Model()
    h = gf.jit(m.reads_property)
    for k in (2, 3, 3.5):
        m.k = k
        assert float(h(jnp.ones(2))) == 4 * k


def test_c02_functions_as_arguments_are_what_they_hold():
    f = gf.jit(lambda act, x: act(x))
    k = 2.0

    def act(x):
        return x * k

    items = [1.0]
    default = lambda x, items=items: x * items[0]
    for k in (2.0, 3.0, 2, 2.0):
        items[0] = k
        for _ in range(2):
            assert float(f(act, 1.0)) == k and float(f(default, 1.0)) == k
            assert float(f(lambda x: x + k, 1.0)) == k + 1
            assert float(f(functools.partial(lambda a, x: x * a[0], items), 1.0)) == k
    traces = []
    g = gf.jit(lambda act, x: (traces.append(1), act(x))[1])
    for _ in range(3):
        g(lambda x: jnp.sin(x) * 2, 1.0)
    assert len(traces) == 1
    seen = [float(f(h, 1.0)) for h in [lambda x, i=i: x * i for i in (1.0, 2.0)] * 2]
    assert seen == [1.0, 2.0, 1.0, 2.0]


SCALE = 1.0
UNSEEN = types.ModuleType("unseen")
exec("W = 1.0\ndef get(x):\n    return x * W\n", UNSEEN.__dict__)


def test_c02_programs_are_shared_only_where_functions_do_the_same_now():
    """A new function object gets what it says when it is first called, as JAX traces it then."""
    global SCALE
    items, holder = [1.0], types.SimpleNamespace(k=1.0)
    counter = itertools.count()

    class Plain:
        k = 1.0

        def method(self, x):
            return x * self.k * SCALE

    made = {
        "global": lambda: lambda x: x * SCALE,
        "item": lambda: lambda x: x * items[0],
        "attribute": lambda: lambda x: x * holder.k,
        "class": lambda: lambda x: x * Plain.k,
        "method": lambda: lambda x: Plain().method(x),
        "module": lambda: lambda x: UNSEEN.get(x),
        "by name": lambda: lambda x: x * globals()["SCALE"],
        "getattr": lambda: lambda x: x * getattr(UNSEEN, "W"),  # noqa: B009
    }
    for name, make in made.items():
        early, first = gf.jit(make()), None
        for k in (1.0, 2.0, 1, 1.0, 3.0):
            SCALE = items[0] = holder.k = Plain.k = UNSEEN.W = k
            f, scale = gf.jit(make()), 1.0 if name != "method" else k
            got = f(1)
            assert float(got) == k * scale and (got.dtype == jnp.int32) == (type(k) is int), name
            first = first or f
        assert float(early(1.0)) == 9.0 if name == "method" else 3.0, name
        assert float(first(1)) == 1.0, name  # traced once, as JAX does
    next_one = [float(gf.jit(lambda x: x + next(counter))(0.0)) for _ in range(3)]
    assert next_one == [0.0, 1.0, 2.0]
    SCALE = 1.0


HELD: typing.Any = None
HOLDS = {
    "array": lambda k: jnp.ones(2) * k, "numpy": lambda k: np.full(2, k, "float32"),
    "scalar": np.float32, "torch": lambda k: torch.full((2,), k), "jax": lambda k: J.full(2, k),
    "partial": lambda k: functools.partial(lambda k, x: x * k, k), "enum": lambda k: Two(2) * k,
    "jitted": lambda k: gf.jit(lambda x: x * k), "grad": lambda k: gf.grad(lambda x: x * x * k / 2),
    "vmap": lambda k: gf.vmap(lambda x: x * k), "optimizer": lambda k: optim.sgd(-k),
    "ordered": lambda k: collections.OrderedDict(a=k), "deque": lambda k: collections.deque([k]),
    "generator": lambda k: np.random.default_rng(int(k)), "dtype": lambda k: jnp.int32 if
    k == 2 else jnp.float32,
    "function": lambda k: jnp.sin if k == 2 else jnp.cos,
    "simple": lambda k: types.SimpleNamespace(k=k), "counter": lambda k: itertools.count(int(k)),
}  # fmt: skip


@pytest.mark.parametrize("held", HOLDS)
def test_c02_new_functions_read_what_globals_hold_now(held):
    """Whatever a global is an instance of: the library's, NumPy's and Python's too."""
    global HELD

    def make():
        def f(x):
            if held == "optimizer":
                return HELD.update(x, HELD.init(x), x)[0]
            if held in ("generator", "counter"):
                return x * (HELD.normal() if held == "generator" else HELD.__next__())
            if held in ("ordered", "deque", "simple"):
                return x * (
                    HELD["a"] if held == "ordered" else HELD[0] if held == "deque" else HELD.k
                )
            return HELD(x) if callable(HELD) else x * HELD

        return f

    x = jnp.asarray(1.5) if held != "vmap" else jnp.ones(1)
    for k in (1.0, 2.0, 3.0):
        HELD = HOLDS[held](k)
        got = np.asarray(gf.jit(make())(x))
        HELD = HOLDS[held](k)
        want = np.asarray(make()(x))
        assert got.tolist() == want.tolist() and got.dtype == want.dtype, k
    HELD = None


def test_c02_a_second_function_is_not_given_what_the_first_saw():
    global SCALE
    SCALE = 1.0
    first, second = [gf.jit(lambda x: x * SCALE) for _ in range(2)]
    assert float(first(1.0)) == 1.0
    SCALE = 2.0
    assert float(second(1.0)) == 2.0 and float(first(jnp.ones(1))[0]) == 2.0
    SCALE = 1.0


# ---- torch and others ----


class Offers:
    """An array of a library that nobody knows."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


class OffersJax:
    """What JAX takes by `__jax_array__`."""

    def __init__(self, values):
        self.values = jnp.asarray(values)

    def __jax_array__(self):
        return self.values


class OffersDlpack:
    """What has DLPack only."""

    def __init__(self, values):
        self.values = np.array(values)

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


KINDS = {"torch": torch.tensor, "__array__": Offers, "__jax_array__": OffersJax,
         "dlpack": lambda v: OffersDlpack(np.asarray(v, "float32")), "jax": J.asarray}  # fmt: skip
DOORS = {
    "jit": lambda t: gf.jit(lambda x: x * 2)(t),
    "jit in trees": lambda t: gf.jit(lambda b: b["x"] * 2 + b["n"])({"x": t, "n": 0}),
    "mixed": lambda t: gf.jit(lambda x, y, z: (x + y) * z)(t, t, 1.0),
    "grad": lambda t: gf.grad(lambda x: jnp.sum(x**2))(t),
    "closed over": lambda t: gf.grad(lambda x: jnp.sum(x * t))(jnp.ones(2)) * 2,
    "vmap": lambda t: gf.vmap(lambda x: x * 2)(t),
    "jvp": lambda t: gf.jvp(lambda x: x * 2, (jnp.ones(2),), (t,))[1],
    "vjp": lambda t: gf.vjp(lambda x: x * 2, jnp.ones(2))[1](t)[0],
    "linearize": lambda t: gf.linearize(lambda x: x * 2, t)[1](t),
    "scan": lambda t: lax.scan(lambda c, x: (c, x * 2), 0.0, t)[1],
    "fori": lambda t: lax.fori_loop(0, 1, lambda i, c: c * 2, t),
    "cond": lambda t: lax.cond(True, lambda x: x * 2, lambda x: x, t),
    "checkpoint": lambda t: gf.jit(gf.checkpoint(lambda x: x * 2))(t),
    "jnp": lambda t: jnp.multiply(t, 2),
    "jnp of two": lambda t: jnp.add(t, t),
    "add": lambda t: jnp.zeros(2) + t + t, "radd": lambda t: t + (t + jnp.zeros(2)),
    "in traced code": lambda t: gf.jit(lambda x: x * t + t)(jnp.ones(2)),
    "stack": lambda t: jnp.stack([t, t]).sum(0),
    "at": lambda t: jnp.zeros(2).at[:].set(t) * 2,
    "at traced": lambda t: gf.jit(lambda x, v: x.at[:].add(v))(t, t),
    "asarray": lambda t: jnp.asarray(t) * 2, "lax": lambda t: lax.mul(t, 2.0),
    "matmul": lambda t: jnp.eye(2) @ t * 2,
    "custom": lambda t: custom_double(t), "sum": lambda t: jnp.sum(t) * jnp.ones(2) * 0 + t * 2,
}  # fmt: skip


@gf.custom_jvp
def custom_double(x):
    return x * 2


custom_double.defjvp(lambda p, t: (custom_double(*p), t[0] * 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", DOORS)
def test_m10_arrays_of_others_are_arrays_at_every_door(kind, door):
    if kind in ("__array__", "__jax_array__", "dlpack") and door in ("sum", "radd"):
        pytest.skip("an object without operators")
    got = DOORS[door](KINDS[kind]([1.0, 3.0]))
    assert isinstance(got, gf.Array) and np.asarray(got).tolist() == [2.0, 6.0]


def test_c02_torch_batches_changed_in_place_are_read_anew():
    f = gf.jit(lambda b: {"y": b["x"] * 2, "n": b["n"].sum()})
    t, n = torch.arange(4.0), torch.tensor([1, 2])
    kept = jnp.asarray(t), f({"x": t, "n": n})["y"]
    for k in range(4):
        want = {"y": (t * 2).tolist(), "n": int(n.sum())}
        got = f({"x": t, "n": n})
        assert got["y"].tolist() == want["y"] and int(got["n"]) == want["n"]
        t.mul_(2 + k)
        n.add_(1)
    assert kept[0].tolist() == [0.0, 1.0, 2.0, 3.0] and kept[1].tolist() == [0.0, 2.0, 4.0, 6.0]
    a = np.arange(4.0, dtype="float32")
    x = jnp.asarray(a)
    a *= 5
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_c02_a_data_loader_in_front_of_a_jitted_step():
    from torch.utils.data import DataLoader, TensorDataset

    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(64, 3)), dtype=torch.float32)
    y = x @ torch.tensor([1.0, -2.0, 0.5])
    traces = []

    @gf.jit
    def step(w, batch):
        traces.append(1)
        x, y = batch
        loss, g = gf.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        return w - 0.1 * g, loss

    w = jnp.zeros(3)
    for _ in range(20):
        for batch in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
            w, _ = step(w, batch)
    assert len(traces) == 1
    np.testing.assert_allclose(np.asarray(w), [1.0, -2.0, 0.5], atol=0.02)


def test_m10_dtypes_of_torch():
    for name in (
        "float32",
        "float16",
        "bfloat16",
        "int8",
        "uint8",
        "int16",
        "int32",
        "bool",
        "complex64",
        "float8_e5m2",
        "float8_e4m3fn",
    ):
        t = torch.tensor([1, 0, 1]).to(getattr(torch, name))
        for got in (jnp.asarray(t), gf.jit(lambda x: x)(t)):
            assert (
                got.dtype == gf.dtypes.dtype(name)
                if hasattr(gf, "dtypes")
                else got.dtype.name == name
            )
            assert np.asarray(got).astype("complex64").tolist() == [1, 0, 1]
    assert jnp.asarray(torch.arange(2)).dtype == jnp.int32
    assert jnp.asarray(torch.arange(2), dtype="int64").dtype == np.dtype("int64")
    assert jnp.asarray(torch.ones(2, 3).T).shape == (3, 2)
    assert jnp.asarray([torch.tensor(1.0), 2.0]).tolist() == [1.0, 2.0]
    assert jnp.result_type(torch.ones(1), jnp.ones(1, "float16")) == jnp.float32
    w = torch.ones(2, requires_grad=True)
    for use in (jnp.asarray, gf.jit(lambda x: x), lambda t: jnp.ones(2) * t):
        with pytest.raises(TypeError, match=r"(?s)requires grad.*test_jit\.py.*detach"):
            use(w)
    masked = np.ma.array([1.0, 2.0], mask=[True, False])
    for use in (jnp.asarray, gf.jit(lambda x: x), lambda t: jnp.ones(2) * t):
        with pytest.raises(TypeError, match=r"(?s)masked array.*filled"):
            use(masked)
    assert gf.jit(lambda x: x * 2)(np.matrix([[1.0, 2.0]])).tolist() == [[2.0, 4.0]]
    with pytest.raises(TypeError, match="list"):
        jnp.sin([1.0])
    assert gf.jit(lambda v: v[0] + v[1])([1.0, 2.0]) == 3.0


@pytest.mark.parametrize("traced", [False, True])
def test_m14_operators_take_torch_tensors_on_both_sides(traced):
    import operator

    x, t = jnp.asarray([1.0, 2.0]), torch.tensor([3.0, 5.0])
    for op in (
        operator.add,
        operator.sub,
        operator.mul,
        operator.truediv,
        operator.pow,
        operator.floordiv,
        operator.mod,
        operator.matmul,
        operator.lt,
        operator.le,
        operator.gt,
        operator.ge,
        operator.eq,
        operator.ne,
    ):
        for a, b in ((x, t), (t, x)):
            call = (lambda f: f(x)) if not traced else (lambda f: gf.jit(f)(x))
            got = call(lambda v: op(v, t) if a is x else op(t, v))
            want = op(np.asarray(a), np.asarray(b))
            assert isinstance(got, gf.Array), (op, type(got))
            np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)


# ---- copies ----


@gf.jit
def module_level(x):
    return x * 2


def named(x, n=3):
    return x * n


def test_c06_jitted_functions_are_copied_and_pickled():
    cloudpickle = pytest.importorskip("cloudpickle")
    module_level(1.0)
    f = gf.jit(named, static_argnames="n")
    f(1.0, n=4)
    closed = gf.jit(lambda x, k=2.5: x * k)
    for copied in (
        copy.copy,
        copy.deepcopy,
        lambda g: pickle.loads(pickle.dumps(g)),
        lambda g: cloudpickle.loads(cloudpickle.dumps(g)),
    ):
        assert float(copied(module_level)(2.0)) == 4.0
        again = copied(f)
        assert float(again(2.0, n=5)) == 10.0 and again.options == f.options
    for copied in (copy.copy, copy.deepcopy, lambda g: cloudpickle.loads(cloudpickle.dumps(g))):
        assert float(copied(closed)(2.0)) == 5.0

    @dataclasses.dataclass
    class Config:
        step: typing.Any
        lr: float = 0.1

    config = copy.deepcopy(Config(closed))
    assert float(config.step(2.0)) == 5.0 and config.step is not closed
    m = Model()
    m.step = gf.jit(m.apply)
    twin = copy.deepcopy(m)
    twin.k, m.k = 7, 2
    assert float(twin.step(jnp.ones(3))) == float(twin.apply(jnp.ones(3))) == 21.0
    assert float(m.step(jnp.ones(3))) == 6.0


def test_c06_other_transformed_functions_are_copied():
    cloudpickle = pytest.importorskip("cloudpickle")
    rule = gf.custom_vjp(lambda x: x * 2)
    rule.defvjp(lambda x: (x * 2, None), lambda _, ct: (ct * 7,))
    functions = {
        "grad": gf.grad(lambda x: x**2),
        "vmap": lambda x: gf.vmap(lambda y: y * 2)(x[None])[0],
        "custom_jvp": custom_double,
        "custom_vjp": gf.grad(rule),
        "checkpoint": gf.checkpoint(named),
        "jit of grad": gf.jit(gf.grad(lambda x: x**2)),
    }
    x = jnp.asarray(3.0)
    for name, f in functions.items():
        for copied in (copy.deepcopy, lambda g: cloudpickle.loads(cloudpickle.dumps(g))):
            assert float(copied(f)(x)) == float(f(x)), name
    assert float(gf.grad(copy.deepcopy(rule))(x)) == 7.0
    tx = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-2))
    params = {"w": jnp.ones(3)}
    for other in (copy.deepcopy(tx), cloudpickle.loads(cloudpickle.dumps(tx))):
        got = other.update(params, other.init(params), params)[0]["w"]
        want = tx.update(params, tx.init(params), params)[0]["w"]
        assert got.tolist() == want.tolist()


def test_c06_across_processes(tmp_path):
    script = tmp_path / "main.py"
    script.write_text(
        textwrap.dedent("""
        import pickle, genesis_fn as gf, cloudpickle
        @gf.jit
        def f(x):
            return x * 2
        if __name__ == "__main__":
            assert float(pickle.loads(pickle.dumps(f))(2.0)) == 4.0
            print(cloudpickle.dumps(f).hex())
        """)
    )
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    cloudpickle = pytest.importorskip("cloudpickle")
    assert float(cloudpickle.loads(bytes.fromhex(out.stdout.strip()))(3.0)) == 6.0


def test_b31_arguments_that_are_no_arrays_where_nothing_is_mapped():
    def run(m, jnp):
        yield m.vmap(lambda f, x: f(x), in_axes=(None, 0))(jnp.sin, jnp.arange(3.0))
        yield m.vmap(lambda c, x: x * c["k"] + len(c["name"]), in_axes=(None, 0))(
            {"k": 2.0, "name": "abc"}, jnp.arange(3.0)
        )
        yield m.vmap(lambda c, x: x * c[0], in_axes=((0, None), 0))(
            (jnp.arange(3.0), "s"), jnp.ones(3)
        )

    for got, want in zip(run(gf, jnp), run(jax, J), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6)
    with pytest.raises(TypeError, match="(?s)f.*is 'sin' of type str.*in_axes"):
        gf.vmap(lambda f, x: x)("sin", jnp.ones(2))


@pytest.mark.parametrize("size", [8, 1 << 20])
@pytest.mark.parametrize("form", ["lambda", "static", "method", "partial"])
def test_b36_arrays_in_closures_go_with_their_function(size, form):
    def use():
        w = jnp.zeros(size)
        if form == "lambda":
            fs = [gf.jit(lambda x: w[0] + x) for _ in range(2)]
            [f(1.0) for f in fs]
        elif form == "static":
            fs = gf.jit(lambda f, x: f(x))
            fs(lambda x: x + w[0], 1.0)
        elif form == "method":
            fs = gf.jit(Model(w[:3]).apply)
            w = fs.fun.__self__.w
            fs(jnp.ones(3))
        else:
            fs = gf.jit(functools.partial(lambda w, x: w[0] + x, w))
            fs(1.0)
        return weakref.ref(w)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = use()
    gc.collect()
    assert array() is None


def _fails(w):
    f = gf.jit(lambda x: x + w)
    f(w)
    with pytest.raises(Exception, match="shape"):
        f(jnp.ones(7))


@gf.custom_vjp
def doubled(x):
    return x * 2


doubled.defvjp(lambda x: (x * 2, x), lambda kept, ct: (ct * 2,))
USES = {
    "lambda": lambda w: [(f := gf.jit(lambda x: x + w))(w), f(w), f(1.0)],
    "two": lambda w: [gf.jit(lambda x: x * w)(w) for _ in range(2)],
    "in a dict": lambda w: (lambda d: gf.jit(lambda x: x + d["w"][0])(1.0))({"w": [w]}),
    "static function": lambda w: gf.jit(lambda f, x: f(x))(lambda x: x + w, 1.0),
    "method": lambda w: [(f := gf.jit(Model(w).apply))(w), f(w)],
    "partial": lambda w: gf.jit(functools.partial(lambda w, x: x + w, w))(w),
    "donated": lambda w: gf.jit(lambda x: x + w, donate_argnums=0)(w * 2),
    "grad inside": lambda w: gf.jit(lambda x: gf.grad(lambda y: jnp.sum(jnp.sin(y * w)))(x))(w),
    "jit of grad": lambda w: gf.jit(gf.value_and_grad(lambda y: jnp.sum(jnp.sin(y * w))))(w),
    "vmap": lambda w: gf.jit(gf.vmap(lambda y: y * w))(jnp.ones((2, 3))),
    "scan": lambda w: gf.jit(lambda x: lax.scan(lambda c, _: (c * w, c), x, None, length=3))(w),
    "cond": lambda w: gf.jit(lambda x: lax.cond(x[0] > 0, lambda y: y * w, lambda y: y, x))(w),
    "checkpoint": lambda w: gf.jit(
        gf.grad(lambda x: jnp.sum(gf.checkpoint(lambda y: jnp.sin(y * w))(x))))(w),
    "custom": lambda w: gf.jit(gf.grad(lambda x: jnp.sum(doubled(x * w))))(w),
    "nested": lambda w: gf.jit(lambda x: gf.jit(lambda y: y * w)(x))(w),
    "eager grad": lambda w: gf.grad(gf.jit(lambda x: jnp.sum(x * w)))(w),
    "ahead of time": lambda w: gf.jit(lambda x: x * w).lower(w).compile()(w),
    "error": _fails,
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_b36_what_is_captured_is_freed_without_the_cyclic_collector(use):
    for _ in range(3):
        USES[use](jnp.ones(3))  # what is made once, and what later functions share
    gc.collect()
    gc.disable()
    try:
        w = jnp.ones(3) + 1
        seen = weakref.ref(w)
        USES[use](w)
        del w
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("of", ["arrays", "numpy", "constants"])
def test_b36_memory_of_new_functions_is_flat(of):
    """Live memory of torch's tensors of that size, counted, without the cyclic collector."""
    size = (1 << 18) + 3
    count = lambda: sum(type(x) is torch.Tensor and x.numel() == size for x in gc.get_objects())
    before = count()
    gc.collect()
    gc.disable()
    try:
        for i in range(6):
            if of == "arrays":
                w = jnp.full((size,), float(i))
            elif of == "numpy":
                w = np.full(size, i, "float32")
            f = gf.jit(lambda x: x + (jnp.arange(size) * i if of == "constants" else w)[1])
            assert float(f(1.0)) == (1.0 + i)
            w = f = None
        assert count() - before <= 1
    finally:
        gc.enable()


def test_b36_new_functions_share_programs_without_keeping_arrays():
    w, held = jnp.arange(3.0), {"w": [jnp.ones(3)]}
    make = {"array": lambda: lambda x: x * w, "container": lambda: lambda x: x * held["w"][0]}
    for name, f in make.items():
        found = set()
        for k in range(4):
            g = gf.jit(f())
            assert (
                g(float(k)).tolist()
                == (np.asarray(w if name == "array" else held["w"][0]) * k).tolist()
            )
            found |= {id(p.jaxpr) for p in g.cache.programs}
            assert [c.nbytes for c in g.captures] == [12]
            del g
        assert len(found) == 1
    held["w"][0] = jnp.full(3, 7.0)
    assert gf.jit(make["container"]())(1.0).tolist() == [7.0] * 3


def test_b36_functions_that_write_to_what_they_hold_are_traced_each():
    def counted():
        seen = []
        assert float(gf.jit(lambda x: (seen.append(1), x * 2)[1])(1.0)) == 2.0
        return len(seen)

    assert [counted() for _ in range(4)] == [1] * 4

    def told_apart(a, b):
        return float(gf.jit(lambda x: x + (1.0 if a is b else 2.0))(0.0))

    one, other = [3], [3]
    assert [told_apart(one, one), told_apart(one, other), told_apart(other, other)] == [1, 2, 1]


def test_b36_a_shared_program_follows_the_form_of_each_call():
    w = jnp.arange(3.0)
    for _ in range(3):
        f = gf.jit(lambda x, y: x * w - y)
        g = gf.jit(lambda x, y: x * w - y)
        for h in (f, g):
            for _ in range(2):
                assert h(2.0, 1.0).tolist() == [-1.0, 1.0, 3.0]
                assert h(y=1.0, x=2.0).tolist() == [-1.0, 1.0, 3.0]
    deleted = jnp.arange(3.0)
    k = gf.jit(lambda x: x + deleted)
    k(1.0)
    gf.jit(lambda x: x + 1, donate_argnums=0)(deleted)
    with pytest.raises(gf.errors.DonatedError, match="donated"):
        k(1.0)


def test_b36_lambdas_of_one_meaning_still_share_their_programs():
    programs = set()
    for _ in range(4):
        f = gf.jit(lambda x: jnp.sin(x) * 2)
        assert float(f(0.0)) == 0.0
        programs |= {id(p) for p in f.cache.programs}
    assert len(programs) == 1


def test_c05_registering_a_named_tuple_is_silent_and_wins():
    class Swapped(typing.NamedTuple):
        a: typing.Any
        b: typing.Any

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tree_util.register_pytree_node(
            Swapped, lambda s: ((s.b,), s.a), lambda a, kids: Swapped(a, kids[0])
        )
    s = Swapped("static", jnp.ones(2))
    assert len(tree.leaves(s)) == 1
    f = gf.jit(lambda s, x: Swapped(s.a + "!", s.b * x))
    for k in (2.0, 3.0):
        got = f(s, k)
        assert got.a == "static!" and got.b.tolist() == [k, k] and type(got) is Swapped
    assert f(Swapped("other", jnp.ones(2)), 2.0).a == "other!"
    assert gf.grad(lambda s: jnp.sum(s.b**2))(s).b.tolist() == [2.0, 2.0]


def test_r23_a_fork_after_threads_is_warned_of_once():
    code = """
    import os, warnings, sys
    import genesis_fn as gf, genesis_fn.numpy as jnp
    def forked():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pid = os.fork()
            if not pid:
                os._exit(0)
            os.waitpid(pid, 0)
        return [str(w.message) for w in caught if "genesis" in str(w.message)]
    print(len(forked()))
    (jnp.ones((512, 512)) @ jnp.ones((512, 512))).block_until_ready()
    print(*map(len, (forked(), forked())))
    """
    for threads, want in (("2", ["0", "1", "0"]), ("1", ["0", "0", "0"])):
        out = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            env={**__import__("os").environ, "OMP_NUM_THREADS": threads, "GENESIS_DEVICE": "cpu"},
            check=True,
        )
        assert out.stdout.split() == want, (threads, out.stdout)


def test_c02_refusals_name_what_was_seen():
    with pytest.raises(NotStatic, match="an array"):
        Frozen([np.ones(2)])
