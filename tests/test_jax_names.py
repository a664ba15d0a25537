"""Names of JAX's core, typing, trees, errors and tools: what they give is what JAX's give."""

from __future__ import annotations

import collections
import json
import logging
from typing import Any

import jax
import jax.dlpack
import jax.dtypes
import jax.tree_util as theirs
import numpy as np
import pytest
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import tree_util as ours

Point = collections.namedtuple("Point", "x y")
NODES = [
    [1, 2], (1, [2]), {"b": 1, "a": 2}, None, [], {}, collections.OrderedDict(b=1, a=2),
    collections.defaultdict(int, a=1), {"a": None},
]  # fmt: skip


# ---- trees ----


@pytest.mark.parametrize("node", NODES, ids=repr)
def test_one_level_of_a_node(node: Any):
    mine, want = ours.flatten_one_level(node), theirs.flatten_one_level(node)
    assert mine[0] == list(want[0]) and mine[1] == want[1]
    hash(mine[1])
    mine, want = ours.flatten_one_level_with_keys(node), theirs.flatten_one_level_with_keys(node)
    assert [(str(k), v) for k, v in mine[0]] == [(str(k), v) for k, v in want[0]]
    assert ours.is_tree_node(type(node)) and theirs.is_tree_node(type(node))


def test_one_level_of_other_nodes():
    pairs, static = ours.flatten_one_level_with_keys(Point(1, 2))
    assert [(str(k), v) for k, v in pairs] == [(".x", 1), (".y", 2)] and static is Point
    assert ours.flatten_one_level(ours.Partial(print, 1, end="")) == ([(1,), {"end": ""}], print)
    assert ours.is_tree_node(Point) and not ours.is_tree_node(int)
    assert ours.default_registry.is_node(dict)
    for leaf in (3, jnp.ones(2)):
        with pytest.raises(ValueError, match="has no children"):
            ours.flatten_one_level(leaf)
        with pytest.raises(ValueError):
            theirs.flatten_one_level(np.ones(2))


TREE = {"a": [1, {"b": 2}], "c": (None, 3), "d": Point(4, [5, 6])}
LEAVES = {
    "second level": lambda path, x: len(path) == 2,
    "below c": lambda path, x: bool(path) and str(path[0]) == "['c']",
    "lists": lambda path, x: isinstance(x, list),
    "None": lambda path, x: x is None,
    "all": lambda path, x: True,
    "nothing": lambda path, x: False,
}


@pytest.mark.parametrize("is_leaf", LEAVES.values(), ids=LEAVES)
def test_leaves_by_their_paths(is_leaf: Any):
    mine, structure = ours.tree_flatten_with_path(TREE, is_leaf, is_leaf_takes_path=True)
    # JAX calls both steps into a named tuple by its first field: compared without them.
    want, expected = theirs.tree_flatten_with_path(TREE, is_leaf, is_leaf_takes_path=True)
    plain = lambda path: [str(k) for k in path if str(k)[0] != "."]
    assert [(plain(p), x) for p, x in mine] == [(plain(p), x) for p, x in want]
    assert structure.num_leaves == expected.num_leaves
    rebuilt = gf.tree.map_with_path(
        lambda path, x: x, TREE, is_leaf=is_leaf, is_leaf_takes_path=True
    )
    assert rebuilt == TREE
    assert gf.tree.leaves_with_path(TREE, is_leaf, True) == mine


def test_tree_functions_of_jaxs_names():
    numbers = {"a": [1, 2], "b": 3, "c": (4, 5)}
    for module in (gf.tree, jax.tree):
        text = module.reduce_associative(lambda x, y: f"{x}{y}", numbers, identity="")
        assert text == "12345"
        assert module.reduce_associative(lambda x, y: x + y, [], identity=7) == 7
        field = module.static(default=3, metadata={"unit": "m"})
        assert field.default == 3 and field.metadata == {"unit": "m", "static": True}
        outer, inner = module.structure([0, 0]), module.structure({"w": 0})
        turned = module.transpose(
            outer_treedef=outer, inner_treedef=inner, pytree_to_transpose=[{"w": 1}, {"w": 2}]
        )
        assert turned == {"w": [1, 2]}
    with pytest.raises(ValueError, match="identity"):
        gf.tree.reduce_associative(max, [])


# ---- dtypes, typing, errors ----


