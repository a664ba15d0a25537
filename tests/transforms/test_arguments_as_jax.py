"""Arguments and errors of jit, vmap, trees, scans and callbacks, as JAX has them."""

import collections
import dataclasses
import functools

import jax
import jax.flatten_util
import numpy as np
import pytest

import genesis_fn as gf

LIBRARIES = pytest.mark.parametrize("L", [gf, jax], ids=["here", "jax"])


def generator(x):
    yield x


@LIBRARIES
@pytest.mark.parametrize(
    "make, kind",
    [
        (lambda L: L.jit(lambda x: x, static_argnames="x", donate_argnames="x"), ValueError),
        (lambda L: L.jit(lambda a, /, b: a, static_argnames="a"), ValueError),
        (lambda L: L.jit(lambda a, *rest: a, donate_argnames="rest"), ValueError),
        (lambda L: L.jit(generator), TypeError),
        (lambda L: L.jit(staticmethod(lambda x: x)), TypeError),
        (lambda L: L.jit(lambda x: x)(np.ma.array([1, 2], mask=[True, False])), ValueError),
        (lambda L: L.vmap(lambda x: x, in_axes=False)(np.ones(3)), TypeError),
        (lambda L: L.ShapeDtypeStruct((2,), None), ValueError),
        (lambda L: L.lax.stop_gradient(lambda x: x), TypeError),
        (lambda L: L.grad(lambda x: L.lax.while_loop(lambda i: i < 5, lambda i: i + x, x))(1.0),
         ValueError),
    ],
)  # fmt: skip
def test_refusals_have_the_types_of_jax(L, make, kind):
    with pytest.raises(kind):
        make(L)


def test_arrays_that_are_declared_static_are_value_errors_too():
    with pytest.raises(ValueError, match="arrays are traced"):
        gf.jit(lambda x, n: x, static_argnums=1)(1, np.ones(2))


@LIBRARIES
def test_nothing_is_traced_within_no_tracing(L):
    f = L.jit(lambda x: x)
    f(np.ones(2))
    with L.no_tracing():
        f(np.ones(2))
        with pytest.raises(RuntimeError):
            f(np.ones(3))


@LIBRARIES
def test_ahead_of_time_options(L):
    lowered = L.jit(lambda x, y: x + y, donate_argnums=(0,)).lower(1.0, 2.0)
    compiled = lowered.compile(compiler_options={})
    assert lowered.donate_argnums == compiled.donate_argnums == (0,)
    assert compiled(1.0, 2.0) == 3
    L.jit(lambda x: x).trace(1.0).lower(lowering_platforms=("cpu",))


@LIBRARIES
def test_the_length_of_a_struct(L):
    assert len(L.ShapeDtypeStruct((4, 2), "float32")) == 4
    with pytest.raises(TypeError):
        len(L.ShapeDtypeStruct((), "float32"))
    assert gf.ShapeDtypeStruct.like(np.ones((2, 3), "int8")).shape == (2, 3)
    assert bool(gf.ShapeDtypeStruct((0,), "int8"))
    with pytest.raises(ValueError, match="shape and dtype are known"):
        gf.ShapeDtypeStruct((None, 2), "float32")


def test_static_arguments_of_a_checkpoint_by_name():
    @functools.partial(gf.checkpoint, static_argnames="options")
    def f(x, options):
        return x * options["scale"]

    assert gf.grad(lambda x: f(x, options={"scale": 3.0}))(1.0) == 3


@LIBRARIES
def test_a_checkpointed_while_loop_linearizes(L):
    loop = L.checkpoint(lambda x: L.lax.while_loop(lambda v: v < 50, lambda v: v * v, x))
    for f in (loop, L.jit(loop)):
        out, push = L.linearize(f, 3.0)
        assert (float(out), float(push(1.0))) == (81, 4 * 27)
        with pytest.raises(ValueError):
            L.grad(f)(3.0)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_associative_scan_of_arrays_of_several_ranks(n, reverse):
    rng = np.random.default_rng(n)
    m, v, s = (rng.normal(size=(n, *k)).astype("float32") for k in ((2, 2), (2,), ()))

    def run(L):
        @L.vmap
        def affine(a, b):
            return b[0] @ a[0], b[0] @ a[1] + b[1], a[2] + b[2]

        return L.lax.associative_scan(affine, (m, v, s), reverse=reverse)

    for a, b in zip(run(gf), run(jax), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=1e-5)


def test_map_with_a_batch_size_of_zero():
    x = np.arange(5)
    assert gf.lax.map(lambda v: v * v, x, batch_size=0).tolist() == [0, 1, 4, 9, 16]


# ---- trees ----


