"""The linear layer and the cross-entropy of a large vocabulary whose words are divided."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
from genesis_fn import P, lax
from genesis_fn.lax.fused import cross_entropy
from tests.sharding.both import arrays
from tests.sharding.test_partition_models import collectives

ROWS, FEATURES, CLASSES, IGNORED = 24, 12, 64, -1
OPTIONS = {
    "plain": {},
    "ignored, smooth": {"ignore_index": IGNORED, "label_smoothing": 0.1},
    "capped": {"softcap": 3.0, "z_loss": 1e-2},
}
WEIGHTS = [P("model"), P(("model", "z")), P(("z", "model", "data")), P("model", "z")]


def operands(seed: int, dtype: Any = np.float64) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, ROWS).astype(np.int32)
    labels[::5] = IGNORED
    x, weight = rng.normal(size=(ROWS, FEATURES)), rng.normal(size=(CLASSES, FEATURES))
    return x.astype(dtype), weight.astype(dtype), labels


def on_mesh(args: Any, rows: gf.P, weight: gf.P) -> Any:
    mesh = gf.make_mesh((2, 2, 2), ("data", "model", "z"))
    specs = (rows, weight, rows)
    return gf.device_put(arrays(args), tuple([gf.NamedSharding(mesh, spec) for spec in specs]))


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("rows", [P("data"), P()], ids=str)
@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_loss_and_gradients(
    reduction: str,
    options: dict[str, Any],
    weight: gf.P,
    rows: gf.P,
    chunks: int,
    monkeypatch: pytest.MonkeyPatch,
):
    """Those of one device, for any number of rows at a time; labels that count are classes. Bounds
    are a hundred times what rounds in float64."""
    a, b, labels = operands(0)
    labels = labels if "ignore_index" in options else np.abs(labels)
    monkeypatch.setattr(cross_entropy, "_CHUNK_BYTES", 0)
    monkeypatch.setattr(cross_entropy, "_CHUNK_ROWS", ROWS // chunks if rows == P() else 5)
    loss = functools.partial(lax.linear_cross_entropy, reduction=reduction, **options)
    f = gf.value_and_grad(loss, argnums=(0, 1))
    args = on_mesh((a, b, labels), rows, weight)
    value, grads = gf.jit(f)(*args)
    one, ones = f(*arrays((a, b, labels)))
    np.testing.assert_allclose(value, one, rtol=1e-13)
    np.testing.assert_allclose(gf.jit(loss)(*args), one, rtol=1e-13)
    for mine, theirs in zip(grads, ones, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-12)


def test_no_weight_is_sent():
    """Only what a row needs is: its greatest logit, two sums, and the sum of its cotangent."""
    args = on_mesh(operands(1), P("data"), P("model"))
    loss = functools.partial(lax.linear_cross_entropy, ignore_index=IGNORED)
    found = collectives(gf.value_and_grad(loss, argnums=(0, 1)), *args)
    of_model = {name: n for name, n in found.items() if " model " in name}
    assert of_model == {
        "forward pmax model parameters": 1, "forward psum model parameters": 3,
    }  # fmt: skip


def test_no_rows():
    x, weight, labels = operands(6)
    args = on_mesh((x[:0], weight, labels[:0]), P(), P("model"))
    loss = functools.partial(lax.linear_cross_entropy, reduction="sum")
    value, of_weight = gf.jit(gf.value_and_grad(loss, argnums=1))(*args)
    assert value == 0 and not np.asarray(of_weight).any()


def test_fewer_classes_than_rows():
    """Where the weight is the smaller one, it is gathered, and the rows are divided further."""
    x, weight, labels = operands(2)
    args = on_mesh((x, weight[:8], labels % 8), P("data"), P("model"))
    loss = lambda *args: lax.linear_cross_entropy(*args)
    found = collectives(gf.value_and_grad(loss, argnums=(0, 1)), *args)
    assert found["forward all_gather model parameters"] and not any("pmax" in n for n in found)


@pytest.mark.parametrize("label", [-2, CLASSES, CLASSES // 2 + 1])
def test_labels_are_checked_against_all_classes(label: int):
    x, weight, labels = operands(3)
    labels = np.abs(labels)
    labels[7] = label
    args = on_mesh((x, weight, labels), P(), P("model"))
    f = gf.jit(lambda *args: lax.linear_cross_entropy(*args))
    if 0 <= label < CLASSES:
        one = lax.linear_cross_entropy(*arrays((x, weight, labels)))
        np.testing.assert_allclose(f(*args), one, rtol=1e-13)
        return
    with pytest.raises(gf.errors.IndexOutOfRange, match=str(label)):
        f(*args).block_until_ready()


def test_logits_without_bounds():
    """A row whose greatest logit is infinite, or that is all minus infinity, is as on one device:
    NaN there, and a number in the others."""
    x, weight, labels = operands(4, np.float32)
    labels = np.abs(labels)
    x[3], x[5] = 3e38, -3e38
    weight = np.abs(weight) * 10
    rows = functools.partial(lax.linear_cross_entropy, reduction="none")
    assert not np.isfinite(np.asarray(rows(x, weight, labels))[[3, 5]]).all()
    f = gf.value_and_grad(lambda *args: lax.linear_cross_entropy(*args), argnums=(0, 1))
    value, (of_x, _) = gf.jit(f)(*on_mesh((x, weight, labels), P(), P("model")))
    one, (theirs, _) = f(x, weight, labels)
    np.testing.assert_array_equal(np.isnan(value), np.isnan(one))
    np.testing.assert_array_equal(np.isnan(of_x), np.isnan(theirs))


def test_sixteen_bits():
    """Gradients are sums over two devices of terms of 16 bits. Two terms and their sum are rounded,
    each by half of 2**-7 at most, and so is that of one device."""
    args = tuple([gf.numpy.asarray(v) for v in operands(5, np.float32)])
    args = (*[v.astype("bfloat16") for v in args[:2]], args[2])
    loss = functools.partial(lax.linear_cross_entropy, ignore_index=IGNORED)
    f = gf.value_and_grad(loss, argnums=(0, 1))
    value, grads = gf.jit(f)(*on_mesh(args, P("data"), P("model")))
    one, ones = f(*args)
    assert value.dtype == one.dtype == gf.numpy.float32
    np.testing.assert_allclose(value, one, rtol=1e-5)
    for mine, theirs in zip(grads, ones, strict=True):
        assert mine.dtype == theirs.dtype
        mine, theirs = (np.asarray(v.astype("float32")) for v in (mine, theirs))
        np.testing.assert_allclose(mine, theirs, atol=2**-6 * np.abs(theirs).max())
