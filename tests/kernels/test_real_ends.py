"""The ends of half spectra of real signals, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from genesis_fn.kernels.real_ends import RealEnds, plan_real_ends
from tests.kernels.run import TARGET, run_plan


@pytest.mark.parametrize(
    "lengths", [(1,), (2,), (9,), (4, 6), (1, 5), (2, 1100), (3, 4, 6), (5, 2, 1)]
)
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_they_become_those_of_real_signals(kind, lengths):
    """The transform of complex numbers of the whole spectrum, conjugates filled in, is what NumPy's
    of the half one is, which ignores imaginary parts."""
    rng = np.random.default_rng(list(lengths))
    count, half = 3, (*lengths[:-1], lengths[-1] // 2 + 1)
    x = rng.standard_normal((count, *half, 2)).astype(kind)
    y = 0.3 * torch.from_numpy(x)
    spec = RealEnds(count, lengths, "fp32" if kind == "float32" else "fp64", 0.3)
    run_plan(plan_real_ends(spec, TARGET), [torch.from_numpy(x)], [y])
    found, axes = y.numpy()[..., 0] + 1j * y.numpy()[..., 1], tuple(range(1, len(lengths) + 1))
    ends = found[..., :: max(lengths[-1] // 2, 1)] if lengths[-1] % 2 == 0 else found[..., :1]
    opposite = np.roll(np.flip(ends, axes[:-1]), 1, axes[:-1])
    np.testing.assert_array_equal(ends, np.conj(opposite))
    given = x[..., 0] + 1j * x[..., 1]
    rounding = np.finfo(kind).eps
    np.testing.assert_allclose(found[..., 1:-1], 0.3 * given[..., 1:-1], rtol=2 * rounding)
    want = np.fft.irfftn(0.3 * given.astype("complex128"), lengths, axes=axes)
    signal = np.fft.irfftn(found.astype("complex128"), lengths, axes=axes)
    np.testing.assert_allclose(signal, want, atol=4 * rounding, rtol=0)


def test_others_are_refused():
    with pytest.raises(ValueError, match="one to 3 dimensions"):
        RealEnds(1, (2, 2, 2, 2), "fp32")
