"""Keys: derivation by name and index, reuse that is noticed, raw data, transforms."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import random
from genesis_fn.core import errors, tree
from genesis_fn.core.configuration import config
from genesis_fn.random import KeyReuseWarning
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.control_flow.loops import fori_loop, while_loop
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.jitting import jit


def data(key):
    return np.asarray(random.key_data(key)).tolist()


def test_key_of_a_seed():
    assert data(random.key(7)) == [0, 7]
    assert data(random.key(2**33 + 5)) == [2, 5]
    assert data(random.key(-1)) == [0, 2**32 - 1]
    raw = random.PRNGKey(7)
    assert raw.dtype == np.uint32 and np.asarray(raw).tolist() == [0, 7] == data(raw)
    assert random.key_impl(random.key(0)) == "philox"
    assert random.key_impl(random.key(0, impl="threefry")) == "threefry2x32"
    assert data(jit(random.key)(jnp.asarray(9))) == [0, 9]
    with pytest.raises(ValueError, match="no random implementation"):
        random.key(0, impl="mersenne")
    with pytest.raises(TypeError, match="integer scalar"):
        random.key(jnp.asarray(1.5))


def test_names_and_indices():
    key = random.key(0)
    seen = [key["dropout"], key["noise"], key[0], key[1], key[0, 1], key[1, 0], key["dropout", 3]]
    assert len({tuple(data(k)) for k in seen}) == len(seen)
    assert data(key[3, "x"]) == data(key[3]["x"])
    assert data(key["dropout"]) == data(random.key(0)["dropout"])
    # A derivation does not depend on those made before it, nor is it a use of the key.
    random.normal(key)
    assert data(key["noise"]) == data(seen[1])
    traced = jit(lambda k, i: random.key_data(k["layer", i]))(key, jnp.asarray(4))
    assert np.asarray(traced).tolist() == data(key["layer", 4])


def test_arrays_of_keys():
    keys = random.split(random.key(0), (2, 3))
    assert keys.shape == (2, 3) and keys.ndim == 2 and keys.size == 6 and len(keys) == 2
    assert keys[1, 2].shape == () and keys[0].shape == (3,)
    assert [data(k) for k in random.split(random.key(0), 2)] == np.asarray(
        random.key_data(random.split(random.key(0), 2))
    ).tolist()
    with pytest.raises(TypeError, match="no length"):
        len(random.key(0))


def test_raw_data_and_pytree():
    key = random.key(3)
    again = random.wrap_key_data(random.key_data(key))
    np.testing.assert_array_equal(random.normal(key, (3,)), random.normal(again, (3,)))
    raw = jnp.array([0, 3], dtype=jnp.uint32)
    np.testing.assert_array_equal(random.normal(raw, (3,)), random.normal(random.key(3), (3,)))
    leaves, treedef = tree.flatten({"key": random.key(1), "x": jnp.ones(2)})
    assert len(leaves) == 2 and leaves[0].dtype.name == "key<philox>"
    stacked = tree.map(lambda *xs: jnp.stack(xs), random.key(1), random.key(2))
    assert stacked.shape == (2,)
    assert data(pickle.loads(pickle.dumps(random.key_data(key)))) == [0, 3]


# ---- reuse ----


def test_a_second_use_warns_once_with_both_lines():
    key = random.key(0)
    random.normal(key)  # the first use
    with pytest.warns(KeyReuseWarning) as record:
        random.uniform(key)  # the second use
    assert len(record) == 1
    message = str(record[0].message)
    assert "# the first use" in message and "# the second use" in message
    assert "key.copy()" in message and message.count("\n") < 6
    assert record[0].filename == __file__


def test_what_is_not_reuse():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        key = random.key(0)
        random.normal(key["a"])
        random.normal(key["b"])
        random.normal(key.copy())
        random.normal(random.clone(key))
        random.normal(key)
        for k in random.split(random.key(1), 3):
            random.normal(k)
        # recomputation and replaying are no second use
        f = jit(lambda k: random.normal(k, (2,)))
        parent = random.key(2)
        f(parent.copy()), f(parent.copy())
        x = jnp.ones(2)
        grad(lambda x: jnp.sum(x * random.normal(parent.copy(), (2,))))(x)
        scan(lambda c, k: (c, random.normal(k)), 0, random.split(random.key(4), 3))
        # a sampler with a derivative of its own runs inside another call
        vmap(lambda k: random.gamma(k, 2.0, (3,)))(random.split(random.key(5)))


def test_reuse_inside_a_traced_function():
    @jit
    def f(key):
        return random.normal(key) + random.uniform(key)

    with pytest.warns(KeyReuseWarning, match="used twice"):
        f(random.key(0))
    with pytest.warns(KeyReuseWarning):
        vmap(lambda k: random.normal(k) + random.uniform(k))(random.split(random.key(0)))
    key = random.key(1)
    random.split(key)
    with pytest.warns(KeyReuseWarning):
        random.split(key)


def test_check_keys_raises():
    key = random.key(0)
    random.normal(key)
    with config.override(check_keys=True):
        with pytest.raises(errors.KeyReuseError, match="used twice"):
            random.normal(key)
        random.normal(key.copy())


# ---- under transforms ----


def test_split_and_fold_in_under_transforms():
    key = random.key(5)
    pairs = np.asarray(random.key_data(random.split(key.copy(), 4)))
    np.testing.assert_array_equal(
        jit(lambda k: random.key_data(random.split(k, 4)))(key.copy()), pairs
    )
    keys = random.wrap_key_data(pairs)
    each = np.stack([random.key_data(random.split(keys[i], 3)) for i in range(4)])
    np.testing.assert_array_equal(
        vmap(lambda k: random.key_data(random.split(k, 3)))(keys.copy()), each
    )
    folded = np.stack([random.key_data(random.fold_in(keys[i], i)) for i in range(4)])
    fold = lambda k, i: random.key_data(random.fold_in(k, i))
    np.testing.assert_array_equal(vmap(fold)(keys, jnp.arange(4)), folded)
    one = np.stack([random.key_data(random.fold_in(key, i)) for i in range(4)])
    np.testing.assert_array_equal(vmap(fold, (None, 0))(key, jnp.arange(4)), one)
    _, scanned = scan(lambda c, i: (c, fold(key, i)), 0, jnp.arange(4))
    np.testing.assert_array_equal(scanned, one)
    np.testing.assert_array_equal(jit(vmap(fold))(keys, jnp.arange(4)), folded)


def test_keys_pass_through_jit_as_arguments_and_results():
    out = jit(lambda k: (k["x"], random.split(k, 2)))(random.key(8))
    assert data(out[0]) == data(random.key(8)["x"])
    np.testing.assert_array_equal(
        random.key_data(out[1]), random.key_data(random.split(random.key(8), 2))
    )


def test_a_key_from_outside_a_loop_draws_the_same_every_turn():
    key = random.key(0)
    bodies = {
        "scan": lambda k: scan(lambda c, _: (c + random.normal(k), None), 0.0, None, length=3),
        "while_loop": lambda k: while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + random.normal(k)), (0, 0.0)
        ),
        "fori_loop": lambda k: fori_loop(0, 3, lambda i, c: c + random.normal(k), 0.0),
    }
    for body in bodies.values():
        with pytest.warns(KeyReuseWarning, match="outside a loop.*\n.*test_keys.py"):
            body(key)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            body(key.copy())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scan(lambda c, i: (c + random.normal(key[i]), None), 0.0, jnp.arange(3))
        scan(lambda c, k: (c + random.normal(k), None), 0.0, random.split(key, 3))
        vmap(lambda x: x + random.normal(random.key(1)))(jnp.arange(3.0))
    with config.override(check_keys=True), pytest.raises(errors.KeyReuseError, match="every turn"):
        bodies["scan"](random.key(1))


def test_an_element_of_split_keys_is_one_key():
    keys = random.split(random.key(0), 3)
    random.normal(keys[0])
    random.normal(keys[1])
    with pytest.warns(KeyReuseWarning, match="used twice"):
        random.uniform(keys[-3])
    with pytest.warns(KeyReuseWarning, match="used twice"):
        [random.normal(k) for k in keys]

    @jit
    def f(key):
        keys = random.split(key)
        return random.normal(keys[0]) + random.normal(keys[0])

    with pytest.warns(KeyReuseWarning, match="used twice"):
        f(random.key(3))


def test_names_that_jax_has_for_fast_generators():
    for name in ("rbg", "unsafe_rbg"):
        assert random.key_impl(random.key(0, impl=name)) == "philox"
        with gf.default_prng_impl(name):
            assert gf.config.random_impl == "philox"
            assert random.PRNGKey(3, impl=name).shape == (2,)
