"""Random bits: published vectors of Philox, JAX's bits for Threefry, widths, batching."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from genesis_fn.backends.cpu.lowerings import random as host
from genesis_fn.core import errors
from genesis_fn.primitives import random_bits as rb
from genesis_fn.transforms.batching.batch import vmap_flat
from tests.primitives.check import check_batched, check_staged, to_array, to_numpy

KEY = np.array([0x12345678, 0x9ABCDEF0], np.uint32)


def bits(key, shape, width=32, impl="philox"):
    return to_numpy(rb.random_bits(to_array(key), shape=shape, width=width, impl=impl))


def split(key, n, impl="philox"):
    return to_numpy(rb.split(to_array(key), n, impl=impl))


def fold_in(key, data, impl="philox"):
    return to_numpy(rb.fold_in(to_array(key), data, impl=impl))


def one_philox(counter, key):
    even, odd = host.philox(counter, key, 1)
    words = [even[0, 0], odd[0, 0], even[1, 0], odd[1, 0]]
    return [int(w) & 0xFFFFFFFF for w in words]


# The known-answer tests that Random123 publishes for philox4x32 with 10 rounds.
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (
            [0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2,
            [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        ),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)  # fmt: skip
def test_philox_known_answers(counter, key, expected):
    assert one_philox(counter, key) == expected
    arrays = [np.array([k], np.uint32) for k in key]
    assert one_philox([np.array([c], np.uint32) for c in counter], arrays) == expected
    assert host.philox_block(counter, key) == expected


# The same for threefry2x32 with 20 rounds.
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0, 0], [0, 0], [0x6B200159, 0x99BA4EFE]),
        ([0xFFFFFFFF] * 2, [0xFFFFFFFF] * 2, [0x1CB996FC, 0xBB002BE7]),
        ([0x243F6A88, 0x85A308D3], [0x13198A2E, 0x03707344], [0xC4923A9C, 0x483DF7A0]),
    ],
)
def test_threefry_known_answers(counter, key, expected):
    a, b = host.threefry(np.array(key, np.uint32), *np.array(counter, np.uint32).reshape(2, 1))
    assert [int(a[0]), int(b[0])] == expected


def test_philox_golden_stream():
    assert bits(np.zeros(2, np.uint32), (4,)).tolist() == [
        0x6627E8D5,
        0xE169C58D,
        0xBC57AC4C,
        0x9B00DBD8,
    ]
    expected = [w for i in range(3) for w in one_philox([i, 0, 0, 0], [int(k) for k in KEY])]
    assert bits(KEY, (3, 4)).reshape(-1).tolist() == expected
    assert bits(KEY, (2, 5)).reshape(-1).tolist() == expected[:10]


def test_philox_long_streams_agree_with_short_ones():
    n = 5 * host._CHUNK * 4 + 3
    long = bits(KEY, (n,))
    assert np.array_equal(long[:100], bits(KEY, (100,)))
    for w in (4 * host._CHUNK - 1, 4 * host._CHUNK, n - 1):
        assert long[w] == one_philox([w // 4, 0, 0, 0], [int(k) for k in KEY])[w % 4]


def test_philox_counters_above_32_bits():
    out = np.empty((2, 2), np.uint64)
    host._philox_words(KEY, 2**32 - 1, 2, out)
    words = out.view(np.uint32)
    assert words[0].tolist() == one_philox([2**32 - 1, 0, 0, 0], [int(k) for k in KEY])
    assert words[1].tolist() == one_philox([0, 1, 0, 0], [int(k) for k in KEY])


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_philox_widths_read_one_stream(width):
    stream = bits(KEY, (64,)).tobytes()
    got = bits(KEY, (7, 3), width)
    assert got.dtype == np.dtype(f"u{width // 8}")
    assert got.tobytes() == stream[: got.nbytes]


@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.parametrize("shape", [(), (3,), (5, 7), (0,), (40000,)])
def test_threefry_bits_are_jax_bits(width, shape):
    key = jax.random.key(1701)
    data = np.asarray(jax.random.key_data(key))
    expected = np.asarray(jax.random.bits(key, shape, f"uint{width}"))
    np.testing.assert_array_equal(bits(data, shape, width, "threefry2x32"), expected)


def test_threefry_split_and_fold_in_are_jax():
    key = jax.random.key(42)
    data = np.asarray(jax.random.key_data(key))
    expected = jax.random.key_data(jax.random.split(key, 5))
    np.testing.assert_array_equal(split(data, 5, "threefry2x32"), expected)
    expected = jax.random.key_data(jax.random.split(key, (2, 3)))
    np.testing.assert_array_equal(split(data, (2, 3), "threefry2x32"), expected)
    for d in (0, 1, 7, 2**32 - 1):
        expected = jax.random.key_data(jax.random.fold_in(key, d))
        np.testing.assert_array_equal(fold_in(data, d, "threefry2x32"), expected)
    np.testing.assert_array_equal(
        bits(np.array([0, 0], np.uint32), (3,), 32, "threefry2x32"),
        [4070199207, 4202968722, 1427181096],
    )


def test_philox_split_and_fold_in():
    words = [int(k) for k in KEY]
    assert split(KEY, 3).tolist() == [one_philox([i, 0, 0, 1], words)[:2] for i in range(3)]
    assert fold_in(KEY, 9).tolist() == one_philox([9, 0, 0, 2], words)[:2]
    assert fold_in(KEY, to_array(np.int32(-1))).tolist() == fold_in(KEY, 2**32 - 1).tolist()
    made = np.concatenate([split(KEY, 500), [fold_in(KEY, i) for i in range(500)]])
    assert len({tuple(k) for k in made.tolist()}) == 1000


@pytest.mark.parametrize("impl", rb.IMPLS)
@pytest.mark.parametrize("shape", [(3,), (5, 1001)])
def test_batched_keys_are_separate_streams(impl, shape):
    keys = np.random.default_rng(0).integers(0, 2**32, (2, 3, 2), np.uint32)
    got = bits(keys, shape, 32, impl)
    assert got.shape == (2, 3, *shape)
    for i in np.ndindex(2, 3):
        np.testing.assert_array_equal(got[i], bits(keys[i], shape, 32, impl))


@pytest.mark.parametrize("impl", rb.IMPLS)
def test_vmap_and_staging(impl):
    keys = [[k] for k in np.random.default_rng(1).integers(0, 2**32, (3, 2), np.uint32)]
    for width in (8, 32, 64):
        f = lambda k: rb.random_bits(k, shape=(2, 3), width=width, impl=impl)
        check_staged(f, *keys[0])
        check_batched(f, *keys[0], examples=keys)
    for f in (lambda k: rb.split(k, 3, impl=impl), lambda k: rb.fold_in(k, 5, impl=impl)):
        check_staged(f, *keys[0])
        check_batched(f, *keys[0], examples=keys)
    with_data = [[k[0], np.uint32(i)] for i, k in enumerate(keys)]
    f = lambda k, d: rb.fold_in(k, d, impl=impl)
    check_batched(f, *with_data[0], examples=with_data)


def test_vmapped_split_differs_between_keys():
    keys = to_array(np.arange(8, dtype=np.uint32).reshape(4, 2))
    out = to_numpy(vmap_flat(lambda k: [rb.split(k, 2)], 4, [keys], [0])[0])
    assert out.shape == (4, 2, 2)
    assert len({tuple(k) for k in out.reshape(-1, 2).tolist()}) == 8


def test_bits_are_uniform_and_uncorrelated():
    x = bits(KEY, (200_000,))
    for bit in range(32):
        assert abs(((x >> np.uint32(bit)) & 1).mean() - 0.5) < 5 * 0.5 / 200_000**0.5
    y = bits(KEY ^ np.array([1, 0], np.uint32), (200_000,))
    same = np.bitwise_count(x ^ y).mean()
    assert abs(same - 16) < 5 * 8**0.5 / 200_000**0.5


def test_errors():
    with pytest.raises(
        errors.ShapeError, match=r"a key is key<philox> or u32\[..., 2\], got u32\[3\]"
    ):
        rb.random_bits(to_array(np.zeros(3, np.uint32)), shape=(2,))
    with pytest.raises(errors.ShapeError, match="a key is"):
        rb.random_bits(to_array(np.zeros(2, np.int32)), shape=(2,))
    with pytest.raises(errors.DTypeError, match="width 7"):
        rb.random_bits(to_array(KEY), shape=(2,), width=7)
    with pytest.raises(ValueError, match="impl 'mt19937'"):
        rb.random_bits(to_array(KEY), shape=(2,), impl="mt19937")
    with pytest.raises(errors.DTypeError, match="fold_in takes an integer"):
        rb.fold_in(to_array(KEY), to_array(np.float32(1.5)))
    with pytest.raises(errors.ShapeError, match="the data of keys"):
        rb.key_hash(to_array(np.zeros((2, 2), np.uint32)), to_array(np.zeros(3, np.uint32)))
