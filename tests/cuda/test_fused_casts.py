"""Casts that become part of a fused function: no float32 copy, and the same numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax, optim
from genesis_fn.backends.cuda.lower.fused_casts import absorb_casts
from genesis_fn.backends.cuda.lower.steps import keeps_fused
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.device import device, using_device
from genesis_fn.core.jaxpr import check
from genesis_fn.transforms.staging.stage_trace import stage

ROWS, CLASSES = 40, 300


@pytest.fixture(autouse=True)
def on_the_gpu():
    with using_device(device("cuda")):
        yield


def losses(x, y):
    return optim.softmax_cross_entropy_with_integer_labels(x.astype("float32"), y)


def mean(x, y):
    return losses(x, y).mean()


def both(x, y):
    """Logits that something else reads in float32, too, and a gradient wanted in float32."""
    wide = x.astype("float32")
    loss, gradient = g.value_and_grad(
        lambda w: optim.softmax_cross_entropy_with_integer_labels(w, y).mean()
    )(wide)
    return loss + gnp.sum(wide), gradient


FUNCTIONS = {
    "loss": losses, "mean": mean, "gradient": lambda x, y: g.grad(mean)(x, y),
    "narrow loss": lambda x, y: losses(x, y).astype(x.dtype),
    "loss and gradient": lambda x, y: g.value_and_grad(mean)(x, y),
}  # fmt: skip


def program(f, dtype):
    kinds = [aval((ROWS, CLASSES), dtype), aval((ROWS,), dtypes.I32)]
    listed = lambda *xs: g.tree.leaves(f(*xs))
    found = absorb_casts(simplify_jaxpr(stage(listed, kinds)[0], keeps_fused(H200)), H200)
    check(found)
    return found


@pytest.mark.parametrize("dtype", [dtypes.BF16, dtypes.F16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_logits_are_read_as_they_are(name, dtype):
    found = program(FUNCTIONS[name], dtype)
    shapes = [(o.aval.shape, o.aval.dtype) for e in found.eqns for o in e.outs]
    assert ((ROWS, CLASSES), dtypes.F32) not in shapes


def test_what_is_wanted_in_float32_stays_in_float32():
    """A kernel of the gradient in float32 reads logits in float32; float64 has sums of its own."""
    casts = [e for e in program(both, dtypes.BF16).eqns if e.prim.name == "convert_element_type"]
    assert [e.outs[0].aval.dtype for e in casts if e.outs[0].aval.ndim == 2] == [dtypes.F32]

    def f64(x, y):
        return optim.softmax_cross_entropy_with_integer_labels(x.astype("float64"), y)

    found = program(f64, dtypes.F32)
    (cast,) = [e for e in found.eqns if e.outs[0].aval.shape == (ROWS, CLASSES)]
    assert cast.outs[0].aval.dtype == dtypes.F64


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("name", [*FUNCTIONS, "both"])
def test_values_are_those_of_float32(name, dtype):
    rng = np.random.default_rng([ROWS, len(name)])
    x = (3 * rng.standard_normal((ROWS, CLASSES))).astype(dtype)
    y = rng.integers(0, CLASSES, ROWS).astype(np.int32)
    found = g.tree.leaves(g.jit({**FUNCTIONS, "both": both}[name])(g.device_put(x), y))
    w = x.astype(np.float64)
    top = np.log(np.exp(w).sum(1))
    loss = top - w[np.arange(ROWS), y]
    gradient = np.exp(w - top[:, None])
    gradient[np.arange(ROWS), y] -= 1
    expected = {
        "loss": [loss],
        "narrow loss": [loss],
        "mean": [loss.mean()],
        "gradient": [gradient / ROWS],
        "loss and gradient": [loss.mean(), gradient / ROWS],
        "both": [loss.mean() + w.sum(), gradient / ROWS],
    }[name]
    for a, b in zip(found, expected, strict=True):
        narrow = a.dtype != np.float32
        unit = float(ml_dtypes.finfo(dtype).eps) if narrow else 1e-5
        np.testing.assert_allclose(np.asarray(a).astype(np.float64), b, rtol=unit, atol=1e-6)


def test_a_label_that_is_no_class_is_an_error():
    y = gnp.array([1, CLASSES], dtype="int32")
    with pytest.raises(g.errors.IndexOutOfRange, match="label 300 is out of range for 300 classes"):
        g.jit(mean)(gnp.ones((2, CLASSES), "bfloat16"), y).block_until_ready()


def test_bodies_of_loops_have_no_wide_copy_either():
    """Losses and gradients of one part of a batch after the other, as they are accumulated."""

    def accumulated(x, y):
        def part(total, row):
            loss, gradient = g.value_and_grad(mean)(*row)
            return total + loss, gradient

        return lax.scan(part, 0.0, (x, y))

    x, y = gnp.ones((3, ROWS, CLASSES), "bfloat16"), gnp.zeros((3, ROWS), "int32")
    f = g.jit(accumulated)
    text = f.lower(x, y).compile().as_text()
    steps = text[text.index("\nstep") :]
    assert "cross_entropy_backward" in steps and "convert_element_type" not in steps
    total, gradients = f(x, y)
    # Float32 sums of CLASSES terms and of ROWS losses.
    np.testing.assert_allclose(np.asarray(total), 3 * np.log(CLASSES), rtol=1e-5)
    expected = np.full((ROWS, CLASSES), 1 / CLASSES)
    expected[:, 0] -= 1
    for gradient in np.asarray(gradients).astype(np.float64):
        # One rounding to bfloat16.
        np.testing.assert_allclose(gradient, expected / ROWS, rtol=2**-8)
