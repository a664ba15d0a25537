"""Random keys as arrays of an extended dtype, beside JAX, and their reuse through programs."""

from __future__ import annotations

import copy
import pickle
import warnings

import jax
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import io, lax, random
from genesis_fn.core import errors
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.configuration import config
from genesis_fn.core.train_state import TrainState
from genesis_fn.random import KeyReuseWarning


def ours(seed=0, shape=None):
    key = random.key(seed, impl="threefry2x32")
    return key if shape is None else random.split(key, shape)


def theirs(seed=0, shape=None):
    key = jax.random.key(seed, impl="threefry2x32")
    return key if shape is None else jax.random.split(key, shape)


def words(keys):
    """The words of keys of either library; other arrays as they are."""
    if isinstance(keys, gf.Array):
        return np.asarray(random.key_data(keys) if isinstance(keys, random.Key) else keys)
    if jax.numpy.issubdtype(keys.dtype, jax.dtypes.prng_key):
        keys = jax.random.key_data(keys)
    return np.asarray(keys)


def alike(f, *args, shape=None):
    """f(numpy, lax, random, keys, other key, *args) is the same of both libraries, with jit too."""
    expected = f(jax.numpy, jax.lax, jax.random, theirs(1, shape), theirs(2), *args)
    run = lambda a, b: f(jnp, lax, random, a, b, *args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KeyReuseWarning)
        for found in (run(ours(1, shape), ours(2)), gf.jit(run)(ours(1, shape), ours(2))):
            found, wanted = gf.tree.leaves(found), jax.tree.leaves(expected)
            assert len(found) == len(wanted)
            for x, y in zip(found, wanted):
                assert x.shape == y.shape
                np.testing.assert_allclose(words(x), words(y), rtol=2e-5, atol=1e-6)
                both = isinstance(x, random.Key), jax.numpy.issubdtype(y.dtype, jax.dtypes.prng_key)
                assert both[0] == both[1]


# ---- C1: a tree does not reach through keys ----


def test_c01_keys_are_leaves_of_trees():
    for impl in ("threefry2x32", "philox"):
        tree = {"a": random.key(0, impl=impl), "b": [random.split(random.key(1, impl=impl), 3)]}
        leaves, treedef = gf.tree.flatten(tree)
        assert [type(x) for x in leaves] == [ArrayImpl, ArrayImpl]
        assert [x.dtype.name for x in leaves] == [f"key<{impl}>"] * 2
        assert gf.tree.unflatten(treedef, leaves)["a"] is tree["a"]
    drawn = gf.tree.map(lambda k: random.normal(k, (2,)), {"a": ours()})["a"]
    np.testing.assert_allclose(drawn, jax.random.normal(theirs(), (2,)), rtol=1e-5)
    assert drawn.dtype == np.float32 and not isinstance(drawn, random.Key)


def test_c01_a_key_is_never_made_of_what_is_no_words():
    bad = (
        jnp.zeros(2),
        np.zeros(2, np.int32),
        np.zeros(3, np.uint32),
        np.zeros((), np.uint32),
        [0, 1],
        5,
        "key",
        None,
    )
    for value in bad:
        for f in (random.normal, random.split, lambda k: random.fold_in(k, 1), random.key_data):
            with pytest.raises(TypeError, match=r"expected a random key.*\n  at .*test_keys.py"):
                f(value)
        with pytest.raises(TypeError):
            random.wrap_key_data(value)
    with pytest.raises(TypeError, match="a key is an array"):
        random.Key(jnp.zeros(2), "philox")


