"""Checks in batched branches and loops count for the lanes that are active, and only for those."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn.lax as lax
import genesis_fn.numpy as jnp
from genesis_fn import make_jaxpr
from genesis_fn.core import errors
from genesis_fn.lax.fused.cross_entropy import cross_entropy_last
from genesis_fn.primitives.indexing.gather import take_rows
from genesis_fn.transforms.autodiff.checkpointing import checkpoint
from genesis_fn.transforms.autodiff.derivatives import grad, jvp, value_and_grad
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.batching.predicated_checks import has_checks
from genesis_fn.transforms.control_flow.conditionals import cond, switch
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.custom.batching import sequential_vmap
from genesis_fn.transforms.custom.derivative_rules import custom_jvp, custom_vjp
from genesis_fn.transforms.custom.fused_functions import fused
from genesis_fn.transforms.debugging.assertions import assert_
from genesis_fn.transforms.jitting import jit

TABLE = np.arange(5, dtype=np.float32) * 10


@custom_vjp
def looked_up(i, x):
    return jnp.asarray(TABLE)[i] * x


looked_up.defvjp(
    lambda i, x: (jnp.asarray(TABLE)[i] * x, i), lambda i, ct: (None, jnp.asarray(TABLE)[i] * ct)
)


@custom_jvp
def looked_up_forward(i, x):
    return jnp.asarray(TABLE)[i] * x


looked_up_forward.defjvp(
    lambda primals, tangents: (
        looked_up_forward(*primals),
        jnp.asarray(TABLE)[primals[0]] * tangents[1],
    )
)


def scanned(i, x):
    return scan(lambda c, k: (c + jnp.asarray(TABLE)[k], c), x, jnp.stack([i, i]))[0]


def looped(i, x):
    return while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] + jnp.asarray(TABLE)[i]), (0, x)
    )[1]


def chosen_again(i, x):
    return cond(x > 0, lambda: jnp.asarray(TABLE)[i] * x, lambda: x)


READERS = {
    "indexing": lambda i, x: jnp.asarray(TABLE)[i] * x,
    "take": lambda i, x: jnp.take(jnp.asarray(TABLE), i, mode="check") * x,
    "rows": lambda i, x: take_rows(jnp.asarray(TABLE).reshape(5, 1), i)[0] * x,
    "own operand": lambda i, x: (jnp.asarray(TABLE) * x)[i],
    "update": lambda i, x: (jnp.asarray(TABLE) * 0).at[i].set(x).sum(),
    "sum into": lambda i, x: (jnp.asarray(TABLE) * x).at[i].add(x).sum(),
    "scan": scanned,
    "while": looped,
    "cond": chosen_again,
    "jit": jit(lambda i, x: jnp.asarray(TABLE)[i] * x),
    "checkpoint": checkpoint(lambda i, x: jnp.asarray(TABLE)[i] * x),
    "custom_vjp": looked_up,
    "custom_jvp": looked_up_forward,
    "vmap": lambda i, x: vmap(lambda k: jnp.asarray(TABLE)[k] * x)(jnp.stack([i, i - 1])).sum(),
}  # fmt: skip


def lanes(read):
    """`read` where the flag says so, over a batch of (flag, index, value)."""
    return vmap(lambda p, i, x: cond(p, read, lambda i, x: x, i, x))


def batch(flags, indices):
    return jnp.array(flags), jnp.array(indices), jnp.array([1.0, 2.0, 3.0])


@pytest.mark.parametrize("wrap", [lambda f: f, jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", READERS)
def test_an_index_counts_where_its_lane_is_active(name, wrap):
    read = READERS[name]
    f = wrap(lanes(read))
    got = np.asarray(f(*batch([True, False, True], [3, 99, 4])))
    x = np.float32([1, 2, 3])
    want = [
        float(read(jnp.array(3), jnp.array(x[0]))),
        2,
        float(read(jnp.array(4), jnp.array(x[2]))),
    ]
    np.testing.assert_allclose(got, want)
    with pytest.raises(errors.IndexOutOfRange, match="99 out of range for axis"):
        np.asarray(f(*batch([True, True, True], [3, 99, 4])))
    with pytest.raises(IndexError):
        np.asarray(f(*batch([False, False, True], [3, 2, 5])))


@pytest.mark.parametrize("name", [n for n in READERS if n != "while"])
def test_derivatives_of_lanes_that_are_not_active(name):
    read = READERS[name]
    loss = lambda x, p, i: lanes(read)(p, i, x).sum()
    flags, indices, x = batch([True, False, True], [3, 99, 4])
    one = lambda k: float(grad(lambda v: read(indices[k], v))(x[k]))
    want = [one(0), 1.0, one(2)]
    np.testing.assert_allclose(np.asarray(grad(loss)(x, flags, indices)), want)
    each = vmap(grad(lambda v, p, i: cond(p, read, lambda i, v: v, i, v)))
    np.testing.assert_allclose(np.asarray(jit(each)(x, flags, indices)), want)
    with pytest.raises(errors.IndexOutOfRange, match="99"):
        np.asarray(grad(loss)(x, jnp.array([True, True, True]), indices))
    with pytest.raises(errors.IndexOutOfRange, match="99"):
        np.asarray(each(x, jnp.array([True, True, True]), indices)[0])


def test_forward_mode():
    f = lambda x, p, i: lanes(READERS["while"])(p, i, x)
    flags, indices, x = batch([True, False, True], [3, 99, 4])
    out, tangent = jvp(lambda v: f(v, flags, indices), (x,), (jnp.ones(3),))
    np.testing.assert_allclose(np.asarray(out), [61, 2, 83])
    np.testing.assert_allclose(np.asarray(tangent), [1, 1, 1])


def test_each_branch_of_a_switch_has_its_own_lanes():
    table = jnp.asarray(TABLE)
    branches = [lambda i: table[i], lambda i: table[i - 10], lambda i: table[i - 20] * 2]
    f = jit(vmap(lambda k, i: switch(k, branches, i)))
    index = jnp.array([1, 12, 23, 24])
    np.testing.assert_allclose(np.asarray(f(jnp.array([-3, 1, 2, 9]), index)), [10, 20, 60, 80])
    with pytest.raises(errors.IndexOutOfRange, match="index 12 "):
        np.asarray(f(jnp.array([0, 0, 2, 2]), index))
    with pytest.raises(errors.IndexOutOfRange, match="index 13 "):
        np.asarray(f(jnp.array([0, 1, 1, 2]), index))


def test_an_index_shared_by_the_lanes_counts_if_any_is_active():
    read = lambda p, i: cond(p, lambda: jnp.asarray(TABLE)[i], lambda: 0.0)
    f = jit(vmap(read, in_axes=(0, None)))
    assert not np.asarray(f(jnp.array([False, False]), jnp.array(9))).any()
    np.testing.assert_allclose(np.asarray(f(jnp.array([False, True]), jnp.array(2))), [0, 20])
    with pytest.raises(errors.IndexOutOfRange, match="index 9 "):
        np.asarray(f(jnp.array([False, True]), jnp.array(9)))


def test_loops_that_end_at_different_times():
    """A lane that is done goes on with the others, past the end of the table."""
    table = jnp.asarray(TABLE)

    def f(limit):
        done = lambda c: c[0] < limit
        return while_loop(done, lambda c: (c[0] + 1, c[1] + table[c[0]]), (0, 0.0))[1]

    np.testing.assert_allclose(np.asarray(jit(vmap(f))(jnp.array([1, 5, 0, 3]))), [0, 100, 0, 30])
    with pytest.raises(errors.IndexOutOfRange, match="index 5 "):
        np.asarray(vmap(f)(jnp.array([1, 6])))

    def from_end(start):  # reads below 0 once a lane is done and another is not
        step = lambda c: (c[0] - 1, c[1] + jnp.take(table, c[0] - 1, mode="check"))
        return while_loop(lambda c: c[0] > 0, step, (start, 0.0))[1]

    np.testing.assert_allclose(np.asarray(vmap(from_end)(jnp.array([2, 5]))), [10, 100])


def test_two_batches():
    f = vmap(lanes(READERS["scan"]), in_axes=(0, 0, None))
    flags = np.array([[True, False, True], [False, True, False]])
    index = np.where(flags, 2, -77)
    x = jnp.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(
        np.asarray(f(jnp.asarray(flags), jnp.asarray(index), x)),
        np.where(flags, [41, 42, 43], [1, 2, 3]),
    )
    index[0, 2] = 7
    with pytest.raises(errors.IndexOutOfRange, match="index 7 "):
        np.asarray(f(jnp.asarray(flags), jnp.asarray(index), x))


def test_nested_conditions_are_both_needed():
    f = lambda p, q, i: cond(
        p, lambda: cond(q, lambda: jnp.asarray(TABLE)[i], lambda: -1.0), lambda: -2.0
    )
    p, q = np.array([True, True, False, False]), np.array([True, False, True, False])
    index = np.array([1, 50, 50, 50])
    run = lambda: np.asarray(jit(vmap(f))(jnp.asarray(p), jnp.asarray(q), jnp.asarray(index)))
    np.testing.assert_allclose(run(), [10, -1, -2, -2])
    q[1] = True
    with pytest.raises(errors.IndexOutOfRange, match="index 50 "):
        run()


def test_the_message_names_the_line():
    def read(i):
        return jnp.asarray(TABLE)[i]  # this line

    f = jit(vmap(lambda p, i: cond(p, read, lambda i: 0.0, i)))
    with pytest.raises(errors.IndexOutOfRange) as error:
        np.asarray(f(jnp.array([False, True]), jnp.array([8, 9])))
    assert "index 9 out of range for axis" in str(error.value)
    assert "# this line" in str(error.value)
    assert (error.value.index, error.value.size) == (9, 5)


def test_assertions():
    def f(x):
        def checked(x):
            assert_(x > 0, "x is {}", x)
            return jnp.sqrt(x)

        return cond(x != -1, checked, lambda x: x, x)

    np.testing.assert_allclose(np.asarray(jit(vmap(f))(jnp.array([4.0, -1.0]))), [2, -1])
    with pytest.raises(errors.AssertionFailed, match=r"x is -3.0 \(example \(1,\) of the batch\)"):
        np.asarray(vmap(f)(jnp.array([4.0, -3.0, -1.0])))


def test_labels_of_a_fused_loss():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32))
    f = vmap(lambda p, x, k: cond(p, cross_entropy_last, lambda x, k: x[0], x, k))
    labels = jnp.array([1, 99, 3])
    got, want = f(jnp.array([True, False, True]), logits, labels), np.asarray(logits)
    losses = np.log(np.exp(want).sum(1)) - want[[0, 1, 2], [1, 0, 3]]
    np.testing.assert_allclose(np.asarray(got), [losses[0], want[1, 0], losses[2]], rtol=1e-5)
    g = jit(grad(lambda x: f(jnp.array([True, False, True]), x, labels).sum()))(logits)
    np.testing.assert_allclose(np.asarray(g)[1], [1, 0, 0, 0])
    with pytest.raises(errors.IndexOutOfRange, match="label 99"):
        np.asarray(f(jnp.array([True, True, True]), logits, labels))
    # The loss stays one operation; one that checks what is no operand of it does not.
    program = str(make_jaxpr(f)(jnp.array([True, False, True]), logits, labels))
    assert "fused[op=cross_entropy_last" in program


@fused("test_lookup_before")
def lookup_before(table, x, i):
    return table[i - 1] + table[x.astype(jnp.int32)]


def test_a_fused_function_that_checks_more_than_its_operands():
    table = jnp.asarray(TABLE)
    f = vmap(lambda p, x, i: cond(p, lambda *xs: lookup_before(table, *xs), lambda x, i: x, x, i))
    ones, x, i = jnp.ones((3,), bool), jnp.array([0.0, 99.0, 2.0]), jnp.array([1, 99, 2])
    some = ones.at[1].set(False)
    want = [TABLE[0] + TABLE[0], 99, TABLE[1] + TABLE[2]]
    np.testing.assert_allclose(np.asarray(f(some, x, i)), want)
    np.testing.assert_allclose(np.asarray(jit(f)(some, x, i)), want)
    for bad_x, bad_i in ((x, i.at[1].set(1)), (x.at[1].set(0), i)):
        with pytest.raises(errors.IndexOutOfRange):
            np.asarray(f(ones, bad_x, bad_i))


def test_a_batching_rule_of_the_users():
    read = sequential_vmap(lambda table, i: table[i])
    f = vmap(lambda p, i, t: cond(p, read, lambda t, i: 0.0, t, i), in_axes=(0, 0, None))
    got = f(jnp.array([True, False]), jnp.array([3, 99]), jnp.asarray(TABLE))
    np.testing.assert_allclose(np.asarray(got), [30, 0])


def test_a_rule_that_calls_its_own_function():
    @custom_jvp
    def power(i, x):
        return jnp.asarray(TABLE)[i] * jnp.exp(x)

    power.defjvp(lambda p, t: (power(*p), power(*p) * t[1]))
    f = lambda x, p, i: lanes(power)(p, i, x).sum()
    flags, indices, x = batch([True, False, True], [3, 99, 4])
    want = np.float32([30 * np.e, 1, 40 * np.exp(3)])
    np.testing.assert_allclose(np.asarray(grad(f)(x, flags, indices)), want, rtol=1e-6)
    _, twice = value_and_grad(lambda x: grad(f)(x, flags, indices).sum())(x)
    np.testing.assert_allclose(np.asarray(twice), want * [1, 0, 1], rtol=1e-6)


def test_programs_without_checks_stay_as_they_are():
    f = lambda p, x: cond(p, jnp.sin, lambda x: lax.dynamic_slice_in_dim(x, 7, 2), x)
    p, x = jnp.array([True, False]), jnp.ones((2, 2))
    jaxpr = jit(vmap(f)).trace(p, x).jaxpr
    assert not has_checks(jaxpr)
    assert not any(e.prim.name == "if_active" for e in jaxpr.eqns)
