"""Compiles the kernels of programs of independent small products; prints a JSON record of each.

    python tests/cuda/compile_joined.py 90

Run as a program: the compiler needs a process in which Triton does not interpret.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.pop("TRITON_INTERPRET", None)
os.environ["GENESIS_DEVICE"] = "cpu"


import genesis_fn.numpy as gnp
from genesis_fn.backends.cuda.lower.steps import BufferTable, keeps_fused
from genesis_fn.backends.cuda.pipeline import schedule
from genesis_fn.backends.cuda.run.steps import SubProgram
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import OF_ARCHITECTURE
from genesis_fn.core.aval import aval
from genesis_fn.core.dtypes import F32
from genesis_fn.kernels.plan import Launch
from genesis_fn.transforms.staging.stage_trace import stage
from tests.kernels.compile_only import compile_launch

# (rows, depth, columns of each product): the projections of small models, and what is less.
CASES = [
    (32, 288, (144, 48, 48)),
    (32, 160, (160, 80, 80)),
    (100, 64, (24, 130)),
    (16, 20, (12, 12, 40, 8)),
]


def launches(rows: int, depth: int, columns: tuple[int, ...], architecture: int) -> list[Launch]:
    """The launches of products of one left operand, each followed by what reads it."""
    shapes = [(rows, depth), *((depth, n) for n in columns)]

    def f(x, *ws):
        return [gnp.tanh(gnp.matmul(x, w, precision="highest")) for w in ws]

    jaxpr, _ = stage(f, [aval(shape, F32) for shape in shapes])
    table = BufferTable(OF_ARCHITECTURE[architecture])
    program = simplify_jaxpr(jaxpr, keeps_fused(table.target))
    inputs = [table.new(v.aval.nbytes) for v in program.invars]
    scope = schedule(table, program, inputs, [None] * len(program.outs))
    steps = [s for child in scope.steps if isinstance(child, SubProgram) for s in child.steps]
    return [step for step in steps if isinstance(step, Launch)]


def main(architecture: int) -> None:
    """Compile all of them."""
    records = [
        {**compile_launch(launch, OF_ARCHITECTURE[architecture]), "said": launch.shared}
        for case in CASES
        for launch in launches(*case, architecture)
    ]
    print(json.dumps(records))


if __name__ == "__main__":
    main(int(sys.argv[1]))
