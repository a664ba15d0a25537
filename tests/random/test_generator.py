"""The stateful layer: Generator, the module's default one, Stream."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn import random
from genesis_fn.transforms.jitting import jit


def test_seeding_repeats_the_sequence():
    g = random.Generator(3)
    first = [np.asarray(g.rand(4)), np.asarray(g.randn(2, 3)), np.asarray(g.randperm(9))]
    assert g.initial_seed() == 3 and first[1].shape == (2, 3)
    g.manual_seed(3)
    again = [np.asarray(g.rand((4,))), np.asarray(g.randn([2, 3])), np.asarray(g.randperm(9))]
    for a, b in zip(first, again):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(g.rand(4), first[0])
    assert sorted(first[2].tolist()) == list(range(9))
    assert g.seed() == g.initial_seed() != 3


def test_randint():
    g = random.Generator(0)
    x = np.asarray(g.randint(5, (1000,)))
    assert x.min() == 0 and x.max() == 4 and x.dtype == np.int32
    x = np.asarray(g.randint(-3, 3, (1000,), dtype=jnp.int8))
    assert x.min() == -3 and x.max() == 2 and x.dtype == np.int8
    assert g.randint(2, 9, 6).shape == (6,)
    with pytest.raises(ValueError, match="no integer"):
        g.randint(3, 3, (2,))
    with pytest.raises(TypeError, match="takes"):
        g.randint(3)


def test_state():
    g = random.Generator(1)
    g.rand(3)
    state = g.get_state()
    expected = np.asarray(g.randn(5))
    other = random.Generator(99)
    other.set_state(state)
    np.testing.assert_array_equal(other.randn(5), expected)
    with g.fork() as inside:
        inside.manual_seed(0)
        inside.rand(2)
    np.testing.assert_array_equal(g.get_state(), [1, 2])
    with pytest.raises(ValueError, match="get_state"):
        g.set_state(np.zeros(3))


def test_the_default_generator():
    random.manual_seed(5)
    a = np.asarray(random.rand(3))
    state = random.get_rng_state()
    b = np.asarray(random.randn(3))
    with random.fork_rng():
        random.manual_seed(6)
        random.randperm(4)
    random.set_rng_state(state)
    np.testing.assert_array_equal(random.randn(3), b)
    random.manual_seed(5)
    np.testing.assert_array_equal(random.rand(3), a)
    assert random.initial_seed() == 5
    assert random.seed() == random.initial_seed()


def test_threads_never_share_a_draw():
    g = random.Generator(0)
    seen, lock = [], threading.Lock()

    def draw():
        for _ in range(50):
            k = tuple(np.asarray(random.key_data(g.key())).tolist())
            with lock:
                seen.append(k)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(set(seen)) == 200 and g.get_state()[1] == 200


def test_within_jit_the_draws_are_those_of_the_trace():
    g = random.Generator(4)
    f = jit(lambda x: x + g.rand(3))
    one = np.asarray(f(jnp.zeros(3)))
    np.testing.assert_array_equal(f(jnp.zeros(3)), one)
    np.testing.assert_array_equal(random.Generator(4).rand(3), one)


def test_stream():
    s = random.Stream(random.key(7))
    a, b = next(s), s()
    assert s.count == 2 and s((2, 2)).shape == (2, 2)
    np.testing.assert_array_equal(
        random.key_data(a), random.key_data(random.fold_in(random.key(7), 0))
    )
    assert not np.array_equal(random.key_data(a), random.key_data(b))

    @jit
    def f(key):
        s = random.Stream(key)
        return random.normal(next(s)), random.normal(next(s))

    x, y = f(random.key(1))
    assert float(x) != float(y)
    np.testing.assert_array_equal(f(random.key(1))[0], x)
    assert float(f(random.key(2))[0]) != float(x)