def test_c01_raw_words_belong_to_the_default_implementation():
    raw = random.PRNGKey(7)
    assert type(raw) is ArrayImpl and raw.dtype == np.uint32 and raw.shape == (2,)
    for words_ in (raw, np.asarray(raw)):
        np.testing.assert_array_equal(
            random.normal(words_, (3,)), random.normal(random.key(7), (3,))
        )
    np.testing.assert_array_equal(random.split(raw, 3), words(random.split(random.key(7), 3)))
    np.testing.assert_array_equal(random.fold_in(raw, 3), words(random.fold_in(random.key(7), 3)))
    assert random.split(raw).dtype == np.uint32 and random.clone(raw).dtype == np.uint32
    np.testing.assert_array_equal(random.key_data(raw), raw)
    with config.override(random_impl="threefry2x32"):
        theirs_ = jax.random.PRNGKey(7)
        np.testing.assert_array_equal(random.PRNGKey(7), theirs_)
        np.testing.assert_array_equal(random.split(random.PRNGKey(7)), jax.random.split(theirs_))
        assert random.key_impl(random.PRNGKey(7)) == "threefry2x32" == random.key(0).dtype.impl
        drawn = gf.jit(random.normal)(random.PRNGKey(7))
        np.testing.assert_allclose(drawn, jax.random.normal(theirs_), rtol=1e-5)
        # A typed key keeps its own implementation, whatever the default is.
        philox = random.normal(random.key(7, impl="philox"), (3,))
    np.testing.assert_array_equal(philox, random.normal(random.key(7), (3,)))
    with pytest.raises(ValueError, match=r"random.key\(seed, impl='threefry2x32'\)"):
        random.PRNGKey(0, impl="threefry2x32")


def test_c01_two_implementations_never_meet():
    a, b = random.key(0), ours()
    for f in (
        lambda: jnp.stack([a, b]),
        lambda: jnp.where(True, a, b),
        lambda: a == b,
        lambda: random.split(a, 3).at[0].set(b),
        lambda: jnp.concatenate([a[None], b[None]]),
        lambda: lax.cond(True, lambda: a, lambda: b),
        lambda: lax.scan(lambda c, _: (b, None), a, None, length=2),
    ):
        with pytest.raises(TypeError):
            f()


# ---- B33: keys are arrays ----


def test_b33_dtype_and_attributes():
    key, keys = random.key(0), random.split(random.key(0), (2, 3))
    assert type(key) is ArrayImpl and isinstance(key, gf.Array) and isinstance(key, random.Key)
    assert not isinstance(jnp.zeros(2, "uint32"), random.Key)
    assert keys.shape == (2, 3) and keys.ndim == 2 and keys.size == 6 and keys.T.shape == (3, 2)
    assert (key.itemsize, key.nbytes, keys.nbytes) == (8, 8, 48)
    assert (theirs().itemsize, theirs().nbytes, theirs(0, (2, 3)).nbytes) == (8, 8, 48)
    d = key.dtype
    for below in (gf.dtypes.prng_key, gf.dtypes.extended, np.generic):
        assert gf.dtypes.issubdtype(d, below)
        assert not gf.dtypes.issubdtype(np.float32, gf.dtypes.prng_key)
    assert not gf.dtypes.issubdtype(d, np.number) and not gf.dtypes.issubdtype(d, np.integer)
    assert gf.dtypes.issubdtype(gf.dtypes.prng_key, gf.dtypes.extended)
    assert d == random.key(1).dtype == random.key_dtype() and d != ours().dtype
    assert (
        d != np.dtype("float32") and np.dtype("float32") != d and len({d, d, np.dtype("u4")}) == 2
    )
    assert str(d) == d.name == "key<philox>" and pickle.loads(pickle.dumps(d)) is d
    assert repr(key) == str(key) == f"{key}" == "Array((), dtype=key<philox>) overlaying:\n[0 0]"
    ours_, theirs_ = repr(ours(3, 2)), repr(theirs(3, 2))
    assert ours_.replace("threefry2x32", "fry") == theirs_
    assert "key<philox>[3]" in str(gf.make_jaxpr(lambda k: random.split(k, 3))(random.key(0)))