def test_dtypes():
    for name in ("bool", "int8", "uint64", "float32", "bfloat16", "complex64", "complex128"):
        assert gf.dtypes.itemsize_bits(name) == jax.dtypes.itemsize_bits(jax.numpy.dtype(name))
        assert gf.dlpack.is_supported_dtype(name) == jax.dlpack.is_supported_dtype(
            jax.numpy.dtype(name)
        )
    key = gf.random.key(0)
    assert jnp.issubdtype(key.dtype, gf.dtypes.prng_key)
    assert jnp.issubdtype(key.dtype, gf.dtypes.extended)
    assert not jnp.issubdtype(jnp.ones(2).dtype, gf.dtypes.prng_key)
    with pytest.raises(ValueError, match="no dtype of numbers"):
        gf.dtypes.itemsize_bits(key.dtype)
    assert not gf.dlpack.is_supported_dtype(key.dtype)
    with pytest.raises(TypeError):
        gf.dlpack.is_supported_dtype(None)


def test_dtypes_without_a_common_one():
    with gf.numpy_dtype_promotion("strict"), pytest.raises(gf.dtypes.TypePromotionError):
        jnp.ones(2, "float32") + jnp.ones(2, "int32")
    with pytest.raises(gf.dtypes.TypePromotionError):
        jnp.ones(2, "float8_e4m3fn") + jnp.ones(2, "bfloat16")
    assert issubclass(gf.dtypes.TypePromotionError, ValueError)


def test_what_is_like_an_array():
    from genesis_fn.typing import ArrayLike

    for x in (jnp.ones(2), np.ones(2), np.float32(1), 1, 1.0, True, 1j, torch.ones(2)):
        assert isinstance(x, ArrayLike)
    assert not any(isinstance(x, ArrayLike) for x in ([1.0], "a", None, {}))
    seen = []
    gf.jit(lambda x: seen.append(isinstance(x, ArrayLike)))(1.0)
    assert seen == [True]


def test_errors_have_jaxs_bases():
    for mine, want in [
        ("ConcretizationTypeError", "JAXTypeError"), ("TracerArrayConversionError", "JAXTypeError"),
        ("TracerIntegerConversionError", "JAXTypeError"), ("KeyReuseError", "JAXTypeError"),
        ("TracerBoolConversionError", "ConcretizationTypeError"),
        ("UnexpectedTracerError", "JAXTypeError"),
        ("NonConcreteBooleanIndexError", "JAXIndexError"),
    ]:  # fmt: skip
        for errors in (gf.errors, jax.errors):
            assert issubclass(getattr(errors, mine), getattr(errors, want))
    for name in ("JAXTypeError", "JAXIndexError", "JaxRuntimeError", "JaxprTypeError"):
        bases = (TypeError, IndexError, RuntimeError)
        mine, want = getattr(gf.errors, name), getattr(jax.errors, name)
        assert [issubclass(mine, b) for b in bases] == [issubclass(want, b) for b in bases]
    assert issubclass(gf.errors.OutOfMemoryError, gf.errors.JaxRuntimeError)
    assert issubclass(gf.errors.InconclusiveDimensionOperation, Exception)


def test_what_the_library_raises_is_caught_by_jaxs_names():
    x = jnp.arange(3.0)
    with pytest.raises(gf.errors.JAXIndexError):
        gf.jit(lambda x, m: x[m])(x, x > 1)
    with pytest.raises(gf.errors.JAXIndexError):
        x[7]
    with pytest.raises(gf.errors.JAXTypeError):
        gf.jit(lambda x: x if x > 0 else -x)(1.0)
    with pytest.raises(gf.errors.JAXTypeError):
        gf.jit(np.sin)(x)
    jitted = gf.jit(lambda y: y * 2, donate_argnums=0)
    jitted(x)
    with pytest.raises(gf.errors.JaxRuntimeError):
        x + 1


# ---- core ----


def test_core():
    core = gf.core
    kinds = []
    gf.jit(lambda x: kinds.append((isinstance(x, core.Tracer), type(x.aval))))(jnp.ones(2))
    assert kinds == [(True, core.ShapedArray)] and not isinstance(jnp.ones(2), core.Tracer)
    assert core.ShapedArray((2, 3), "float32") is gf.typeof(jnp.ones((2, 3)))
    assert isinstance(gf.typeof(1.0), core.AbstractValue)
    w = jnp.arange(3.0)
    closed = gf.make_jaxpr(lambda x: (w * x).sum())(jnp.ones(3))
    assert isinstance(closed.jaxpr, core.Jaxpr)
    run = lambda x: core.eval_jaxpr(closed.jaxpr, closed.consts, x)[0]
    assert float(run(jnp.ones(3))) == 3.0
    assert gf.jit(gf.grad(run))(jnp.ones(3)).tolist() == [0.0, 1.0, 2.0]
    assert gf.vmap(run)(jnp.ones((2, 3))).tolist() == [3.0, 3.0]
    with pytest.raises(gf.errors.ShapeError, match="eval_jaxpr"):
        run(jnp.ones(4))
    with pytest.raises(AttributeError, match="CallPrimitive"):
        core.CallPrimitive


