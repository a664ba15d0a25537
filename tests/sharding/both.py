"""Programs on meshes, run by this library and by JAX, and the results compared.

A program is a function `f(m, *args)` of a namespace `m`: `OURS` or `THEIRS`, those of
`tests/transforms/both.py` with what concerns meshes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax._src.lax.parallel as their_collectives
import numpy as np

import genesis_fn as gf
from genesis_fn.core import tree
from genesis_fn.core.array import from_numpy
from tests.transforms import both

NAMES = ("a", "b", "c")
MESHES = ((8,), (4, 2), (2, 2, 2))


def our_mesh(*shape: int) -> Any:
    return gf.make_mesh(shape, NAMES[: len(shape)])


def their_mesh(*shape: int) -> Any:
    kinds = (jax.sharding.AxisType.Auto,) * len(shape)
    return jax.make_mesh(shape, NAMES[: len(shape)], axis_types=kinds)


def with_names(namespace: Any, **names: Any) -> Any:
    return SimpleNamespace(**vars(namespace) | names)


_COLLECTIVES = ("psum pmean pmax pmin all_gather all_to_all ppermute psum_scatter axis_index "
                "pshuffle pswapaxes pcast axis_size").split()  # fmt: skip

OURS = with_names(
    both.OURS,
    name="ours",
    mesh=our_mesh,
    P=gf.P,
    NamedSharding=gf.NamedSharding,
    shard_map=gf.shard_map,
    device_put=gf.device_put,
    constraint=gf.lax.with_sharding_constraint,
    all_gather_invariant=gf.lax.all_gather_invariant,
    custom_vmap=gf.custom_batching.custom_vmap,
    eval_shape=gf.eval_shape,
    make_jaxpr=gf.make_jaxpr,
    pure_callback=gf.pure_callback,
    **{n: getattr(gf.lax, n) for n in _COLLECTIVES},
)
THEIRS = with_names(
    both.THEIRS,
    name="theirs",
    typeof=jax.typeof,
    mesh=their_mesh,
    P=jax.P,
    NamedSharding=jax.NamedSharding,
    shard_map=jax.shard_map,
    device_put=jax.device_put,
    constraint=jax.lax.with_sharding_constraint,
    all_gather_invariant=their_collectives.all_gather_invariant,
    custom_vmap=jax.custom_batching.custom_vmap,
    eval_shape=jax.eval_shape,
    make_jaxpr=jax.make_jaxpr,
    pure_callback=jax.pure_callback,
    **{n: getattr(jax.lax, n) for n in _COLLECTIVES},
)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float64) -> Any:
    """Values of any dtype: small integers, which every dtype holds and sums exactly, for those
    narrower than float32."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)
    if dtype.itemsize < 4 or dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -4, 5, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def arrays(x: Any) -> Any:
    """A pytree with its ndarrays as arrays of this library, those of JAX's narrow floats too."""
    return tree.map(lambda v: from_numpy(v) if isinstance(v, np.ndarray) else v, x)


def as_f64(x: Any) -> np.ndarray:
    """Values that comparisons of numpy take."""
    x = np.asarray(x)
    return x.astype(np.float64) if x.dtype.name == "bfloat16" else x


def same(mine: Any, reference: Any, tolerance: float = 1e-10, what: str = "") -> None:
    """Assert that two results have the same leaves: shapes, dtypes, and values, up to a relative
    tolerance (0: the same bits)."""
    a, b = tree.leaves(mine), jax.tree.leaves(reference)
    assert len(a) == len(b), f"{what}: {len(a)} leaves, not {len(b)}"
    for i, (x, y) in enumerate(zip(a, b)):
        place = f"{what}, leaf {i}"
        assert x.shape == y.shape, f"{place}: {x.shape}, not {y.shape}"
        kinds = np.dtype(x.dtype), np.dtype(y.dtype)
        # Integers that nobody gave a dtype are int32 here, int64 in JAX's 64-bit mode.
        assert kinds[0] == kinds[1] or kinds == (np.int32, np.int64), f"{place}: {kinds}"
        x, y = as_f64(x), as_f64(y)
        if tolerance and x.dtype.kind in "fc":
            scale = max(1.0, float(np.abs(y).max(initial=0)))
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * scale, err_msg=place)
        else:
            np.testing.assert_array_equal(x, y, err_msg=place)


def agree(program: Any, *args: Any, tolerance: float = 1e-10, what: str = "") -> Any:
    """Run a program by both libraries and compare; returns our result."""
    mine = program(OURS, *arrays(args))
    same(mine, theirs(program, *args), tolerance, what)
    return mine


def theirs(program: Any, *args: Any) -> Any:
    """The result of a program by JAX, compiled as fast as it can be."""
    compiled = jax.jit(
        lambda *xs: program(THEIRS, *xs), compiler_options={"xla_backend_optimization_level": 0}
    )
    return compiled(*args)


def varying(m: Any, y: Any, names: tuple[str, ...]) -> Any:
    """A value as one that varies over all axes: JAX casts those alone over which it does not."""
    if m.name == "ours":
        return m.pcast(y, names, to="varying")
    missing = tuple([n for n in names if n not in m.typeof(y).mat.varying])
    return m.pcast(y, missing, to="varying") if missing else y
