"""Indices out of range: checked without a mode, and as in JAX wherever JAX says what they mean."""

from __future__ import annotations

import jax
import jax.numpy as jjnp
import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, nn
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr

SCATTERS = ("scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max")
UPDATES = ("set", "add", "multiply", "divide", "power", "min", "max")


def as_in_jax(lib, np_, lax_):
    """Entry -> a function without arguments; the same entries for both libraries."""
    x, xi = np_.arange(12.0).reshape(4, 3), np_.arange(4)
    rows = lax_.GatherDimensionNumbers(
        offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    cells = lax_.GatherDimensionNumbers(
        offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    into = lax_.ScatterDimensionNumbers(
        update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    i, u, out = np_.array([[1], [7], [-9]]), np_.ones((3, 3)), np_.array([1, 7, -9])
    columns = np_.array([[1], [7], [2], [-9]])
    found = {
        "dynamic_slice": lambda: lax_.dynamic_slice(x, (9, -5), (2, 2)),
        "dynamic_slice, negative": lambda: lax_.dynamic_slice(x, (-1, -1), (2, 2)),
        "dynamic_slice_in_dim": lambda: lax_.dynamic_slice_in_dim(x, 9, 2),
        "dynamic_index_in_dim": lambda: lax_.dynamic_index_in_dim(x, 9),
        "dynamic_update_slice": lambda: lax_.dynamic_update_slice(x, np_.ones((2, 2)), (9, -1)),
        "index_take": lambda: lax_.index_take(x, (np_.array([1, 9]),), (0,)),
        "one_hot": lambda: lib.nn.one_hot(np_.array([1, 9, -1]), 4),
        "switch": lambda: lax_.switch(np_.array(9), [lambda: 1.0, lambda: 2.0]),
        "segment_sum": lambda: lib.ops.segment_sum(np_.ones(3), np_.array([0, 5, -1]), 3),
        "segment_max": lambda: lib.ops.segment_max(np_.ones(3), np_.array([0, 5, 1]), 3),
    }
    for m in (None, "clip", "fill"):
        found[f"gather, {m}"] = lambda m=m: lax_.gather(x, i, rows, (1, 3), mode=m)
        found[f"gather of ints, {m}"] = lambda m=m: lax_.gather(xi, i, cells, (1,), mode=m)
    for m in (None, "clip", "fill", "drop"):
        for n in SCATTERS:
            found[f"{n}, {m}"] = lambda m=m, n=n: getattr(lax_, n)(x, i, u, into, mode=m)
    for m in ("clip", "fill", "wrap"):
        found[f"take, {m}"] = lambda m=m: np_.take(x, out, axis=0, mode=m)
    for m in ("clip", "fill"):
        found[f"at.get, {m}"] = lambda m=m: x.at[out].get(mode=m)
        found[f"take_along_axis, {m}"] = lambda m=m: np_.take_along_axis(x, columns, 1, mode=m)
    for m in ("clip", "fill", "drop"):
        for n in UPDATES:
            found[f"at.{n}, {m}"] = lambda m=m, n=n: getattr(x.at[out], n)(2.0, mode=m)
    return found


OURS, THEIRS = as_in_jax(gf, jnp, lax), as_in_jax(jax, jjnp, jax.lax)


@pytest.mark.parametrize("entry", THEIRS)
def test_as_in_jax_eager_and_jitted(entry):
    want = np.asarray(THEIRS[entry]())
    # 5.0 ** 2.0 of CUDA's library is 24.999998.
    rtol = 3e-7 if entry.startswith("at.power") else 0.0
    for got in (OURS[entry](), gf.jit(OURS[entry])()):
        np.testing.assert_allclose(np.asarray(got), want, rtol=rtol)


X = np.arange(12.0, dtype=np.float32).reshape(4, 3)
CHECKED = {
    "x[i]": lambda x, i: x[i],
    "x[:, i]": lambda x, i: x.T[:, i],
    "x[i, j]": lambda x, i: x[i, i * 0],
    "x[[i]]": lambda x, i: x[jnp.stack([i, i])],
    "x[i, 1:]": lambda x, i: x[i, 1:],
    "take": lambda x, i: jnp.take(x, i, axis=0),
    "x.take": lambda x, i: x.take(jnp.stack([i]), axis=0),
    "take_along_axis": lambda x, i: jnp.take_along_axis(x, jnp.full((1, 3), i), 0),
    "put_along_axis": lambda x, i: jnp.put_along_axis(
        x, jnp.full((1, 3), i), 1.0, 0, inplace=False
    ),
    "at.get": lambda x, i: x.at[i].get(),
    **{f"at.{n}": lambda x, i, n=n: getattr(x.at[i], n)(2.0) for n in UPDATES},
    "at.apply": lambda x, i: x.at[i].apply(jnp.sin),
}  # fmt: skip


@pytest.mark.parametrize("entry", CHECKED)
def test_without_a_mode_they_raise_eager_and_jitted(entry):
    f, x = CHECKED[entry], jnp.asarray(X)
    jitted = gf.jit(f)
    for i in (-4, 3):
        np.testing.assert_array_equal(
            np.asarray(f(x, jnp.array(i))), np.asarray(jitted(x, jnp.array(i)))
        )
    for bad in (4, -5, 2**31 - 1):
        for run in (f, jitted):
            with pytest.raises(IndexError, match=f"index {bad} out of range for axis"):
                gf.block_until_ready(run(x, jnp.array(bad)))


def test_embeddings_have_no_rows_below_zero():
    table, layer = {"weight": jnp.asarray(X)}, nn.Embedding(4, 3)
    for run in (layer, gf.jit(layer)):
        assert run(table, jnp.array([3])).tolist() == [X[3].tolist()]
        for bad in (4, -1):
            with pytest.raises(IndexError, match=f"index {bad} out of range for axis 0") as error:
                gf.block_until_ready(run(table, jnp.array([bad])))
            # The user's line, and the layer's behind it.
            assert "test_out_of_range.py" in str(error.value), error.value
            assert "(in nn/layers/dense.py:" in str(error.value)


def test_a_program_names_the_input_that_an_index_does_not_fit():
    rows = gf.jit(lambda params, i: params["wte"][i] * 2)
    with pytest.raises(IndexError, match=r"for axis 0 of params\['wte'\], f32\[4,3\]"):
        gf.block_until_ready(rows({"wte": jnp.asarray(X)}, jnp.array(7)))


@pytest.mark.parametrize("entry", ["x[i]", "take", "at.add"])
def test_checks_hold_under_vmap_grad_and_scan(entry):
    f, x = CHECKED[entry], jnp.asarray(X)
    bad, good = jnp.array([0, 1, 9]), jnp.array([0, 1, 2])
    total = lambda x, i: jnp.sum(f(x, i))
    runs = {
        "vmap": lambda i: gf.vmap(lambda j: f(x, j))(i),
        "grad": lambda i: gf.grad(lambda v: total(v, i[2]))(x),
        "scan": lambda i: lax.scan(lambda c, j: (c + total(x, j), None), 0.0, i)[0],
        "jit of vmap": lambda i: gf.jit(gf.vmap(lambda j: f(x, j)))(i),
    }
    for run in runs.values():
        gf.block_until_ready(run(good))
        with pytest.raises(IndexError, match="index 9 out of range"):
            gf.block_until_ready(run(bad))


LINEAR = {
    n: CHECKED[n] for n in ("x[i]", "x[:, i]", "x[i, j]", "take", "take_along_axis", "at.set")
}
LINEAR["embedding"] = lambda x, i: nn.Embedding(4, 3)({"weight": x}, jnp.stack([i]))


@pytest.mark.parametrize("entry", LINEAR)
def test_a_gradient_that_does_not_need_the_values_checks_their_places(entry):
    """The lookup itself is dead code here; what visits its places backwards checks them."""
    f, x = LINEAR[entry], jnp.asarray(X)
    total = lambda x, i: jnp.sum(f(x, i))
    slope = gf.grad(total)
    runs = {
        "grad": lambda x, i: slope(x, i[1]),
        "vmap of grad": gf.vmap(slope, (None, 0)),
        "grad of vmap": gf.grad(lambda x, i: jnp.sum(gf.vmap(total, (None, 0))(x, i))),
        "checkpoint": lambda x, i: gf.grad(gf.checkpoint(total))(x, i[1]),
        "scan": gf.grad(lambda x, i: lax.scan(lambda c, j: (c + total(x, j), None), 0.0, i)[0]),
        "cond": gf.grad(lambda x, i: lax.cond(i[0] == 0, total, lambda x, i: 0.0, x, i[1])),
        "amp": lambda x, i: gf.grad(gf.amp(total, "bfloat16"))(x, i[1]),
        "jvp": lambda x, i: gf.jvp(lambda v: total(v, i[1]), (x,), (x,))[1],
        "linear_transpose": lambda x, i: gf.linear_transpose(lambda v: f(v, i[1]), x)(
            f(x, jnp.array(0))
        ),
    }
    if entry == "at.set":  # not linear but affine
        del runs["linear_transpose"]
    for name, run in runs.items():
        jitted, good, bad = gf.jit(run), jnp.array([0, 1]), jnp.array([0, 9])
        np.testing.assert_allclose(
            np.asarray(jitted(x, good), np.float64), np.asarray(run(x, good), np.float64)
        )
        with pytest.raises(IndexError, match="index 9 out of range for axis") as error:
            gf.block_until_ready(jitted(x, bad))
        assert "test_out_of_range.py:" in str(error.value), name
    off = gf.jit(gf.grad(lambda x, i: lax.cond(i == 0, total, lambda x, i: 0.0, x, i)))
    assert not np.asarray(off(x, jnp.array(9))).any()


def test_what_the_forward_pass_has_checked_is_not_checked_again():
    def checks(f):
        program = simplify_jaxpr(gf.make_jaxpr(gf.grad(f))(jnp.asarray(X), jnp.array([0, 1])).jaxpr)
        return [(e.backward, e.params["mode"]) for e in program.eqns if "mode" in e.params]

    for f in (lambda x, i: x[i], lambda x, i: jnp.take_along_axis(x, i[:, None], 0)):
        assert checks(lambda x, i, f=f: jnp.sum(f(x, i))) == [(True, "check")]
        assert checks(lambda x, i, f=f: jnp.sum(jnp.sin(f(x, i)))) == [
            (False, "check"),
            (True, "fill"),
        ]
