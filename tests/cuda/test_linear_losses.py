"""Linear cross-entropy with every option on the GPU's kernels, against the CPU's program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import nn
from genesis_fn.backends.cuda.lowerings import fused
from genesis_fn.core import errors
from genesis_fn.core.configuration import config
from genesis_fn.core.device import cpu, cuda, using_device

RNG = np.random.default_rng(0)
ROWS, FEATURES, CLASSES = 20, 16, 70
OPERANDS = {
    "bias": RNG.normal(size=CLASSES).astype(np.float32),
    "class_weight": RNG.random(CLASSES).astype(np.float32),
    "row_weight": RNG.random(ROWS).astype(np.float32),
    "where": RNG.random(ROWS) < 0.8,
}
X = RNG.normal(size=(ROWS, FEATURES)).astype(np.float32)
W = RNG.normal(size=(CLASSES, FEATURES)).astype(np.float32)
Y = np.where(RNG.random(ROWS) < 0.2, -100, RNG.integers(0, CLASSES, ROWS)).astype(np.int32)
STATIC = {"label_smoothing": 0.1, "softcap": 3.0, "z_loss": 1e-2}
CASES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("bias",), {}),
    (("where",), {"label_smoothing": 0.1}),
    (("class_weight",), {"z_loss": 1e-2}),
    (("row_weight", "where"), {"softcap": 3.0}),
    (("class_weight",), {"label_smoothing": 0.1}),
    (("bias", "class_weight", "row_weight", "where"), STATIC),
    ((), STATIC),
]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_options(case: tuple, reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each runs the kernels: no logits are made but in their chunks."""
    names, options = case
    planned = []
    plan = fused.plan_linear_cross_entropy
    monkeypatch.setattr(
        fused, "plan_linear_cross_entropy", lambda *xs: planned.append(xs[0]) or plan(*xs)
    )
    found = {}
    for device in (cpu(), cuda()):
        with using_device(device), config.override(matmul_precision="highest"):
            x, w, y = map(gnp.asarray, (X, W, Y))
            given = {n: gnp.asarray(OPERANDS[n]) for n in names}
            # Class weights with smoothing have a derivative by the reference alone.
            slopes = [n for n in ("bias", "row_weight") if n in names]

            def loss(x: Any, w: Any, *rest: Any, given=given, y=y, slopes=slopes) -> Any:
                value = nn.linear_cross_entropy(
                    x, w, y, **{**given, **dict(zip(slopes, rest))}, **options,
                    ignore_index=-100, reduction=reduction,
                )  # fmt: skip
                return gnp.sum(value * gnp.cos(gnp.arange(value.size, dtype="float32")))

            places = tuple(range(2 + len(slopes)))
            operands = (x, w, *[given[n] for n in slopes])
            value, gradients = g.jit(g.value_and_grad(loss, places))(*operands)
            found[device] = [np.asarray(v) for v in (value, *gradients)]
    passes = {(spec.reduction, spec.gradients) for spec in planned}
    kept = (
        "mean" if reduction == "mean" and not {"class_weight", "row_weight"} & {*names} else "sum"
    )
    assert passes == ({("none", False), ("none", True)} if reduction == "none" else {(kept, True)})
    for got, want in zip(found[cuda()], found[cpu()], strict=True):
        assert got.shape == want.shape
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * scale)


def test_wrong_labels_are_reported() -> None:
    with using_device(cuda()):
        x, w = gnp.asarray(X[:2]), gnp.asarray(W)
        for options in ({"reduction": "none"}, {"row_weight": gnp.ones(2)}):
            f = g.jit(lambda x, y, o=options: nn.linear_cross_entropy(x, w, y, **o))
            with pytest.raises(errors.IndexOutOfRange, match="70 is out of range for 70 classes"):
                np.asarray(f(x, gnp.array([0, CLASSES])))
