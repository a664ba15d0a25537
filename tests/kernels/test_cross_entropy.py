"""Cross-entropy kernels against float64 formulas, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from genesis_fn.backends.cuda.run.error_word import decode
from genesis_fn.kernels.rows.cross_entropy import (
    CrossEntropy,
    plan_cross_entropy_backward,
    plan_cross_entropy_forward,
)
from tests.kernels.run import TARGET, run_plan

TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
TOLERANCE = {"fp32": 3e-6, "bf16": 1e-2, "fp64": 1e-13}


def reference(spec: CrossEntropy, logits, labels, class_weights=None):
    """(each row's loss, which rows count)."""
    x = spec.soft_cap * torch.tanh(logits / spec.soft_cap) if spec.soft_cap else logits
    lse = torch.logsumexp(x, -1)
    valid = torch.ones_like(labels, dtype=torch.bool)
    if spec.ignore_index is not None:
        valid = labels != spec.ignore_index
    target = x.gather(1, labels.clamp(0, spec.classes - 1)[:, None].long())[:, 0]
    s = spec.label_smoothing
    w = torch.ones(spec.classes) if class_weights is None else class_weights
    own = w[labels.clamp(0, spec.classes - 1).long()]
    loss = own * ((1 - s) * (lse - target) + spec.z_loss * lse**2)
    loss = loss + s * (w * (lse[:, None] - x)).mean(-1)
    return torch.where(valid, loss, 0), valid


CASES = [
    CrossEntropy(6, 50, "fp32"),
    CrossEntropy(70, 33, "bf16", "i64", ignore_index=-100),
    CrossEntropy(9, 64, "fp32", ignore_index=3, label_smoothing=0.1, z_loss=1e-2, soft_cap=4.0),
    CrossEntropy(5, 20, "fp64", label_smoothing=0.2),
    CrossEntropy(5, 20, "fp32", z_loss=1e-3),
    CrossEntropy(3, 17000, "fp32", ignore_index=-1, label_smoothing=0.1, z_loss=1e-2, soft_cap=9.0),
    CrossEntropy(2, 33000, "bf16"),
]


@pytest.mark.parametrize("spec", CASES, ids=str)
def test_forward_and_backward(spec):
    torch.manual_seed(0)
    logits = (3 * torch.randn(spec.rows, spec.classes)).to(TORCH[spec.dtype])
    kind = torch.int64 if spec.label_dtype == "i64" else torch.int32
    labels = torch.randint(0, spec.classes, (spec.rows,), dtype=kind)
    if spec.ignore_index is not None:
        labels[::2] = spec.ignore_index
        logits[0, 1] = float("inf")
    exact = logits.double().requires_grad_()
    safe = torch.where(torch.isfinite(exact), exact, 0.0)
    expected, _ = reference(spec, safe, labels)
    statistic = torch.float64 if spec.dtype == "fp64" else torch.float32
    loss = torch.empty(expected.numel(), dtype=statistic)
    lse = torch.empty(spec.rows, dtype=statistic)
    run_plan(plan_cross_entropy_forward(spec, TARGET), [logits, labels], [loss, lse])
    tolerance = 1e-12 if spec.dtype == "fp64" else 3e-6
    torch.testing.assert_close(
        loss.double(), expected.detach().reshape(-1), rtol=tolerance, atol=tolerance
    )

    cotangent = torch.randn(loss.shape).to(statistic)
    dlogits = torch.full_like(logits, 7.0)
    run_plan(plan_cross_entropy_backward(spec, TARGET), [logits, labels, lse, cotangent], [dlogits])
    (want,) = torch.autograd.grad(expected, exact, cotangent.double().reshape(expected.shape))
    tolerance = TOLERANCE[spec.dtype]
    torch.testing.assert_close(dlogits.double(), want, rtol=tolerance, atol=1e-3 * tolerance + 1e-9)


@pytest.mark.parametrize("classes", [40, 17000])
def test_labels_out_of_range_are_reported(classes):
    spec = CrossEntropy(4, classes, "fp32", ignore_index=-1, site=7)
    logits, loss, lse = torch.zeros(4, classes), torch.empty(4), torch.empty(4)
    for bad in (classes, -5):
        error = torch.zeros(1, dtype=torch.int64)
        labels = torch.tensor([0, -1, bad, 3], dtype=torch.int32)
        run_plan(plan_cross_entropy_forward(spec, TARGET), [logits, labels], [loss, lse, error])
        assert decode(error.item()) == (7, bad)
        assert torch.isfinite(loss).all()
    error.zero_()
    labels = torch.tensor([0, -1, 2, 3], dtype=torch.int32)
    run_plan(plan_cross_entropy_forward(spec, TARGET), [logits, labels], [loss, lse, error])
    assert error.item() == 0


def test_no_label_counts():
    spec = CrossEntropy(3, 10, "fp32", ignore_index=0)
    logits, labels = torch.randn(3, 10), torch.zeros(3, dtype=torch.int32)
    loss, lse, dlogits = torch.empty(3), torch.empty(3), torch.empty(3, 10)
    run_plan(plan_cross_entropy_forward(spec, TARGET), [logits, labels], [loss, lse])
    saved = [logits, labels, lse, torch.ones(3)]
    run_plan(plan_cross_entropy_backward(spec, TARGET), saved, [dlogits])
    assert torch.equal(loss, torch.zeros(3))
    assert torch.equal(dlogits, torch.zeros(3, 10))
