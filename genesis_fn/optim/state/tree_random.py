"""Random keys and numbers for every leaf of a pytree; public as part of `optim.tree`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis_fn import Array, DTypeLike, Key, PyTree, dtypes, random, tree
from genesis_fn.extend import as_array

Sampler = Callable[..., Array]


def split_key_like(rng_key: Key, target_tree: PyTree) -> PyTree:
    """Splits a random key into one key for every leaf of a tree.

    Args:
        rng_key: random key.
        target_tree: tree; None is no leaf.

    Returns:
        The keys, a tree of the structure of `target_tree`.

    >>> keys = optim.tree.split_key_like(random.key(0), {"w": jnp.zeros(2), "b": jnp.zeros(3)})
    >>> sorted(keys), keys["w"].shape
    (['b', 'w'], ())
    """
    leaves, treedef = tree.flatten(target_tree)
    keys = random.split(rng_key, max(len(leaves), 1))
    return tree.unflatten(treedef, [keys[i] for i in range(len(leaves))])


def random_like(
    rng_key: Key,
    target_tree: PyTree,
    sampler: Sampler = random.normal,
    dtype: DTypeLike | None = None,
) -> PyTree:
    """Draws random arrays shaped as the leaves of a tree.

    Args:
        rng_key: random key, which is split.
        target_tree: tree of arrays.
        sampler: function (key, shape, dtype) -> array, as those of `genesis_fn.random`.
        dtype: dtype of the numbers; None: that of each leaf.

    Returns:
        The arrays, a tree of the structure of `target_tree`.

    >>> noise = optim.tree.random_like(random.key(0), {"w": jnp.zeros((2, 3))})
    >>> noise["w"].shape, noise["w"].dtype
    ((2, 3), dtype('float32'))
    """

    def draw(leaf: Any, key: Key) -> Array:
        x = as_array(leaf)
        return sampler(key, x.shape, x.dtype if dtype is None else dtypes.dtype(dtype))

    return tree.map(draw, target_tree, split_key_like(rng_key, target_tree))


def unwrap_random_key_data(input_tree: PyTree) -> PyTree:
    """Replaces random keys in a tree by their words, which can be compared and stored.

    Args:
        input_tree: tree of arrays and random keys, such as an optimizer's state.

    Returns:
        The tree with `random.key_data` of every key; other leaves are kept.

    >>> state = optim.add_noise(0.01, 0.5, key=7).init(jnp.zeros(2))
    >>> optim.tree.unwrap_random_key_data(state)
    AddNoiseState(count=Array(0, dtype=int32), rng_key=Array([0, 7], dtype=uint32))
    """

    def unwrap(x: Any) -> Any:
        is_key = hasattr(x, "dtype") and dtypes.issubdtype(x.dtype, dtypes.prng_key)
        return random.key_data(x) if is_key else x

    return tree.map(unwrap, input_tree)
