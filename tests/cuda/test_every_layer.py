"""Every exported layer on the CUDA path: values and gradients of the CPU, nothing by the host."""

from __future__ import annotations

from typing import Any

import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn.backends.cuda.run.steps import has_host
from genesis_fn.core import tree
from tests.nn.table import ROWS, Row
from tests.nn.test_every_layer import outputs

EVERY = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())


@EVERY
@pytest.mark.parametrize("train", [False, True])
def test_values_and_gradients(row: Row, train: bool) -> None:
    params, x = row.params(), row.input()
    floating = gnp.issubdtype(x.dtype, gnp.floating)

    def f(params: Any, x: Any) -> Any:
        def loss(params: Any, x: Any) -> Any:
            y = outputs(row, params, x, train)
            return sum(gnp.sum(gnp.sin(v)) for v in tree.leaves(y)), y

        return g.value_and_grad(loss, (0, 1) if floating else 0, has_aux=True)(params, x)

    with g.default_matmul_precision("float32"):
        executable = programs.compare(f, params, x, tolerance=1e-4)
    assert not any(map(has_host, executable.schedule.steps)), "a part of the layer leaves the GPU"
