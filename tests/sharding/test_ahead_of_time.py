"""Programs on a mesh that are compiled before there are arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
from genesis_fn import P, errors, lax, numpy as jnp

W = np.random.default_rng(0).normal(size=(16, 8)).astype("f4")
X = np.random.default_rng(1).normal(size=(32, 16)).astype("f4")


def loss(w: Any, x: Any) -> Any:
    return jnp.sum(jnp.tanh(x @ w))


def mesh() -> Any:
    return gf.make_mesh((4,), ("data",))


def layouts() -> tuple[gf.NamedSharding, gf.NamedSharding]:
    return gf.NamedSharding(mesh(), P()), gf.NamedSharding(mesh(), P("data"))


def placed() -> list[Any]:
    return [gf.device_put(x, s) for x, s in zip((W, X), layouts())]


def described(laid: bool) -> list[gf.ShapeDtypeStruct]:
    how: Any = layouts() if laid else (None, None)
    return [gf.ShapeDtypeStruct(x.shape, x.dtype, sharding=s) for x, s in zip((W, X), how)]


WAYS: dict[str, Any] = {
    "arrays": lambda f: gf.jit(f).lower(*placed()),
    "structs": lambda f: gf.jit(f).lower(*described(True)),
    "structs and in_shardings": lambda f: gf.jit(f, in_shardings=layouts()).lower(*described(True)),
    "in_shardings": lambda f: gf.jit(f, in_shardings=layouts()).lower(*described(False)),
    "of host arrays": lambda f: gf.jit(f, in_shardings=layouts()).lower(W, X),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_compiled_is_the_program_of_the_mesh(way: str) -> None:
    compiled = WAYS[way](gf.grad(loss)).compile()
    jitted = gf.jit(gf.grad(loss))
    expected = jitted(*placed())
    (ran,) = [e for p in jitted.cache.programs for e in p.executables.values()]
    assert compiled.as_text() == ran.as_text()
    found = compiled(*placed())
    np.testing.assert_array_equal(found, expected)
    assert found.sharding == expected.sharding
    # Four devices have eight rows each: of one device alone it would be another program.
    assert compiled.as_text() != gf.jit(gf.grad(loss)).lower(W, X).compile().as_text()


def test_arrays_laid_out_otherwise_are_an_error() -> None:
    compiled = gf.jit(loss).lower(*described(True)).compile()
    w, x = placed()
    with pytest.raises(errors.ShardingError, match=r"takes x laid out as .*data.*, got P"):
        compiled(w, gf.device_put(X, layouts()[0]))
    with pytest.raises(errors.ShardingError, match="laid out as"):
        compiled(W, X)
    alone = gf.jit(loss).lower(W, X).compile()
    with pytest.raises(errors.ShardingError, match="laid out as None"):
        alone(w, x)
    np.testing.assert_allclose(alone(W, X), compiled(w, x), atol=1e-3)  # sums of 256


def test_host_arrays_are_laid_out_as_in_shardings_says() -> None:
    compiled = gf.jit(loss, in_shardings=layouts()).lower(*described(False)).compile()
    np.testing.assert_allclose(compiled(W, X), loss(W, X), atol=1e-3)


def test_two_layouts_of_one_argument() -> None:
    whole, rows = layouts()
    f = gf.jit(loss, in_shardings=(whole, whole))
    with pytest.raises(errors.ShardingError, match="in_shardings says"):
        f.lower(*described(True))


def test_a_program_that_names_axes_itself() -> None:
    total = gf.shard_map(
        lambda x: lax.psum(jnp.sum(x), "data"), mesh=mesh(), in_specs=P("data"), out_specs=P()
    )
    compiled = gf.jit(total).lower(gf.ShapeDtypeStruct(X.shape, X.dtype)).compile()
    np.testing.assert_allclose(compiled(X), X.sum(dtype=np.float64), atol=1e-3)


def test_structs_with_shardings() -> None:
    whole, rows = layouts()
    struct = gf.ShapeDtypeStruct((8, 2), "float32", sharding=rows)
    assert struct.sharding == rows and "sharding=NamedSharding" in repr(struct)
    assert struct != gf.ShapeDtypeStruct((8, 2), "float32") and struct != gf.ShapeDtypeStruct(
        (8, 2), "float32", sharding=whole
    )
    assert hash(struct) == hash(gf.ShapeDtypeStruct((8, 2), "float32", sharding=rows))
    with mesh():
        assert gf.ShapeDtypeStruct((8, 2), "float32", sharding=P("data")) == struct
    on_cpu = gf.ShapeDtypeStruct((8,), "float32", sharding=gf.cpu())
    assert on_cpu.sharding == gf.sharding.SingleDeviceSharding(gf.cpu())
    with pytest.raises(errors.ShardingError, match="6"):
        gf.ShapeDtypeStruct((6, 2), "float32", sharding=rows)
    with pytest.raises(TypeError, match="a sharding or a device, got 'data'"):
        gf.ShapeDtypeStruct((8, 2), "float32", sharding="data")