STRUCTURE = {
    "reshape": lambda n, l, r, ks, k: ks.reshape(3, 2, 1),
    "ravel": lambda n, l, r, ks, k: (ks.ravel(), ks.flatten(), n.ravel(ks)),
    "axes": lambda n, l, r, ks, k: (ks.T, ks.swapaxes(0, 1), ks[None].squeeze(0), ks[:, None]),
    "int": lambda n, l, r, ks, k: (ks[0], ks[-1, 2], ks[1][1]),
    "slices": lambda n, l, r, ks, k: (ks[:, 1:], ks[::-1], ks[..., 0], ks[1:, ::2], ks[0:0]),
    "arrays": lambda n, l, r, ks, k: (ks[:, n.array([2, 0])], ks[n.array([1]), n.array([1, 2])]),
    "mask": lambda n, l, r, ks, k: n.where(n.array([[True], [False]]), ks, k),
    "take": lambda n, l, r, ks, k: n.take(ks, n.array([1, 0]), axis=0),
    "new axis of a key": lambda n, l, r, ks, k: (k[None], k[...], k[None, ...]),
    "at": lambda n, l, r, ks, k: (ks.at[0, 1].set(k), ks.at[:, n.array([0, 2])].set(k)),
    "at a slice": lambda n, l, r, ks, k: (ks.at[1:].set(ks[:1]), ks.at[:, ::2].set(k)),
    "stack": lambda n, l, r, ks, k: (n.stack([k, k]), n.stack([ks, ks], -1), n.array([k, ks[0, 1]]),
                                     n.vstack([ks, ks])),
    "concatenate": lambda n, l, r, ks, k: n.concatenate([ks, ks[:, ::-1], ks[:0]]),
    "tile": lambda n, l, r, ks, k: (n.tile(ks, (2, 1)), n.repeat(ks, 2, axis=1), n.roll(ks, 1)),
    "broadcast": lambda n, l, r, ks, k: (n.broadcast_to(k, (2, 2)), n.expand_dims(k, 0)),
    "flip": lambda n, l, r, ks, k: (n.flip(ks), n.fliplr(ks), n.rot90(ks), n.moveaxis(ks, 0, 1)),
    "like": lambda n, l, r, ks, k: (n.zeros_like(ks), n.ones_like(k), n.full_like(ks, 7)),
    "made": lambda n, l, r, ks, k: (n.zeros((2,), ks.dtype), n.empty((2, 1), ks.dtype)),
    "equal": lambda n, l, r, ks, k: (ks == ks[::-1], ks != k, n.array_equal(ks, ks)),
    "split": lambda n, l, r, ks, k: (n.split(ks, 3, axis=1), n.unstack(ks)),
    "copies": lambda n, l, r, ks, k: (ks.copy(), n.array(k), n.asarray(k), l.stop_gradient(k)),
    "lax": lambda n, l, r, ks, k: (
        l.dynamic_slice(ks, (1, 1), (1, 2)), l.dynamic_update_slice(ks, k[None, None], (1, 2)),
        l.rev(ks, (0,)), l.dynamic_index_in_dim(ks, 1, keepdims=False),
        l.select(n.ones((2, 3), bool), ks, ks[::-1]), l.expand_dims(k, (0,)),
    ),
    "random": lambda n, l, r, ks, k: (
        r.key_data(ks), r.wrap_key_data(r.key_data(ks), impl="threefry2x32"), r.clone(ks),
        r.split(k, (2, 2)), r.fold_in(k, 5), r.normal(ks[0, 1], (3,)), r.bits(k, (4,)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STRUCTURE)
def test_b33_structure_as_in_jax(name):
    alike(STRUCTURE[name], shape=(2, 3))


TRANSFORMS = {
    "vmap": lambda g, ks, k: g.vmap(lambda k: g.random.normal(k, (2,)))(ks[0]),
    "vmap over any axis": lambda g, ks, k: (
        g.vmap(lambda k: k, in_axes=-1)(ks),
        g.vmap(lambda a, b: g.random.split(a[0], 2), in_axes=(1, None), out_axes=1)(ks, k),
        g.vmap(g.vmap(g.random.uniform))(ks),
        g.vmap(lambda ks, i: ks[i])(ks, g.numpy.array([0, 2])),
        g.vmap(lambda ks, i: ks.at[i].set(k))(ks, g.numpy.array([0, 2])),
        g.vmap(lambda i: g.random.fold_in(k, i))(g.numpy.arange(3)),
    ),
    "scan": lambda g, ks, k: g.lax.scan(
        lambda c, x: (g.random.split(c)[0], (g.random.fold_in(x, 1), g.random.normal(x))), k, ks[0]
    ),
    "map": lambda g, ks, k: g.lax.map(lambda k: g.random.uniform(k), ks[1]),
    "while": lambda g, ks, k: g.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, g.random.fold_in(c[1], c[0])), (0, k)
    ),
    "fori": lambda g, ks, k: g.lax.fori_loop(0, 3, lambda i, k: g.random.fold_in(k, i), k),
    "cond": lambda g, ks, k: (
        g.lax.cond(g.random.uniform(ks[0, 0]) < 2, lambda a, b: a[0], lambda a, b: b, ks[1], k),
        g.vmap(lambda i: g.lax.cond(i > 0, lambda: ks[0], lambda: ks[1]))(g.numpy.array([0, 1])),
        g.lax.switch(2, [lambda k: k, lambda k: g.random.fold_in(k, 1)], k),
    ),
    "jit": lambda g, ks, k: g.jit(lambda s: {"k": s["k"], "x": s["ks"][0]})({"k": k, "ks": ks}),
    "grad": lambda g, ks, k: (
        g.grad(lambda x: x * x * g.random.normal(k))(2.0),
        g.grad(g.checkpoint(lambda x, k: x * g.random.normal(k)))(2.0, k),
        g.jit(g.grad(g.checkpoint(lambda x, k: g.numpy.sin(x) * g.random.normal(k))))(2.0, k),
        g.grad(lambda x: g.lax.scan(lambda c, k: (c * g.random.uniform(k), c), x, ks[0])[0])(1.0),
        g.vjp(lambda x: x * g.random.normal(k), 2.0)[1](3.0),
        g.jvp(lambda x: x * g.random.normal(k), (2.0,), (3.0,)),
        g.vmap(g.grad(lambda x, k: x * g.random.normal(k)), (None, 0))(2.0, ks[0]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_b33_transforms_as_in_jax(name):
    def f(n, l, r, ks, k):
        return TRANSFORMS[name](gf if n is jnp else jax, ks, k)

    alike(f, shape=(2, 3))


REFUSED = {
    "add": lambda n, k: k + 1, "mul": lambda n, k: k * k, "neg": lambda n, k: -k,
    "lt": lambda n, k: k < k, "sum": lambda n, k: n.sum(k), "max": lambda n, k: n.max(k),
    "sort": lambda n, k: n.sort(k), "argsort": lambda n, k: n.argsort(k),
    "unique": lambda n, k: n.unique(k), "astype": lambda n, k: k.astype("float32"),
    "asarray": lambda n, k: n.asarray(k, dtype=float), "sin": lambda n, k: n.sin(k),
    "to a key": lambda n, k: n.zeros(2).astype(k.dtype),
    "arange": lambda n, k: n.arange(3, dtype=k.dtype),
    "at add": lambda n, k: k.at[0].add(k[0]), "at number": lambda n, k: k.at[0].set(1),
    "pad": lambda n, k: n.pad(k, 1), "where": lambda n, k: n.where(True, k, 1.0),
    "concatenate": lambda n, k: n.concatenate([k, n.zeros(3)]),
    "result_type": lambda n, k: n.result_type(k, 1), "clip": lambda n, k: n.clip(k, 0, 1),
    "float": lambda n, k: float(k[0]), "bool": lambda n, k: bool(k[0]),
    "item": lambda n, k: k[0].item(), "tolist": lambda n, k: k.tolist(),
    "hash": lambda n, k: hash(k), "finfo": lambda n, k: n.finfo(k.dtype),
    "numpy": lambda n, k: np.asarray(k), "numpy function": lambda n, k: np.sum(k),
    "dlpack": lambda n, k: k.__dlpack__(), "view": lambda n, k: k.view("uint32"),
    "len of one": lambda n, k: len(k[0]), "elements of one": lambda n, k: list(k[0]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_b33_what_computes_with_keys_is_refused(name):
    with pytest.raises((TypeError, AttributeError, ValueError, NotImplementedError)):
        REFUSED[name](jax.numpy, theirs(0, 3))
    with pytest.raises(TypeError) as error:
        REFUSED[name](jnp, ours(0, 3))
    text = str(error.value)
    assert "key" in text or name == "hash"
    assert text.count("\n") < 6
    if name not in ("hash", "len of one", "elements of one"):
        assert "random.key_data" in text or "key<threefry2x32>" in text


# What JAX refuses for reasons of its own (texts, stacks of one array) or answers by its own dtype.
ALSO_HERE = {
    "array_repr", "array_str", "ascontiguousarray", "column_stack", "dstack", "dtype",
    "from_dlpack", "permute_dims", "result_type", "row_stack",
}  # fmt: skip


def test_b33_every_function_of_one_array_takes_keys_as_jax_does_or_refuses_them():
    keys, theirs_ = ours(0, 3), theirs(0, 3)
    taken = []
    for name in sorted(set(dir(jnp)) - {"load", "save", "savez", "fromfile", "frompyfunc"}):
        f = getattr(jnp, name)
        if name.startswith("_") or not callable(f) or isinstance(f, type):
            continue
        try:
            found = f(keys)
        except (TypeError, ValueError, IndexError):
            continue
        if name in ALSO_HERE or callable(found):
            continue
        expected = getattr(jax.numpy, name)(theirs_)
        for x, y in zip(gf.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            same = words(x) == words(y) if isinstance(x, gf.Array) else x == y
            assert np.all(same), name
        taken.append(name)
    assert {"ravel", "flip", "zeros_like", "stack", "unstack", "copy"} <= set(taken)
    assert not {"sum", "sin", "floor", "real", "sort", "square", "diff"} & set(taken)


def test_b33_keys_are_only_set_never_combined_at_places():
    keys, place = random.split(random.key(0), 3), jnp.array([0, 0, 2])
    for how in ("add", "mul", "min", "max", "subtract", "divide"):
        with pytest.raises(TypeError, match="random keys"):
            getattr(keys.at[place], how)(keys)
    with pytest.raises(TypeError, match="segment_sum is not for random keys"):
        gf.ops.segment_sum(keys, jnp.array([0, 0, 1]), 2)
    shuffled = random.permutation(random.key(1), keys)
    assert sorted(words(shuffled).tolist()) == sorted(words(keys).tolist())


def test_b33_refusals_name_operation_line_and_remedy():
    for f in (lambda k: jnp.exp(k), lambda k: gf.jit(jnp.exp)(k), lambda k: gf.vmap(jnp.exp)(k)):
        with pytest.raises(errors.DTypeError) as error:
            f(random.split(random.key(0), 2))
        text = str(error.value)
        assert "random keys" in text and "test_keys.py" in text and "random.key_data(keys)" in text


def test_b33_derivatives_by_keys():
    key = random.key(0)
    for f in (gf.grad, gf.jacrev, gf.jacfwd):
        with pytest.raises(TypeError, match="key<philox>"):
            f(lambda k: random.normal(k))(key.copy())
    for tangent in (key, 1.0, jnp.zeros(2, "uint32")):
        with pytest.raises(TypeError):
            jax.jvp(jax.random.normal, (theirs(),), (tangent,))
        with pytest.raises((errors.DTypeError, errors.ShapeError), match="key<philox>"):
            gf.jvp(random.normal, (key.copy(),), (tangent,))
    for nothing in (None, np.zeros((), gf.dtypes.float0)):
        out, t = gf.jvp(lambda k, x: x * random.normal(k), (key.copy(), 2.0), (nothing, 1.0))
        assert float(t) == float(out) / 2
    out, pull = gf.vjp(lambda k, x: x * random.normal(k), key.copy(), 2.0)
    assert float(pull(1.0)[1]) == float(out) / 2


def test_b33_shapes_pickles_copies_places():
    keys = random.split(random.key(4), (2, 3))
    shape = gf.eval_shape(lambda k: random.split(k, (2, 3)), random.key(0))
    assert (shape.shape, shape.dtype) == (keys.shape, keys.dtype)
    given = gf.ShapeDtypeStruct((3,), keys.dtype)
    assert gf.eval_shape(lambda k: random.normal(k[0], (5,)), given).shape == (5,)
    compiled = gf.jit(lambda k: k[1]).lower(given).compile()
    np.testing.assert_array_equal(words(compiled(keys[0])), words(keys[0, 1]))
    for again in (pickle.loads(pickle.dumps(keys)), copy.deepcopy(keys), keys.copy()):
        assert again.dtype is keys.dtype and words(again).tolist() == words(keys).tolist()
    put = gf.device_put({"k": keys}, gf.devices()[0])["k"]
    assert put.dtype is keys.dtype and put.block_until_ready() is put
    assert gf.device_get(keys).dtype is keys.dtype
    assert jax.device_get(theirs()).dtype == theirs().dtype
    f = gf.jit(lambda s: {"k": random.fold_in(s["k"], 1), "x": s["x"] + 1}, donate_argnums=0)
    state = f({"k": random.key(0), "x": jnp.zeros(2)})
    assert words(f(state)["k"]).tolist() == words(random.key(0)[1, 1]).tolist()
    with pytest.raises(errors.DonatedError):
        words(state["k"])


def test_b33_host_functions_get_keys(capfd):
    keys = random.split(random.key(0), 2)
    gf.jit(lambda x, k: gf.debug.print("{} {}", x, k))(1.5, keys[0])
    assert f"1.5 {keys[0]!r}" in capfd.readouterr().out
    kind = gf.ShapeDtypeStruct((2,), "uint32")
    read = lambda k, x: np.asarray(random.key_data(k)) + np.asarray(x)
    found = gf.jit(lambda x, k: gf.pure_callback(read, kind, k, x))(jnp.uint32(3), keys[1])
    np.testing.assert_array_equal(found, words(keys[1]) + 3)


def test_b33_checkpoints_hold_keys(tmp_path):
    state = {"a": ours(3), "b": [random.split(random.key(5), (2, 2))], "w": jnp.ones(3)}
    saver = io.AsyncSaver(tmp_path)
    saver.save(1, state)
    saver.wait()
    io.save(tmp_path, 2, state)
    template = gf.eval_shape(lambda: state)
    for step, like in ((1, state), (2, template)):
        found, *_ = io.restore(tmp_path, like, step)
        for x, y in zip(gf.tree.leaves(found), gf.tree.leaves(state)):
            assert type(x) is ArrayImpl and x.dtype == y.dtype
            np.testing.assert_array_equal(words(x), words(y))
    for other in (random.key(0), jnp.zeros(2, "uint32")):
        with pytest.raises(io.FileError, match="'a' holds random keys of 'threefry2x32'"):
            io.restore(tmp_path, state | {"a": other})
    with pytest.raises(io.FileError, match="'w' holds no random keys"):
        io.restore(tmp_path, state | {"w": random.split(random.key(0), 3)})


def test_b33_states_that_hold_keys():
    params = {"w": jnp.ones(3)}
    tx = gf.optim.noisy_sgd(0.1, key=random.key(1))
    state = gf.jit(tx.init)(params)
    assert [x.dtype.name for x in gf.tree.leaves(state)].count("key<philox>") == 1
    step = gf.jit(lambda g, s: tx.update(g, s))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, state = step(params, state)
        two, state = step(params, state)
    assert not np.array_equal(one["w"], two["w"])
    drop = gf.nn.Dropout(0.5)
    x = jnp.ones((4, 8))
    typed = drop({}, x, key=random.key(3), train=True)
    np.testing.assert_array_equal(typed, drop({}, x, key=random.PRNGKey(3), train=True))


# ---- R6: reuse is seen through programs ----


def draw(key, x):
    return x + random.normal(key, x.shape)


X = np.ones(3, np.float32)


def uses(f):
    """The messages of reuse that `f` gives."""
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        f()
    return [str(w.message) for w in record if w.category is KeyReuseWarning]


def test_r06_a_jitted_function_given_a_key_twice():
    f, key = gf.jit(draw), random.key(0)
    f(key, X)  # the first use
    with pytest.warns(KeyReuseWarning) as record:
        f(key, X)  # the second use
    assert len(record) == 1 and record[0].filename == __file__
    assert "# the first use" in str(record[0].message)
    assert "# the second use" in str(record[0].message)
    for _ in range(3):  # by generated code too
        key = random.key(0)
        assert uses(lambda: f(key, X)) == [] and len(uses(lambda: f(key, X))) == 1
        assert uses(lambda: f(key.copy(), X)) == [] and len(uses(lambda: random.split(key))) == 1
    compiled, key = f.lower(random.key(0), X).compile(), random.key(1)
    assert uses(lambda: compiled(key, X)) == [] and len(uses(lambda: compiled(key, X))) == 1
    key = random.key(0)
    f(key, X)
    with config.override(check_keys=True), pytest.raises(errors.KeyReuseError, match="used twice"):
        f(key, X)


def test_r06_a_state_that_keeps_its_key():
    def forgets(state):
        return {"key": state["key"], "x": draw(state["key"], state["x"])}

    def splits(state):
        key, now = random.split(state["key"])
        return {"key": key, "x": draw(now, state["x"])}

    def run(step, state, turns=3):
        for _ in range(turns):
            state = step(state)

    for donate in (None, 0):
        for step, count in ((forgets, 2), (splits, 0)):
            step_ = gf.jit(step, donate_argnums=donate)
            fresh = lambda: {"key": random.key(0), "x": jnp.zeros(3)}
            assert len(uses(lambda: run(step_, fresh()))) == count
            whole = gf.jit(lambda s: TrainState(**step(vars_of(s))), donate_argnums=donate)
            assert len(uses(lambda: run(whole, TrainState(**fresh())))) == count
    same = gf.jit(lambda k: k)
    key = random.key(0)
    assert len(uses(lambda: (random.normal(key), random.normal(same(key))))) == 1


def vars_of(state):
    return {"key": state.key, "x": state.x}


def test_r06_loops_branches_and_nested_programs():
    def split_body(key, _):
        key, now = random.split(key)
        return key, random.normal(now)

    calls = {
        "scan": lambda k: lax.scan(split_body, k, None, length=3),
        "scan over keys": lambda k: lax.scan(lambda c, k: (c, random.normal(k)), 0, k[None]),
        "while": lambda k: lax.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, split_body(c[1], None)[0]), (0, k)
        ),
        "fori": lambda k: lax.fori_loop(0, 2, lambda i, k: split_body(k, None)[0], k),
        "cond": lambda k: lax.cond(True, random.normal, lambda k: 0.0, k),
        "closure": lambda k: lax.cond(True, lambda: random.normal(k), lambda: random.uniform(k)),
        "jit in jit": lambda k: gf.jit(lambda k: gf.jit(draw)(k, X))(k),
        "checkpoint": lambda k: gf.jit(gf.checkpoint(draw))(k, X),
        "vmap": lambda k: gf.vmap(draw, (None, 0))(k, X),
        "grad": lambda k: gf.grad(lambda x: draw(k, x).sum())(X),
        "part": lambda k: gf.jit(lambda ks: random.normal(ks.reshape(2, 1)[0, 0]))(
            jnp.stack([k, k])
        ),
    }
    fresh = {"scan over keys", "part"}  # reshaped and stacked keys are new arrays
    for name, call in calls.items():
        key = random.key(0)
        assert uses(lambda: call(key)) == [], name
        if name not in fresh:
            assert len(uses(lambda: call(key))) == 1, name
            assert len(uses(lambda: random.normal(key))) == 1, name
    twice = lambda k: gf.jit(lambda k: gf.jit(draw)(k, X) + gf.jit(draw)(k, X))(k)
    assert len(uses(lambda: twice(random.key(0)))) == 1
    unchanged = lambda k: lax.scan(lambda k, _: (k, random.normal(k)), k, None, length=3)
    (message,) = uses(lambda: unchanged(random.key(0)))
    assert "every turn draws the same" in message and "test_keys.py" in message
    assert uses(lambda: unchanged(random.key(0).copy())) == []


def test_r06_elements_of_an_array_of_keys():
    first = gf.jit(lambda ks: random.normal(ks[0]))
    keys = random.split(random.key(0), 3)
    assert uses(lambda: first(keys)) == []
    assert uses(lambda: random.normal(keys[1])) == []
    assert len(uses(lambda: random.normal(keys[0]))) == 1
    assert len(uses(lambda: random.normal(keys[-2]))) == 1
    assert len(uses(lambda: gf.vmap(random.normal)(keys[1:]))) == 1
    keys = random.split(random.key(1), (2, 2))
    assert uses(lambda: gf.vmap(gf.vmap(random.normal))(keys)) == []
    assert len(uses(lambda: random.normal(keys[1][0]))) == 1


def test_r06_what_is_no_use():
    f = gf.jit(draw)
    key = random.key(0)

    def derivatives():
        for make in (
            lambda g: gf.grad(g),
            lambda g: gf.jit(gf.grad(g)),
            lambda g: gf.grad(gf.checkpoint(g)),
            lambda g: gf.jit(gf.grad(gf.checkpoint(g))),
            lambda g: gf.hessian(g),
            lambda g: gf.jacrev(g),
            lambda g: gf.jit(gf.hessian(g)),
        ):
            k = random.key(1)
            make(lambda x: (f(k, x) ** 3).sum())(X)
        k = random.key(2)
        gf.linearize(lambda x: f(k, x), X)[1](jnp.asarray(X))
        gf.vmap(f, (0, None))(random.split(random.key(3), 4), X)

    def samplers():
        for draw_ in (
            lambda k: random.gamma(k, 2.0, (3,)),
            lambda k: random.poisson(k, 3.0, (3,)),
            lambda k: random.binomial(k, 5, 0.5, (2,)),
            lambda k: random.permutation(k, 9),
            lambda k: random.choice(k, 5, (3,), p=jnp.ones(5) / 5),
            lambda k: random.t(k, 3.0),
            lambda k: random.beta(k, 1.0, 2.0),
            lambda k: random.multinomial(k, 5, jnp.ones(3) / 3),
            lambda k: random.truncated_normal(k, -1, 1),
            lambda k: random.randint(k, (3,), 0, 9),
            lambda k: gf.grad(lambda a: random.gamma(k, a))(2.0),
        ):
            for run in (draw_, gf.jit(draw_)):
                k = random.key(4)
                run(k)
                assert len(uses(lambda: random.normal(k))) == 1

    fold = gf.jit(lambda k, i: random.normal(random.fold_in(k, i)))
    assert uses(lambda: [fold(key, i) for i in range(3)]) == []
    assert uses(lambda: [f(key["a", i], X) for i in range(3)]) == []
    assert uses(lambda: gf.jit(lambda k: (k, random.key_data(k)))(key)) == []
    assert uses(derivatives) == []
    assert uses(samplers) == []
    with config.override(debug_nans=True):  # which runs programs again to find a NaN
        assert uses(lambda: f(random.key(5), X)) == []
    with config.override(disable_jit=True):
        k = random.key(6)
        assert uses(lambda: f(k, X)) == [] and len(uses(lambda: f(k, X))) == 1
