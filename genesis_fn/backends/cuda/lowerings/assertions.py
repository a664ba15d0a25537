"""Assertions inside programs: the error word gets the position of the first failed element."""

from __future__ import annotations

import numpy as np

from genesis_fn.backends.cuda.codegen.kernel_text import add_elements
from genesis_fn.backends.cuda.codegen.loops import SITES
from genesis_fn.backends.cuda.lowerings.call import Call, Lowered, lowers
from genesis_fn.core import errors
from genesis_fn.kernels.plan import BufferArg
from genesis_fn.kernels.plan_builder import PlanBuilder
from genesis_fn.transforms.debugging.assertions import assert_p, failure


@lowers(assert_p)
def _assert(call: Call) -> Lowered:
    # A message that shows values needs them on the host.
    if len(call.avals) != 1 or len(call.operands) != 1:
        return call.host()
    size = call.operands[0].size
    builder = PlanBuilder(1, 1)
    lines = [
        "holds = tl.load(x + i, inside)",
        # The word keeps the greatest index: count from the end to keep the first failure.
        f"flag_error(error, inside & (holds == 0), {size - 1} - i, {call.site * SITES})",
    ]
    buffers = {"x": call.read(0), "error": BufferArg(1, "i64")}
    add_elements(builder, "assertion", buffers, size, lines)
    return builder.build()


def assertion_error(call: Call, index: int) -> errors.AssertionFailed:
    """The error of an assertion whose element at `index`, counted from the end, is the first that
    failed; without the line, which the caller adds."""
    pred = call.operands[0]
    values = np.ones(pred.shape, bool)
    values.reshape(-1)[pred.size - 1 - index] = False
    found = failure([values], **call.params)
    assert found is not None
    return errors.AssertionFailed(str(found).rsplit("\n  at ", 1)[0])
