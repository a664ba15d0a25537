"""Runs the compiled code of float32 functions on the model of `tests/support/ptx.py`, which has the
hardware's approximations as correctly rounded functions; prints the largest error of each as JSON.

    PYTHONPATH=. python tests/cuda/compile_numerics.py 1024 > benchmarks/results/numerics-model.json

at so many numbers of each sign and exponent, or pairs of them. Run as a program: the compiler needs
a process in which Triton does not interpret.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
os.environ["GENESIS_DEVICE"] = "cpu"

import numpy as np
import torch

from benchmarks.numerics import FUNCTIONS, errors
from genesis_fn.backends.cuda.binaries.compile import request
from genesis_fn.backends.cuda.binaries.triton_compile import compiled_by_triton
from genesis_fn.backends.cuda.codegen import generate
from genesis_fn.compiler.fusion.fuse import fuse_jaxpr
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.kernels.plan import Launch
from genesis_fn.transforms.staging.stage_trace import stage
from tests.support import ptx


def main(each: int) -> None:
    mantissas = np.random.default_rng(0).integers(0, 1 << 23, (512, each), dtype=np.uint32)
    mantissas[:, :3] = [0, 1, 0x7FFFFF]
    x = ((np.arange(512, dtype=np.uint32)[:, None] << 23) | mantissas).ravel().view(np.float32)
    y = np.random.default_rng(1).permutation(x)
    found: dict[str, Any] = {}
    # A few in each kernel: all in one take longer to compile than together. A kernel with `pow` is
    # compiled otherwise, so that one is alone.
    others = [n for n in FUNCTIONS if n != "pow"]
    for some in [["pow"], *[others[i : i + 8] for i in range(0, len(others), 8)]]:
        jaxpr, _ = stage(
            lambda x, y, some=some: [
                FUNCTIONS[n].ours(*(x, y)[: FUNCTIONS[n].operands]) for n in some
            ],
            [aval(x.shape, dtypes.F32)] * 2,
        )
        program = simplify_jaxpr(jaxpr)
        given = dict(zip(program.invars, (x, y), strict=True))
        for group in fuse_jaxpr(program, H200).groups:
            assert group.kernel is not None
            made = generate(group.kernel, H200)
            (launch,) = made.plan.steps
            assert type(launch) is Launch
            code = compiled_by_triton(request(launch, H200))
            outs = [np.zeros_like(x) for _ in made.writes]
            arrays = [*[given[v].copy() for v in made.reads], *outs]
            bases = [(i + 1) << 40 for i in range(len(arrays))]
            memory = ptx.Memory(arrays, bases)
            order = [a.index for a in launch.arguments.values()]
            ptx.run(code.asm["ptx"], memory, [bases[i] for i in order], (*launch.grid, 1, 1)[:3])
            written = dict(zip(made.writes, outs, strict=True))
            for name, o in zip(some, program.outs, strict=True):
                if o in written:
                    f = FUNCTIONS[name]
                    operands = [torch.from_numpy(v) for v in (x, y)[: f.operands]]
                    found[name] = int(errors(f, torch.from_numpy(written[o]), operands).max())
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