def test_partial_keeps_the_arguments_of_a_partial_in_its_function():
    inner = functools.partial(lambda a, b, c: (a, b, c), 2)
    for L in (gf, jax):
        p = L.tree_util.Partial(inner, 3)
        q = L.tree_util.Partial(inner, 4)
        assert p.args == (3,) and p(4) == (2, 3, 4)
        assert p.func == q.func == inner and hash(p.func) == hash(q.func)
        twice = L.jit(lambda f, x: f(x))
        assert twice(L.tree_util.Partial(functools.partial(lambda a, b: a * b, 3.0)), 2.0) == 6


@pytest.mark.parametrize("L", [gf, jax], ids=["here", "jax"])
def test_keys_that_a_node_gives_itself(L):
    class Node:
        def __init__(self, x):
            self.x = x

    L.tree_util.register_pytree_with_keys(
        Node, lambda n: ([("x", n.x)], None), lambda _, kids: Node(*kids)
    )
    ((path, leaf),), _ = L.tree_util.tree_flatten_with_path([Node(5)])
    assert leaf == 5 and path[1] == "x" and L.tree_util.keystr(path) == "[0]x"


@pytest.mark.parametrize("L", [gf, jax], ids=["here", "jax"])
def test_transposing_a_node_that_knows_its_structure(L):
    u = L.tree_util

    class Flat:
        def __init__(self, structure, leaves):
            self.structure, self.leaves = structure, leaves

    u.register_pytree_node(
        Flat, lambda f: (f.leaves, f.structure), lambda structure, kids: Flat(structure, kids)
    )
    flat = lambda t: Flat(u.tree_structure(t), u.tree_leaves(t))
    outer, inner = u.tree_structure(flat({"a": 1, "b": 2})), u.tree_structure([1, 2])
    out = u.tree_transpose(outer, inner, flat({"a": [3, 4], "b": [5, 6]}))
    assert [list(f.leaves) for f in out] == [[3, 5], [4, 6]]
    with pytest.raises(TypeError):
        u.tree_transpose(u.tree_structure({"a": 1, "b": 2, "c": 3}), inner, {"a": [1, 2]})


@LIBRARIES
def test_registering_dataclasses(L):
    register = L.tree_util.register_dataclass

    @dataclasses.dataclass
    class Late:
        x: int
        z: int = dataclasses.field(default=4, init=False)

    with pytest.raises(ValueError):
        register(Late)
    with pytest.raises(ValueError):
        register(Late, data_fields=["x"], meta_fields=["x"])
    if L is gf:
        register(Late, drop_fields=["z"])

    class Plain:
        def __init__(self, x):
            self.x = x

    register(Plain, data_fields=["x"], meta_fields=[])
    assert L.tree_util.tree_map(lambda v: v + 1, Plain(1)).x == 2
    with pytest.raises(TypeError):
        register(type("Other", (), {}))


@LIBRARIES
def test_unravel_keeps_or_checks_the_dtype(L):
    x, unravel = L.flatten_util.ravel_pytree(L.numpy.arange(3, dtype="float32"))
    assert unravel(x < 2).dtype == bool
    both = (L.numpy.arange(3, dtype="float32"), L.numpy.arange(3, dtype="int32"))
    x, unravel = L.flatten_util.ravel_pytree(both)
    assert unravel(x)[1].dtype == "int32"
    with pytest.raises(TypeError):
        unravel(x < 2)


def test_differences_of_equal_infinities_are_zero():
    x = np.array([1.0, 2.0], "float32")
    f = lambda v: gf.numpy.where(v > 1.5, v, -gf.numpy.inf)
    gf.test_util.check_jvp(f, functools.partial(gf.jvp, f), (x,), 1e-2, 1e-2, 1e-2)


@LIBRARIES
@pytest.mark.parametrize("wrong", [np.ones(3, "float32"), (np.float32(1), np.float32(2))], ids=str)
def test_wrong_results_of_a_host_function_are_runtime_errors(L, wrong):
    f = L.jit(lambda x: L.pure_callback(lambda _: wrong, L.ShapeDtypeStruct((), "float32"), x))
    with pytest.raises(RuntimeError):
        L.block_until_ready(f(1.0))


def test_float0_leaves_cross_jit():
    zero = np.zeros((2,), gf.float0)
    out = gf.jit(lambda x: collections.OrderedDict(a=x, none=zero))
    for _ in range(3):
        got = out(1.0)["none"]
        assert got.dtype == gf.float0 and got.shape == (2,)


@LIBRARIES
def test_a_while_loop_without_jit_leaves_an_ndarray_as_it_is(L):
    x = np.array(1.0, "float32")

    def body(c):
        i, total = c
        i += 1
        return i, total + i

    loop = lambda: L.lax.while_loop(lambda c: c[0] < 10, body, (x, x))[1]
    with L.disable_jit():
        without = float(loop())
    assert without == float(loop()) and x == 1
