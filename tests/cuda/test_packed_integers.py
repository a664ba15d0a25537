"""Packed 16-bit integers of PTX are taken apart before ptxas sees them: it forgets constants."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from genesis_fn.backends.cuda.binaries.triton_compile import apart

ROOT = Path(__file__).parents[2]
# A program whose indices fit 16 bits, so that LLVM packs two of them, and what becomes of it.
SCRIPT = """
import subprocess, sys, tempfile
from pathlib import Path
import numpy as np
import triton
sys.path.insert(0, "tests/cuda")
import programs
import genesis_fn as g
from genesis_fn.backends.cuda.binaries.compile import request
from genesis_fn.backends.cuda.binaries.triton_compile import compile_request, compiled_by_triton
from genesis_fn.compiler.target import H200
from tests.cuda.targets import _launches

def loss(a, b):
    both = lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1])
    return g.numpy.sum(g.numpy.sin(g.lax.associative_scan(both, (a, b), axis=1)[1]))

x = np.ones((2, 33), np.float32)
jaxpr, _ = programs.traced(lambda a, b: g.jvp(loss, (a, b), (b, a)), x, x)
steps = programs.compile_jaxpr(jaxpr, programs.PLACE).schedule.steps
wanted = [request(launch, H200) for launch in _launches(steps)]
print("packed", sum([compiled_by_triton(w).asm["ptx"].count(".s16x2") for w in wanted]))
(tool,) = Path(triton.__file__).parent.glob("backends/nvidia/bin/nvdisasm")
left = 0
for w in wanted:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compile_request(w)[1])
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True)
        left += done.stdout.count("VIADD.16x2")
print("left", left)
"""


def test_halves_are_added_by_themselves() -> None:
    ptx = "\tadd.s16x2 \t%r144, %r112, %r143;\n\tmax.u16x2 %r1, %r2, 65537;\n\tadd.s32 %r3, %r4, 1;"
    got = apart(ptx)
    assert "16x2" not in got and got.endswith("add.s32 %r3, %r4, 1;")
    assert got.count("add.s16 ") == 2 and got.count("max.u16 ") == 2
    assert "mov.b32 {%al, %ah}, %r112;" in got and "mov.b32 {%bl, %bh}, 65537;" in got
    assert "mov.b32 %r144, {%al, %ah};" in got
    assert apart("add.f16x2 %r1, %r2, %r3;") == "add.f16x2 %r1, %r2, %r3;"


def test_no_binary_has_packed_integers() -> None:
    """Compiled here, for an H200."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "GENESIS_CUDA_DRIVER": "interpret"}
    environment["GENESIS_KERNELS"] = "compiled"
    command = [sys.executable, "-c", SCRIPT]
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = dict(line.split() for line in run.stdout.splitlines())
    assert int(found["packed"]) > 0 and int(found["left"]) == 0, found
