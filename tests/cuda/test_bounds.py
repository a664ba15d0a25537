"""The generated kernels of Qwen3-0.6B's training step at B8 x S2048 stay inside their buffers, and
every temporary has memory of its own. Nothing is computed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import programs
import pytest
from accesses import Accesses, check, check_launch

import genesis_fn as g
from genesis_fn import optim, random
from genesis_fn.backends.cuda.binaries.compile import SourceKernel
from genesis_fn.backends.cuda.run.executable import CudaExecutable
from genesis_fn.compiler.options import without
from genesis_fn.kernels.language.expressions import MODULES, PRELUDE
from genesis_fn.kernels.plan import BufferArg, Launch
from genesis_fn.models import qwen
from genesis_fn.transforms.precision.autocast import amp

# The kernels' loads and stores are followed in the interpreter.
pytestmark = pytest.mark.interpreted


def training_step(layers: int) -> CudaExecutable:
    """The step's plan, with donated parameters and optimizer state."""
    config = dataclasses.replace(
        qwen.PRESETS["qwen3-0.6b"], num_hidden_layers=layers, vocab_size=1024
    )
    optimizer = optim.adamw(3e-4, weight_decay=0.1)

    def loss(params: Any, tokens: Any) -> Any:
        return qwen.loss(params, tokens[:, :-1], tokens[:, 1:], config)

    def step(params: Any, state: Any, tokens: Any) -> Any:
        value, grads = g.value_and_grad(amp(loss, "bfloat16"))(params, tokens)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state, value

    params = g.eval_shape(lambda: qwen.init(random.key(0), config))
    state = g.eval_shape(optimizer.init, params)
    jitted = g.jit(step, donate_argnames=("params", "state"))
    traced = jitted.lower(params, state, np.zeros((8, 2049), np.int32))
    donated = [*[False] * len(traced.program.captured), *traced.donated]
    return programs.compile_jaxpr(traced.jaxpr, programs.PLACE, donated=donated)


def faults(program: CudaExecutable) -> list[str]:
    table = program.table
    bound = {*program.binding.bound, program.schedule.base, *table.pointers}
    if table.error_word is not None:
        bound.add(table.error_word)
    return check(program.schedule.items, table, bound, program.schedule.base)


@pytest.mark.parametrize("passes", [(), ("row_column_reduce", "split_rows", "horizontal")])
def test_a_training_step_stays_inside_its_memory(passes: tuple[str, ...]) -> None:
    with without(*passes):
        program = training_step(1)
    assert not program.unused_donations
    assert faults(program) == []


@pytest.mark.parametrize(("rows", "found"), [(64, 0), (63, 1)])
def test_an_access_past_the_end_is_found(rows: int, found: int) -> None:
    text = (
        f"{PRELUDE}def ends(x, y):\n"
        "    p = tl.program_id(0) * 16 + tl.arange(0, 16)\n"
        "    tl.store(y + p, tl.load(x + p, p < 63), p < 64)\n"
    )
    kernel = SourceKernel("ends", text, MODULES)
    launch = Launch(kernel, (4, 1, 1), {"x": BufferArg(0, "fp32"), "y": BufferArg(1, "fp32")})
    accesses = Accesses([4 * 63, 4 * rows], {})
    check_launch(launch, [0, 1], [0, 0], accesses)
    assert len(accesses.faults) == found
    assert (accesses.read_first, accesses.written) == ({0}, {1})
