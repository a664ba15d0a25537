"""What goes wrong on meshes says what, where, and what to do."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import errors, lax
from tests.sharding.both import our_mesh

P = gf.P
HERE = r"at .*test_errors\.py:\d+"


def raises(error, *parts):
    return pytest.raises(error, match="(?s)" + ".*".join(parts))


ROWS = P("a")


def on(f, ins=ROWS, outs=ROWS, **options):
    return gf.shard_map(f, mesh=our_mesh(4, 2), in_specs=ins, out_specs=outs, **options)


X = np.arange(8.0, dtype=np.float32)


def test_a_reduction_that_was_forgotten():
    f = on(lambda x: jnp.sum(x) * 2.0, outs=P())
    with raises(errors.ShardingError, "the output", "may differ", "'a'", HERE, "lax.psum"):
        f(X)
    with raises(errors.ShardingError, r"the output\['loss'\]", "'a'"):
        on(lambda x: {"loss": x.sum(), "x": x}, outs={"loss": P(), "x": P("a")})(X)


@pytest.mark.parametrize("what", ["in", "out"])
def test_an_axis_that_the_mesh_does_not_have(what):
    with raises(errors.ShardingError, f"{what}_specs has", "'z'", "'a', 'b'"):
        on(lambda x: x, **{f"{what}s": P("z")})(X)


def test_an_axis_named_twice():
    with raises(errors.ShardingError, "names 'a' twice"):
        on(lambda x: x, P("a", "a"))(np.ones((4, 4)))
    with raises(errors.ShardingError, "names the axis 'a' twice", HERE):
        gf.NamedSharding(our_mesh(4, 2), P("a", "a"))


def test_a_dimension_that_is_not_divided():
    with raises(errors.ShardingError, "dimension 0", r"\[6\]", "'a' of 4", HERE, "multiple of 4"):
        on(lambda x: x)(X[:6])
    rows = gf.NamedSharding(our_mesh(4, 2), P(("a", "b")))
    with raises(errors.ShardingError, r"\[6\]", "'a' of 4 x 'b' of 2", HERE, "multiple of 8"):
        gf.device_put(X[:6], rows)
    with raises(errors.ShardingError, "with_sharding_constraint", r"\[6\]", HERE):
        gf.jit(lambda x: lax.with_sharding_constraint(x, rows))(X[:6])


def test_too_many_devices():
    with raises(errors.MeshError, "needs 16 devices, there are 8", HERE, "GENESIS_CPU_DEVICES=16"):
        gf.make_mesh((4, 4), ("a", "b"))
    with raises(errors.MeshError, "one positive size for each name", HERE):
        gf.make_mesh((4, 2), ("a",))


def test_a_spec_that_is_longer_than_its_array():
    with raises(errors.ShardingError, r"has 1 dimensions", "at least 2", HERE):
        on(lambda x: x, P("a", "b"))(X)
    with raises(errors.ShardingError, "the output", "1 dimensions"):
        on(lambda x: x, outs=P("a", "b"))(X)
    with raises(errors.ShardingError, r"has 1 dimensions", "at least 2", HERE):
        gf.device_put(X, gf.NamedSharding(our_mesh(4, 2), P("a", "b")))


def test_shard_map_within_shard_map():
    with raises(errors.MeshError, "within shard_map", HERE, "one shard_map"):
        on(on(lambda x: x))(X)


def test_a_constraint_within_shard_map():
    where = gf.NamedSharding(our_mesh(4, 2), P("a"))
    with raises(errors.MeshError, "within shard_map", HERE, "lax.all_gather"):
        on(lambda x: lax.with_sharding_constraint(x, where))(X)


@pytest.mark.parametrize("f", [
    lambda x: lax.psum(x, "a"), lambda x: lax.all_gather(x, "a"), lambda x: x * lax.axis_index("a"),
    lambda x: lax.ppermute(x, "a", [(0, 1)]), lambda x: lax.pcast(x, "a", to="varying"),
])  # fmt: skip
def test_a_collective_outside(f):
    for g in (f, gf.jit(f)):
        with raises(NameError, "unbound axis name 'a'", "none", HERE, "shard_map"):
            g(X)
    with raises(NameError, "unbound axis name 'z'", "'a', 'b'", HERE):
        on(lambda x: lax.psum(x, "z"))(X)


def test_a_loop_whose_devices_may_not_stay_in_step():
    f = lambda x: lax.while_loop(lambda c: c.sum() < 9.0, lambda c: c + lax.psum(c, "a"), x)
    with raises(errors.ShardingError, "'a'", "decide differently", HERE, "lax.pmax"):
        on(f)(X)
    g = lambda x: lax.cond(x[0] > 1.0, lambda x: x * lax.psum(x, "a"), lambda x: x, x)
    with raises(errors.ShardingError, "'a'", "decide differently", HERE):
        on(g)(X)
    on(f, check_vma=False)  # the user answers for it


def test_meshes_that_are_mixed():
    x = gf.device_put(X, gf.NamedSharding(our_mesh(4, 2), P("a")))
    y = gf.device_put(X, gf.NamedSharding(our_mesh(8), P("a")))
    for f in (lambda x, y: x + y, gf.jit(lambda x, y: x * y)):
        with raises(errors.DeviceError, "two meshes", HERE, "device_put"):
            f(x, y)
    with raises(errors.DeviceError, "two meshes", HERE, "device_put"):
        on(lambda y: y)(y)


def test_arguments_that_are_laid_out_otherwise():
    mesh = our_mesh(4, 2)
    rows = gf.NamedSharding(mesh, P("a"))
    x = gf.device_put(X, gf.NamedSharding(mesh, P("b")))
    f = gf.jit(lambda x: x * 2.0, in_shardings=(rows,))
    with raises(errors.ShardingError, "argument x|argument", r"in_shardings", HERE, "device_put"):
        f(x)
    np.testing.assert_array_equal(f(X), X * 2.0)
    with raises(TypeError, "by position", HERE):
        f(x=X)


def test_arguments_by_name():
    with raises(TypeError, "by position", "x by name", HERE):
        on(lambda x: x)(x=X)


def test_specs_that_are_none():
    with raises(TypeError, "needs in_specs", HERE):
        gf.shard_map(lambda x: x, mesh=our_mesh(8), out_specs=P())
    with raises(TypeError, "takes PartitionSpecs", HERE):
        on(lambda x: x, "a")(X)
    with raises(errors.TreeError, "in_specs"):
        on(lambda x: x, (P("a"), P("a")))(X)
    with raises(errors.MeshError, "there is no mesh", HERE, "mesh="):
        gf.shard_map(lambda x: x, in_specs=P(), out_specs=P())(X)
    with raises(errors.MeshError, "needs a mesh", HERE):
        gf.device_put(X, P("a"))


def test_a_loop_that_begins_with_what_does_not_vary():
    """The carry is cast, where JAX wants `pcast`."""
    got = on(lambda x: lax.fori_loop(0, 3, lambda i, c: c + x, jnp.zeros(2)))(X)
    np.testing.assert_array_equal(got, 3 * X)
