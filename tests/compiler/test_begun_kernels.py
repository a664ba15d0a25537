"""Kernels that go on from the kernel of their first roots are those that are built at once."""

from __future__ import annotations

from typing import Any

import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn.compiler.fusion import fuse
from genesis_fn.compiler.loop_ir.kernel import Infeasible, KernelIR
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.transforms.staging.stage_trace import stage


def means(x: Any) -> Any:
    """Means of near elements, weighted by how near their values are."""
    y = gnp.pad(x, ((2, 2), (2, 2)), mode="edge")
    total = weights = gnp.zeros_like(x)
    for i in range(5):
        for j in range(5):
            near = y[i : i + 64, j : j + 128]
            w = gnp.exp(-((near - x) ** 2))
            total, weights = total + w * near, weights + w
    return total / weights


def norm(x: Any, scale: Any) -> Any:
    """A norm, which adds in float32, of values that are rounded, and its gradients."""

    def loss(x: Any, scale: Any) -> Any:
        y = gnp.tanh(x * 2).astype(dtypes.BF16)
        wide = y.astype(dtypes.F32)
        return gnp.sum(gnp.sin(wide * gnp.mean(wide**2, -1, keepdims=True) ** -0.5 * scale))

    return g.value_and_grad(loss, (0, 1))(x, scale)


def lookups(x: Any, ids: Any) -> Any:
    """Rows that are looked up under a check, and what differs from them in sign."""
    near = x[ids]
    far = near[::-1] - near
    return gnp.square(far) + gnp.square(-far), gnp.cumsum(gnp.ones_like(near), 1) * near, far.T


def complexes(x: Any, y: Any) -> Any:
    z = x + 1j * y
    return gnp.abs(z * z), z.real - z.imag, gnp.conj(z)


PROGRAMS = {
    "means": (means, [((64, 128), "f4")]),
    "norm": (norm, [((512, 256), "f4"), ((256,), "f4")]),
    "lookups": (lookups, [((96, 64), "f4"), ((96,), "i4")]),
    "complexes": (complexes, [((64, 128), "f4"), ((64, 128), "f4")]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_going_on_gives_the_kernel_that_is_built_at_once(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    build, went_on = fuse.build_kernel, []
    go_on = KernelIR.continued

    def continued(self: KernelIR, *args: Any) -> KernelIR | None:
        before = self.shape()
        other = go_on(self, *args)
        went_on.append(other is not None)
        monkeypatch.setattr(checked, "begun", (self, before))
        return other

    def checked(*args: Any) -> KernelIR:
        try:
            found = build(*args)
        except Infeasible:
            with pytest.raises(Infeasible):
                build(*args[:8])
            raise
        at_once = build(*args[:8])
        assert found.shape() == at_once.shape()
        assert [i.eqn for i in found.instrs] == [i.eqn for i in at_once.instrs]
        assert found.checks == at_once.checks and found.loads == at_once.loads
        if checked.begun is not None:
            kernel, before = checked.begun
            assert kernel.shape() == before, "a merge that comes to nothing leaves its kernels"
        return found

    checked.begun = None
    monkeypatch.setattr(KernelIR, "continued", continued)
    monkeypatch.setattr(fuse, "build_kernel", checked)
    f, shapes = PROGRAMS[name]
    jaxpr, _ = stage(
        lambda *xs: g.tree.leaves(f(*xs)), [aval(s, dtypes.dtype(k)) for s, k in shapes]
    )
    fuse.fuse_jaxpr(simplify_jaxpr(jaxpr), H200)
    assert any(went_on)