# ---- tools ----


def test_processes_and_versions(capsys):
    assert (gf.host_id(), gf.host_count(), gf.host_ids(), gf.process_indices()) == (0, 1, [0], [0])
    assert gf.version.__version__ == gf.__version__
    assert ".".join(map(str, gf.version.__version_info__)) == gf.__version__
    text = gf.print_environment_info(return_string=True)
    assert gf.print_environment_info() is None
    assert capsys.readouterr().out.strip() == text
    assert gf.__version__ in text and np.__version__ in text and "cpu: cpu()" in text


def test_what_a_traced_program_takes():
    def f(x, mode, *, y):
        return {"out": x * y["a"]}

    traced = gf.jit(f, static_argnums=1, donate_argnums=0).trace(
        jnp.ones(3), "fast", y={"a": jnp.ones((2, 3), "int32")}
    )
    (x, mode), kwargs = traced.args_info
    assert (x.shape, str(x.dtype), x.donated, mode) == ((3,), "float32", True, None)
    y = kwargs["y"]["a"]
    assert (y.shape, str(y.dtype), y.donated) == ((2, 3), "int32", False)
    assert isinstance(y, gf.stages.ArgInfo) and gf.stages.CompilerOptions


def test_logging(caplog):
    with caplog.at_level(logging.INFO, "genesis_fn"):
        gf.jit(gf.vmap(lambda x: gf.debug.log("x is {x}", x=x)))(jnp.arange(2))
        gf.effects_barrier()
    assert [r.getMessage() for r in caplog.records] == ["x is 0", "x is 1"]
    with pytest.raises(ValueError, match="debug.log: the format"):
        gf.debug.log("x", 1)
    with pytest.raises(TypeError, match="debug.log takes a format string"):
        gf.debug.log(1)


def test_shardings_are_looked_at(capsys):
    found = []
    x = jnp.ones((2, 3), device=gf.cpu())
    gf.debug.inspect_array_sharding({"a": x}, callback=found.append)
    assert found == [x.sharding] and not x.committed
    gf.vmap(lambda r: gf.debug.inspect_array_sharding(r, callback=found.append))(x)
    assert found == [x.sharding] * 2
    gf.debug.visualize_array_sharding(x)
    assert capsys.readouterr().out == "[0:2, 0:3]  cpu()\n"
    with pytest.raises(ValueError, match="one or two dimensions"):
        gf.debug.visualize_array_sharding(jnp.ones((2, 2, 2)))
    with pytest.raises(AttributeError, match="not known"):
        gf.jit(lambda x: gf.debug.visualize_array_sharding(x))(x)


def test_memory_of_live_arrays_is_written(tmp_path):
    path = tmp_path / "memory.json"
    kept = [jnp.full((17, 3, 5), i, device=gf.cpu()) for i in range(3)]
    gf.profiler.save_device_memory_profile(path, backend="cpu")
    (entry,) = [e for e in json.loads(path.read_text())["cpu()"] if e["shape"] == [17, 3, 5]]
    assert entry["count"] == len(kept) and entry["bytes"] == sum(x.nbytes for x in kept)


def test_broadcast_like_refuses_what_does_not_fit():
    assert gf.lax.broadcast_like(jnp.ones((1, 3)), jnp.ones((2, 4, 3))).shape == (2, 4, 3)
    for shape in ((2,), (3, 3), (1, 1, 3)):
        with pytest.raises(gf.errors.ShapeError, match="broadcast_like"):
            gf.lax.broadcast_like(jnp.ones(shape), jnp.ones((2, 3)))


def test_random_algorithms():
    key = np.array([1, 2], np.uint32)
    default = gf.lax.rng_bit_generator(key, (3,))[1]
    philox = gf.lax.rng_bit_generator(key, (3,), algorithm=gf.lax.RandomAlgorithm.RNG_PHILOX)[1]
    np.testing.assert_array_equal(default, philox)
    assert [a.name for a in gf.lax.RandomAlgorithm] == [a.name for a in jax.lax.RandomAlgorithm]
    with pytest.raises(gf.errors.ArgumentError, match="Philox"):
        gf.lax.rng_bit_generator(key, (3,), algorithm=gf.lax.RandomAlgorithm.RNG_THREE_FRY)
