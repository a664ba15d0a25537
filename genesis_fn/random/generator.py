"""Random numbers with state: PyTorch's `Generator`, and `Stream` for scripts.

A generator is a seed and a count; each draw takes the key of (seed, count) and advances the count,
under a lock. The count lives in Python: within `jit` the keys are those of the trace, so a compiled
function draws the same numbers at every call. Pass it a key to draw new ones.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn.core import dtypes
from genesis_fn.core.types.annotations import Array, DTypeLike
from genesis_fn.random import keys, samplers
from genesis_fn.random.keys import Key

# The default seed, PyTorch's.
DEFAULT_SEED = 67280421310721


class Generator:
    """A seeded source of random arrays, safe to share between threads."""

    def __init__(self, seed: int = DEFAULT_SEED, *, impl: str | None = None) -> None:
        self._lock = threading.RLock()
        self._seed, self._count, self._impl = int(seed), 0, impl

    def __repr__(self) -> str:
        return f"Generator(seed={self._seed}, draws={self._count})"

    def manual_seed(self, seed: int) -> Generator:
        """Restart from `seed`, and return this generator."""
        with self._lock:
            self._seed, self._count = int(seed), 0
        return self

    def initial_seed(self) -> int:
        """The seed."""
        return self._seed

    def seed(self) -> int:
        """Restart from a fresh seed of the operating system, and return it."""
        fresh = secrets.randbits(63)
        self.manual_seed(fresh)
        return fresh

    def get_state(self) -> np.ndarray:
        """uint64[2]: the seed and the number of draws."""
        with self._lock:
            return np.array([self._seed & (2**64 - 1), self._count], np.uint64)

    def set_state(self, state: np.ndarray) -> None:
        """Restore a state from `get_state`. Raises ValueError for anything else."""
        state = np.asarray(state)
        if state.shape != (2,) or state.dtype != np.uint64:
            raise ValueError(
                f"a generator's state is uint64[2], from get_state(); got {state.dtype}"
                f"{list(state.shape)}"
            )
        with self._lock:
            self._seed, self._count = int(state[0]), int(state[1])

    @contextlib.contextmanager
    def fork(self) -> abc.Generator[Generator]:
        """A context at whose end the generator has the state that it had at the start."""
        with self._lock:
            before = self._seed, self._count
        try:
            yield self
        finally:
            with self._lock:
                self._seed, self._count = before

    def key(self) -> Key:
        """The key of the next draw."""
        with self._lock:
            seed, count = self._seed, self._count
            self._count += 1
        return keys.fold_in(keys.key(seed, impl=self._impl), count)

    def rand(self, *size: int | Sequence[int], dtype: DTypeLike = float) -> Array:
        """Uniform in [0, 1), of shape `size` (integers, or one sequence)."""
        return samplers.uniform(self.key(), _size(size), dtype)

    def randn(self, *size: int | Sequence[int], dtype: DTypeLike = float) -> Array:
        """Normal with mean 0 and variance 1."""
        return samplers.normal(self.key(), _size(size), dtype)

    def randint(
        self,
        low: int,
        high: int | tuple[int, ...] | list[int] | None = None,
        size: int | Sequence[int] | None = None,
        dtype: DTypeLike = int,
    ) -> Array:
        """Uniform integers in [low, high): `randint(low, high, size)` or `randint(high, size)`."""
        if size is None:
            low, high, size = 0, low, high
        if size is None or high is None or isinstance(high, (tuple, list)):
            raise TypeError("Generator.randint takes (low, high, size) or (high, size)")
        if high <= low:
            raise ValueError(f"Generator.randint: there is no integer in [{low}, {high})")
        return samplers.randint(self.key(), _size((size,)), low, high, dtype)

    def randperm(self, n: int, dtype: DTypeLike = int) -> Array:
        """A random permutation of 0 ... n - 1."""
        return jnp.astype(samplers.permutation(self.key(), n), dtypes.dtype(dtype))


def _size(size: Sequence[Any]) -> tuple[int, ...]:
    if len(size) == 1 and not isinstance(size[0], (int, np.integer)):
        size = tuple(size[0])
    return tuple([int(n) for n in size])


class Stream:
    """Keys derived from one key in order: `next(stream)` is fold_in(key, 0), then 1, ..."""

    def __init__(self, key: Key) -> None:
        self._key, self.count = keys.as_key(key), 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Stream(draws={self.count})"

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Key:
        with self._lock:
            count = self.count
            self.count += 1
        return keys.fold_in(self._key, count)

    def __call__(self, shape: int | Sequence[int] | None = None) -> Key:
        """The next key, or an array of keys of `shape`."""
        fresh = next(self)
        return fresh if shape is None else keys.split(fresh, shape)


default_generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Restart the default generator from a seed.

    Args:
        seed: integer.

    Returns:
        The default generator.

    >>> with random.fork_rng():
    ...     random.manual_seed(7)
    Generator(seed=7, draws=0)
    """
    return default_generator.manual_seed(seed)


def initial_seed() -> int:
    """The default generator's seed.

    Returns:
        An integer.

    >>> with random.fork_rng() as generator:
    ...     random.manual_seed(7).initial_seed()
    7
    """
    return default_generator.initial_seed()


def seed() -> int:
    """Restart the default generator from a fresh seed of the operating system.

    Returns:
        The seed.

    >>> with random.fork_rng():
    ...     random.seed() == random.initial_seed()
    True
    """
    return default_generator.seed()


def get_rng_state() -> np.ndarray:
    """The default generator's state.

    Returns:
        uint64[2]: the seed and the number of draws.

    >>> random.get_rng_state().shape
    (2,)
    """
    return default_generator.get_state()


def set_rng_state(state: np.ndarray) -> None:
    """Set the default generator's state.

    Args:
        state: what `get_rng_state` returned.

    Raises:
        ValueError: `state` is anything else.

    >>> state = random.get_rng_state()
    >>> x = random.rand(3)
    >>> random.set_rng_state(state)
    >>> bool((random.rand(3) == x).all())
    True
    """
    default_generator.set_state(state)


@contextlib.contextmanager
def fork_rng() -> abc.Generator[Generator]:
    """A context in which the default generator may be used and seeded; then it is as before.

    Yields:
        The default generator.

    >>> with random.fork_rng() as generator:
    ...     x = generator.rand(2)
    """
    with default_generator.fork() as generator:
        yield generator


def rand(*size: int | Sequence[int], dtype: DTypeLike = float) -> Array:
    """Uniform in [0, 1), drawn from the default generator.

    Args:
        *size: the shape, as integers or one sequence.
        dtype: floating dtype.

    Returns:
        An array of that shape.

    >>> random.rand(2, 3).shape
    (2, 3)
    """
    return default_generator.rand(*size, dtype=dtype)


def randn(*size: int | Sequence[int], dtype: DTypeLike = float) -> Array:
    """Normal with mean 0 and variance 1, drawn from the default generator.

    Args:
        *size: the shape, as integers or one sequence.
        dtype: floating dtype.

    Returns:
        An array of that shape.

    >>> random.randn(2, 3).shape
    (2, 3)
    """
    return default_generator.randn(*size, dtype=dtype)


def randperm(n: int, dtype: DTypeLike = int) -> Array:
    """A random permutation of 0 ... n - 1, drawn from the default generator.

    Args:
        n: how many integers.
        dtype: of the result.

    Returns:
        An array [n].

    >>> sorted(random.randperm(4).tolist())
    [0, 1, 2, 3]
    """
    return default_generator.randperm(n, dtype)
