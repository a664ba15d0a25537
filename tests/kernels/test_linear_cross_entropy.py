"""Linear cross-entropy against a float64 reference, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from genesis_fn.kernels.plan import Launch
from genesis_fn.kernels.rows.cross_entropy import CrossEntropy
from genesis_fn.kernels.rows.linear_cross_entropy import (
    LinearCrossEntropy,
    plan_linear_cross_entropy,
)
from tests.kernels.run import TARGET, run_plan
from tests.kernels.test_cross_entropy import TORCH, reference

CASES = [
    LinearCrossEntropy(CrossEntropy(40, 72, "fp32"), 16, precision="ieee"),
    LinearCrossEntropy(
        CrossEntropy(300, 75, "bf16", ignore_index=-1, label_smoothing=0.1, z_loss=1e-3, site=2),
        72,
        chunk_rows=128,
    ),
    LinearCrossEntropy(
        CrossEntropy(260, 40, "fp32", soft_cap=5.0), 16, "sum", precision="ieee", chunk_rows=128
    ),
    LinearCrossEntropy(CrossEntropy(200, 90, "bf16"), 80, "sum", chunk_rows=128),
]


@pytest.mark.parametrize("spec", CASES, ids=range(len(CASES)))
def test_loss_and_gradients(spec):
    torch.manual_seed(0)
    loss_spec = spec.loss
    x = torch.randn(loss_spec.rows, spec.features).to(TORCH[loss_spec.dtype])
    weight = torch.randn(loss_spec.classes, spec.features).to(TORCH[loss_spec.dtype])
    labels = torch.randint(0, loss_spec.classes, (loss_spec.rows,), dtype=torch.int32)
    if loss_spec.ignore_index is not None:
        labels[::3] = loss_spec.ignore_index
    exact_x, exact_w = x.double().requires_grad_(), weight.double().requires_grad_()
    losses, valid = reference(loss_spec, exact_x @ exact_w.T, labels)
    expected = losses.sum() / (valid.sum() if spec.reduction == "mean" else 1)
    loss, dx, dw = torch.empty(1), torch.empty_like(x), torch.empty_like(weight)
    error = [torch.zeros(1, dtype=torch.int64)] if loss_spec.site else []
    run_plan(plan_linear_cross_entropy(spec, TARGET), [x, weight, labels], [loss, dx, dw, *error])
    wanted = torch.autograd.grad(expected, (exact_x, exact_w))
    tolerance = 2e-2 if loss_spec.dtype == "bf16" else 1e-5
    want = expected.detach().reshape(-1)
    torch.testing.assert_close(loss.double(), want, rtol=tolerance, atol=tolerance)
    for got, want in zip((dx, dw), wanted, strict=True):
        scale = want.abs().max()
        torch.testing.assert_close(got.double() / scale, want / scale, rtol=0, atol=tolerance)
    assert not error or error[0].item() == 0


def test_no_label_counts():
    spec = LinearCrossEntropy(CrossEntropy(3, 10, "fp32", ignore_index=0), 4, precision="ieee")
    x, weight, labels = torch.randn(3, 4), torch.randn(10, 4), torch.zeros(3, dtype=torch.int32)
    loss, dx, dw = torch.ones(1), torch.ones(3, 4), torch.ones(10, 4)
    run_plan(plan_linear_cross_entropy(spec, TARGET), [x, weight, labels], [loss, dx, dw])
    assert loss.item() == 0 and not dx.any() and not dw.any()


def test_forward_only_holds_one_chunk_of_logits():
    loss_spec = CrossEntropy(512, 64, "fp32")
    spec = LinearCrossEntropy(loss_spec, 16, gradients=False, precision="ieee", chunk_rows=128)
    plan = plan_linear_cross_entropy(spec, TARGET)
    assert max(w.bytes for w in plan.workspaces) == 128 * spec.stride * 4
    assert len([s for s in plan.steps if isinstance(s, Launch)]) == 4 * 2 + 1
    torch.manual_seed(0)
    x, weight = torch.randn(512, 16), torch.randn(64, 16)
    labels = torch.randint(0, 64, (512,), dtype=torch.int32)
    loss = torch.empty(1)
    run_plan(plan, [x, weight, labels], [loss])
    want = torch.nn.functional.cross_entropy(x.double() @ weight.double().T, labels.long())
    assert abs(loss.item() - want.item()) < 1e-5


OPTIONS = {"ignore_index": -1, "label_smoothing": 0.1, "z_loss": 1e-2, "soft_cap": 4.0}
WEIGHTED = [
    LinearCrossEntropy(
        CrossEntropy(300, 75, "fp32", class_weights=True, **OPTIONS),
        16, "sum", precision="ieee", chunk_rows=128, row_weights=True,
    ),
    LinearCrossEntropy(CrossEntropy(9, 75, "fp32"), 16, "sum", precision="ieee", row_weights=True),
    LinearCrossEntropy(
        CrossEntropy(300, 75, "fp32", class_weights=True, **OPTIONS),
        16, "none", precision="ieee", chunk_rows=128, row_weights=True,
    ),
    LinearCrossEntropy(
        CrossEntropy(17, 17000, "fp32", class_weights=True, **OPTIONS),  # in tiles, not by rows
        16, "none", precision="ieee", row_weights=True,
    ),
    LinearCrossEntropy(
        CrossEntropy(3, 17000, "fp64", class_weights=True, label_smoothing=0.3),
        16, "sum", precision="ieee", row_weights=True,
    ),
    LinearCrossEntropy(
        CrossEntropy(300, 75, "fp32", class_weights=True, **OPTIONS),
        16, "none", gradients=False, precision="ieee", chunk_rows=128,
    ),
]  # fmt: skip


@pytest.mark.parametrize("spec", WEIGHTED, ids=range(len(WEIGHTED)))
def test_weights_of_rows_and_classes(spec):
    torch.manual_seed(0)
    loss, kind = spec.loss, TORCH[spec.loss.dtype]
    x = torch.randn(loss.rows, spec.features, dtype=kind)
    weight = torch.randn(loss.classes, spec.features, dtype=kind)
    labels = torch.randint(0, loss.classes, (loss.rows,), dtype=torch.int32)
    if loss.ignore_index is not None:
        labels[::3] = loss.ignore_index
    row = torch.rand(loss.rows, dtype=kind) if spec.row_weights else torch.ones(loss.rows)
    by_class = torch.rand(loss.classes, dtype=kind) if loss.class_weights else None
    exact = [x.double().requires_grad_(), weight.double().requires_grad_()]
    losses, _ = reference(
        loss, exact[0] @ exact[1].T, labels, None if by_class is None else by_class.double()
    )
    total = (losses * row.double()).sum()
    wanted = dict(zip(("dx", "dweight"), torch.autograd.grad(total, exact)))
    wanted |= {"loss": total.detach().reshape(1), "losses": losses.detach()}
    inputs = [x, weight, labels]
    inputs += [row] if spec.row_weights else []
    inputs += [by_class] if loss.class_weights else []
    outs = [torch.full(wanted[name].shape, 7.0, dtype=kind) for name in spec.results]
    run_plan(plan_linear_cross_entropy(spec, TARGET), inputs, outs)
    for name, got in zip(spec.results, outs, strict=True):
        scale = wanted[name].abs().max()
        torch.testing.assert_close(
            got.double() / scale, wanted[name] / scale, rtol=0, atol=2e-6, msg=name
        )
