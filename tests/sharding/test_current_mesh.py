"""The current mesh: of each thread its own, and part of what a function traces to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax
from genesis_fn.transforms.jitting.retrace import RecompilationWarning

P = gf.P
X = np.arange(8.0, dtype=np.float32)
WAYS = {"set_mesh": gf.set_mesh, "with mesh": lambda mesh: mesh}


def meshes() -> list[Any]:
    """Of 4 and of 2 devices."""
    return [gf.make_mesh((n,), ("a",)) for n in (4, 2)]


def constrained(x: Any) -> Any:
    return lax.with_sharding_constraint(x * 2.0, P("a"))


@gf.shard_map(in_specs=P("a"), out_specs=P())
def count(x: Any) -> Any:
    return lax.psum(jnp.ones(()) + 0.0 * x.sum(), "a")


def together(*bodies: Callable[[Callable[[], object]], object]) -> None:
    """Run functions in threads of their own; each is given what waits for the others."""
    meet, failed = threading.Barrier(len(bodies), timeout=60), []

    def run(body: Callable[[Callable[[], object]], object]) -> None:
        try:
            body(meet.wait)
        except BaseException as error:
            failed.append(error)
            meet.abort()

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


@pytest.mark.parametrize("way", WAYS)
def test_threads_hold_meshes_of_their_own_at_the_same_time(way: str):
    jitted, counted = gf.jit(constrained), gf.jit(count)
    out = gf.jit(lambda x: x + 1.0, out_shardings=P("a"))
    both = gf.jit(lambda x: x + 2.0, in_shardings=P("a"))

    def body(mesh: Any) -> Callable[[Callable[[], object]], None]:
        def run(meet: Callable[[], object]) -> None:
            meet()
            with WAYS[way](mesh):
                for _ in range(3):  # the first one traces; the others take what is known
                    meet()
                    for f in (jitted, out, both, lambda x: gf.device_put(x, P("a"))):
                        assert f(X).sharding.mesh == mesh
                    assert count(X) == counted(X) == mesh.size
            meet()
            with pytest.raises(gf.errors.MeshError):
                count(X)

        return run

    together(*map(body, meshes()))
    assert len(jitted.traces) == len(counted.traces) == len(out.traces) == 2


def test_one_mesh_that_two_threads_enter_and_leave_in_turn():
    mesh, other = meshes()

    def first(meet: Callable[[], object]) -> None:
        with other:
            meet()
            with mesh:
                meet()  # the second is inside, too
                meet()
                assert count(X) == mesh.size
            meet()
            assert count(X) == other.size

    def second(meet: Callable[[], object]) -> None:
        meet()
        with mesh:
            meet()
            meet()
        meet()
        with pytest.raises(gf.errors.MeshError):
            count(X)

    together(first, second)


def test_a_mesh_that_is_set_is_that_of_its_thread_alone():
    mesh, other = meshes()

    def sets(meet: Callable[[], object]) -> None:
        gf.set_mesh(other)
        assert count(X) == other.size

    with gf.set_mesh(mesh):
        together(sets)
        assert count(X) == mesh.size

        def begins_without(meet: Callable[[], object]) -> None:
            with pytest.raises(gf.errors.MeshError):
                count(X)

        together(begins_without)


def _with_jvp(f: Callable[..., Any]) -> Callable[..., Any]:
    g = gf.custom_jvp(lambda x: f(x))
    g.defjvp(lambda xs, ts: gf.jvp(f, xs, ts))
    return g


WRAPPED: dict[str, Callable[..., Callable[..., Any]]] = {
    "jit": gf.jit,
    "jit of jit": lambda f: gf.jit(gf.jit(f)),
    "checkpoint": lambda f: gf.jit(gf.checkpoint(f)),
    "custom_jvp": lambda f: gf.jit(_with_jvp(f)),
    "custom_jvp alone": _with_jvp,
    "scan": lambda f: gf.jit(lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]),
    "cond": lambda f: gf.jit(lambda x: lax.cond(x[0] < 1, f, f, x)),
    "vmap": lambda f: gf.jit(lambda x: gf.vmap(f)(x[None])[0]),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_the_mesh_is_in_the_key_of_what_is_traced(name: str):
    f = WRAPPED[name](constrained)
    for mesh in (*meshes(), *meshes()):
        with mesh:
            for _ in range(2):
                result = f(X)
                assert result.sharding.mesh == mesh
                np.testing.assert_array_equal(result, X * 2.0)
                assert f"{mesh}" in str(gf.make_jaxpr(f)(X))
    if isinstance(f, gf.transforms.JitFunction):
        assert len(f.traces) == 2  # equal meshes share


def test_the_reason_for_tracing_again_names_the_mesh():
    f = gf.jit(lambda x: x * 3.0, out_shardings=P("a"))
    wide, narrow = meshes()
    for n in (8, 16):
        with wide:
            f(np.ones(n))
    with narrow, pytest.warns(RecompilationWarning, match=r"mesh: Mesh\('a': 4\) -> Mesh\('a': 2"):
        f(np.ones(16))
