"""Which reductions are split among programs: long rows that are few, and no others."""

from __future__ import annotations

import numpy as np
import programs
import pytest

import genesis_fn.numpy as gnp
from genesis_fn.kernels.plan import Launch


@pytest.mark.parametrize(
    ("shape", "axis", "launches"),
    [
        ((32, 1024), 1, 1),  # the norms of 32 decoded tokens
        ((8, 8192), 1, 1),
        ((4, 65536), 1, 2),
        ((65536,), 0, 2),
        ((4096, 16), 0, 2),
    ],
)
def test_a_split_has_several_parts(shape, axis, launches):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)

    def f(x):
        mean = gnp.mean(x, axis, keepdims=True)
        return mean, gnp.max(x, axis)

    steps = programs.compare(f, x, tolerance=1e-5).schedule.steps
    found = [s for step in steps for s in step.steps if isinstance(s, Launch)]
    assert len(found) == launches
