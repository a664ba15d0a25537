"""Pytrees under JAX's names."""

from __future__ import annotations

import collections
import dataclasses

import jax
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import tree_util as tu

Point = collections.namedtuple("Point", "x y")
TREE = {"b": [1, (2, None)], "a": Point(3, {"k": 4}), "o": collections.OrderedDict(z=5, y=6)}


def test_leaves_and_order_are_those_of_jax():
    assert tu.tree_leaves(TREE) == jax.tree.leaves(TREE)
    assert tu.tree_map(lambda x: -x, TREE) == jax.tree.map(lambda x: -x, TREE)
    assert gf.tree.reduce(lambda a, b: a - b, TREE, 100) == 100 - 21
    assert gf.tree.all({"a": True, "b": [1, 0]}) is False and gf.tree.all([]) is True
    assert tu.tree_reduce(max, TREE) == 6
    assert gf.tree.reduce(
        lambda a, b: a + b, [(1, 2), (3,)], (), is_leaf=lambda x: isinstance(x, tuple)
    ) == (1, 2, 3)


def test_paths_are_those_of_jax():
    ours = tu.tree_leaves_with_path(TREE)
    theirs = jax.tree_util.tree_leaves_with_path(TREE)
    assert [tu.keystr(p) for p, _ in ours] == [jax.tree_util.keystr(p) for p, _ in theirs]
    assert [tu.keystr(p, simple=True, separator="/") for p, _ in ours] == [
        jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in theirs
    ]
    (path, _), *_ = tu.tree_leaves_with_path({"a": [Point(1, 2)]})
    assert path == (tu.DictKey("a"), tu.SequenceKey(0), tu.GetAttrKey("x"))
    assert (path[0].key, path[1].idx, path[2].name) == ("a", 0, "x")
    found = tu.tree_map_with_path(lambda p, a, b: (tu.keystr(p), a + b), {"w": 1}, {"w": 2})
    assert found == {"w": ("['w']", 3)}


def test_custom_nodes():
    class Pair:
        def __init__(self, a, b, tag):
            self.a, self.b, self.tag = a, b, tag

    tu.register_pytree_with_keys(
        Pair,
        lambda p: ([(tu.GetAttrKey("a"), p.a), (tu.GetAttrKey("b"), p.b)], p.tag),
        lambda tag, kids: Pair(*kids, tag),
    )
    p = tu.tree_map(lambda x: x * 10, Pair(1, [2], "t"))
    assert (p.a, p.b, p.tag) == (10, [20], "t")
    assert gf.tree.paths({"p": p}) == ["['p'].a", "['p'].b[0]"]

    @tu.register_pytree_node_class
    class Box:
        def __init__(self, v):
            self.v = v

        def tree_flatten(self):
            return (self.v,), None

        @classmethod
        def tree_unflatten(cls, _, kids):
            return cls(*kids)

    out = gf.jit(lambda b: Box(b.v + 1))(Box(jnp.ones(2)))
    np.testing.assert_array_equal(np.asarray(out.v), [2, 2])
    assert gf.tree.paths(Box(1)) == ["[0]"]

    @tu.register_pytree_with_keys_class
    class Named:
        def __init__(self, v, n):
            self.v, self.n = v, n

        def tree_flatten_with_keys(self):
            return ((tu.GetAttrKey("v"), self.v),), self.n

        @classmethod
        def tree_unflatten(cls, n, kids):
            return cls(*kids, n)

    named = tu.tree_map(lambda x: -x, Named({"w": 3}, "tag"))
    assert (named.v, named.n) == ({"w": -3}, "tag")
    assert gf.tree.paths(named) == [".v['w']"]

    @tu.register_static
    @dataclasses.dataclass(frozen=True)
    class Options:
        n: int

    f = gf.jit(lambda x, o: x * o.n)
    assert float(f(2.0, Options(3))) == 6.0 and float(f(2.0, Options(4))) == 8.0
    assert tu.tree_leaves(Options(3)) == []


def test_register_dataclass():
    @dataclasses.dataclass
    class State:
        w: object
        name: str

    tu.register_dataclass(State, data_fields=["w"], meta_fields=["name"])
    g = gf.grad(lambda s: (s.w**2).sum())(State(jnp.arange(3.0), "s"))
    assert g.name == "s" and g.w.tolist() == [0, 2, 4]
    with pytest.raises(gf.errors.TreeError, match="left out"):
        tu.register_dataclass(State, data_fields=["w"], meta_fields=[])


def test_partial_crosses_jit_and_scan():
    p = tu.Partial(lambda a, x, *, b: a * x + b, jnp.array(2.0), b=jnp.array(1.0))
    f = gf.jit(lambda g, x: g(x))
    assert float(f(p, 3.0)) == 7.0
    g = gf.grad(lambda p: p(3.0))(p)
    assert float(g.args[0]) == 3.0 and float(g.keywords["b"]) == 1.0


def test_structures():
    d = tu.tree_structure({"a": 1, "b": (2, 3)})
    assert [tu.treedef_is_leaf(c) for c in tu.treedef_children(d)] == [True, False]
    pair = tu.treedef_tuple([d, tu.tree_structure(1)])
    assert tu.tree_unflatten(pair, [1, 2, 3, 4]) == ({"a": 1, "b": (2, 3)}, 4)
    assert tu.all_leaves([1, 2.0]) and not tu.all_leaves([1, (2,)])
    assert not tu.treedef_is_leaf(tu.tree_structure(None))
    assert tu.tree_broadcast({"a": 0, "b": 1}, {"a": [1, 2], "b": 3}) == {"a": [0, 0], "b": 1}
    swapped = tu.tree_transpose(
        tu.tree_structure([0, 0]), tu.tree_structure({"a": 0}), [{"a": 1}, {"a": 2}]
    )
    assert swapped == {"a": [1, 2]}


def test_associative_reduction():
    assert tu.tree_reduce_associative(lambda a, b: a + b, [["a"], ["b", "c"], "d"]) == "abcd"
    assert tu.tree_reduce_associative(max, [], identity=0) == 0
    with pytest.raises(ValueError, match="identity"):
        tu.tree_reduce_associative(max, ())


def test_mismatch_names_the_path():
    with pytest.raises(gf.errors.TreeError, match=r"\['b'\]"):
        tu.tree_map(lambda a, b: a, {"a": 1, "b": [1, 2]}, {"a": 1, "b": [1]})


def test_static_fields_count_by_content():
    @gf.tree.dataclass
    class Layer:
        weight: gf.Array
        sizes: list[int] = gf.tree.static_field(default_factory=list)

    one, same, other = (Layer(jnp.ones(2), sizes=n) for n in ([1, 2], [1, 2], [1, 3]))
    assert gf.tree.structure(one) == gf.tree.structure(same) != gf.tree.structure(other)
    twice = gf.jit(lambda layer: layer.weight * layer.sizes[1])
    assert [float(twice(x)[0]) for x in (one, same, other)] == [2, 2, 3]
    assert len(twice.traces) == 2
