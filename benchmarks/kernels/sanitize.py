"""Runs the kernels of small programs one by one, each buffer an allocation of its own.

    python benchmarks/kernels/sanitize.py [FAMILY ...]        # all families
    compute-sanitizer --tool memcheck python benchmarks/kernels/sanitize.py norm
    python benchmarks/kernels/sanitize.py --report LOGS OUT   # verdicts, from sanitize.sh's logs

A family is a few calls of public functions. Every equation of their programs runs as the plan that
the backend would give it; elementwise ones, whose kernels are generated, have a family of their
own. The shapes have odd sizes, tails and more than one block, so that masks and barriers
matter. Results are held to the CPU's. Prints one line for each family, with its kernels.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
if __name__ == "__main__":
    os.environ["GENESIS_CUDA_DRIVER"] = os.environ.get("GENESIS_CUDA_DRIVER", "cuda")
    os.environ["TRITON_INTERPRET"] = "01"[os.environ["GENESIS_CUDA_DRIVER"] == "interpret"]
    os.environ["GENESIS_DEVICE"] = "cpu"

import numpy as np
import torch
from ml_dtypes import bfloat16

import genesis_fn as gf
import genesis_fn.numpy as jnp
from benchmarks.results_file import surroundings
from genesis_fn import lax, nn, ops
from genesis_fn.backends.cuda.lowerings import plan_for
from genesis_fn.backends.cuda.run.runtime import device_runtime
from genesis_fn.compiler.fusion.matmul_grouping import group_matmuls
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import Target
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import bind
from genesis_fn.kernels.matmul.ragged import MAX_GROUPS
from genesis_fn.kernels.plan import Launch, Plan
from genesis_fn.lax.fused.norms import layer_norm, rms_norm
from genesis_fn.optim import losses
from genesis_fn.primitives.linalg import solve_p
from genesis_fn.primitives.random_bits import random_bits as random_bits_of
from genesis_fn.transforms.custom.fused_functions import fused_p
from tests.cuda.programs import on_cpu, traced
from tests.kernels import run

TOLERANCE = {4: 1e-2, 2: 2e-2, 8: 1e-9}  # by bytes: the distance over the norm of what is wanted
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")


class Allocation:
    """Device memory of exactly so many bytes, so that an access beyond them is seen."""

    def __init__(self, size: int) -> None:
        from cuda.bindings import driver as cuda

        self._free = cuda.cuMemFree
        status, address = cuda.cuMemAlloc(max(size, 1))
        if int(status):
            raise MemoryError(f"cuMemAlloc of {size} bytes: {status}")
        self.address = int(address)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._free(self.address)


# ---- a program, equation by equation ----


class Machine:
    """Runs programs on the device and remembers the kernels that it launched."""

    def __init__(self, generated: bool) -> None:
        self.generated = generated  # whether elementwise equations run on the device, too
        self.kernels: set[str] = set()

    def check(self, f: Callable, *args: Any) -> None:
        """Holds the program of `f` to the CPU's results."""
        jaxpr, inputs = traced(f, *args)
        found = self.results(group_matmuls(simplify_jaxpr(jaxpr), run.TARGET), inputs)
        for x, y in zip(found, on_cpu(jaxpr, inputs), strict=True):
            if y.dtype.kind in "biu":
                np.testing.assert_array_equal(x, y)
            else:
                x, y, size = x.astype(np.float64), y.astype(np.float64), y.itemsize
                distance = np.linalg.norm(x - y) / max(np.linalg.norm(y), 1.0)
                assert distance < TOLERANCE[size], distance

    def results(self, jaxpr: Jaxpr, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The program's results, each equation by the backend's plan for it."""
        values = dict(zip(jaxpr.invars, inputs, strict=True))
        for e in jaxpr.eqns:
            operands = [v for v in e.ins if type(v) is Var]
            arrays = [values[v] for v in operands]
            plan = plan_of(e, run.TARGET, self.generated)
            if plan is not None:
                outs = self._run(plan, arrays, [v.aval for v in e.outs])
                if e.prim is fused_p:
                    outs = _handed_through(e.params["jaxpr"], arrays, outs)
            elif e.prim is fused_p:
                outs = self.results(e.params["jaxpr"], arrays)
            else:
                outs = on_cpu(Jaxpr(operands, [e], e.outs), arrays)
            values.update(zip(e.outs, outs, strict=True))
        return [values[v] for v in jaxpr.outs]

    def _run(self, plan: Plan, arrays: Sequence[np.ndarray], kinds: Sequence[Any]) -> list:
        outs = [np.zeros(kind.shape, kind.dtype) for kind in kinds]
        error_words = [np.zeros(1, np.int64) for _ in range(plan.outputs - len(outs))]
        run.run_plan(plan, [_bytes(x) for x in arrays], [_bytes(x) for x in (*outs, *error_words)])
        assert not any(word[0] for word in error_words)
        launches = [s for s in plan.steps if isinstance(s, Launch) and 0 not in s.grid]
        if run.INTERPRETED:
            self.kernels.update(kernels_of(plan))
        else:
            self.kernels.update(x.compiled.name for x in device_runtime(0).driver.prepare(launches))
        return outs


def plan_of(e: Eqn, target: Target, generated: bool) -> Plan | None:
    """The plan that one equation runs by, of elementwise ones if they are to be `generated`."""
    if isinstance(e.prim.lowering, Elementwise) and not generated:
        return None
    avals = [x.aval if type(x) is Var else x for x in e.ins]
    plan = plan_for(e.prim, avals, e.params, target)
    return plan if type(plan) is Plan else None


def kernels_of(plan: Plan) -> set[str]:
    """The names of the kernels that a plan launches."""
    launches = [s for s in plan.steps if isinstance(s, Launch) and 0 not in s.grid]
    return {getattr(s.kernel, "name", None) or s.kernel.__name__ for s in launches}


def _bytes(x: np.ndarray) -> torch.Tensor:
    flat = x if x.flags.c_contiguous else np.ascontiguousarray(x)
    return torch.from_numpy(flat.reshape(-1).view(np.uint8))


def _handed_through(jaxpr: Jaxpr, arrays: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
    """The results with those that a kernel leaves alone: operands, and results given twice."""
    known = dict(zip(jaxpr.invars, arrays, strict=True))
    for v, out in zip(jaxpr.outs, outs, strict=True):
        known.setdefault(v, out)
    return [known[v] for v in jaxpr.outs]


# ---- the families ----

_random = np.random.default_rng(0)


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Normal numbers."""
    return _random.standard_normal(shape, np.float32).astype(dtype)


def integers(below: int, *shape: int) -> np.ndarray:
    """Numbers of [0, below)."""
    return _random.integers(0, below, shape, np.int32)


def pulled(f: Callable) -> Callable:
    """The result and, for a cotangent that differs everywhere, the gradients."""

    def both(*xs: Any) -> tuple:
        y, pull = gf.vjp(f, *xs)
        return y, *pull((y * 0.5 + 1).astype(y.dtype))

    return both


def norm(check: Callable) -> None:
    rms, layer = (pulled(lambda *x, f=f: f(*x, eps=1e-5)) for f in (rms_norm, layer_norm))
    check(rms, array(5, 64), array(64))
    check(rms, array(300, 1000, dtype=bfloat16), array(1000, dtype=bfloat16))
    check(layer, array(70, 48, dtype=bfloat16), array(48), array(48))
    check(layer, array(2, 17000), array(17000), array(17000))


def softmax(check: Callable) -> None:
    for f in (nn.softmax, nn.log_softmax, lambda x: nn.logsumexp(x, -1)):
        check(pulled(f), array(70, 100, dtype=bfloat16))
        check(pulled(f), array(2, 17001))


def cross_entropy(check: Callable) -> None:
    for rows, classes, dtype in ((70, 33, bfloat16), (3, 17000, np.float32)):
        labels = integers(classes, rows)
        check(
            pulled(lambda x, y=labels: losses.softmax_cross_entropy_with_integer_labels(x, y)),
            array(rows, classes, dtype=dtype),
        )


def linear_cross_entropy(check: Callable) -> None:
    labels = integers(300, 70)
    loss = pulled(lambda x, w: nn.linear_cross_entropy(x, w, labels))
    check(loss, array(70, 64, dtype=bfloat16), array(300, 64, dtype=bfloat16))
    some = integers(300, 70)
    some[::3] = -100
    counted = pulled(lambda x, w: nn.linear_cross_entropy(x, w, some, ignore_index=-100))
    check(counted, array(70, 64, dtype=bfloat16), array(300, 64, dtype=bfloat16))
    by_row, by_class = np.abs(array(70)), np.abs(array(300))
    for reduction in ("mean", "none"):
        weighted = pulled(
            lambda x, w, b, reduction=reduction: nn.linear_cross_entropy(
                x, w, some, bias=b, class_weight=by_class, row_weight=by_row, ignore_index=-100,
                label_smoothing=0.1, softcap=5.0, reduction=reduction,
            )
        )  # fmt: skip
        check(weighted, array(70, 64), array(300, 64), array(300))


def matmul(check: Callable) -> None:
    def product(x: Any, y: Any) -> Any:
        return x @ y

    for kind in (bfloat16, np.float32):
        check(pulled(product), array(130, 72, dtype=kind), array(72, 264, dtype=kind))
        check(product, array(100, 7, dtype=kind), array(7, 129, dtype=kind))
        check(product, array(3, 256, dtype=kind), array(256, 512, dtype=kind))
    for rows in (1, 3):
        few = array(rows, 1024, dtype=bfloat16), array(2048, 1024, dtype=bfloat16)
        check(lambda x, w: x @ w.T, *few)
    check(product, array(130, 136), array(136, 264))
    check(product, array(260, 520), array(520, 520))  # whose right operand is prepared
    check(pulled(product), array(200, 1160, dtype=bfloat16), array(1160, 8, dtype=bfloat16))
    check(product, array(64, 8192, dtype=bfloat16), array(8192, 64, dtype=bfloat16))
    check(product, array(3, 40, 64, dtype=bfloat16), array(3, 64, 48, dtype=bfloat16))
    check(product, array(40, 50, dtype=np.float64), array(50, 30, dtype=np.float64))

    def weights(x: Any, *ys: Any) -> list[Any]:
        return [lax.dot_general(x, y, (((0,), (0,)), ((), ()))) for y in ys]

    check(weights, *(array(512, n, dtype=bfloat16) for n in (128, 128, 256, 64)))


def ragged(check: Callable) -> None:
    sizes = np.array([70, 0, 33, 5], np.int32)  # of 120 rows
    for kind in (bfloat16, np.float32):
        product = pulled(lambda x, w: lax.ragged_dot(x, jnp.swapaxes(w, 1, 2), sizes))
        check(product, array(120, 72, dtype=kind), array(4, 264, 72, dtype=kind))
    product = pulled(lambda x, w: lax.ragged_dot(x, w, sizes))
    check(product, array(120, 37, dtype=bfloat16), array(4, 37, 41, dtype=bfloat16))
    check(product, array(120, 40, dtype=np.float64), array(4, 40, 48, dtype=np.float64))
    few = np.array([3, 0, 1, 4], np.int32)
    check(
        lambda x, w: lax.ragged_dot(x, jnp.swapaxes(w, 1, 2), few),
        array(8, 256, dtype=bfloat16),
        array(4, 200, 256, dtype=bfloat16),
    )
    many = np.array([[70, 20, 3, 5], [0, 0, 120, 0]], np.int32)
    check(
        pulled(gf.vmap(lambda x, w, n: lax.ragged_dot(x, w, n), (0, None, 0))),
        array(2, 120, 64, dtype=bfloat16),
        array(4, 64, 128, dtype=bfloat16),
        many,
    )
    crowd = np.zeros(MAX_GROUPS + 16, np.int32)  # more than a program holds
    crowd[[3, 700, -1]] = 5, 2, 4
    product = pulled(lambda x, w: lax.ragged_dot(x, w, crowd))
    check(product, array(12, 8), array(crowd.size, 8, 5))


def attend(**options: Any) -> Callable:
    """The public function with these options."""
    return lambda q, k, v: nn.dot_product_attention(q, k, v, **options)


def heads(t: int, s: int, n: int, kv: int, d: int, dtype: Any) -> list[np.ndarray]:
    """Query, key and value of two batch entries."""
    return [array(2, t, n, d, dtype=dtype), *(array(2, s, kv, d, dtype=dtype) for _ in range(2))]


def attention(check: Callable) -> None:
    check(pulled(attend(is_causal=True)), *heads(150, 150, 4, 2, 64, bfloat16))
    check(pulled(attend(is_causal=True)), *heads(40, 40, 4, 2, 24, np.float32))
    options = {
        "bias": array(1, 4, 41, 51),
        "mask": integers(2, 2, 1, 41, 51) == 1,
        "key_value_seq_lengths": np.array([0, 33], np.int32),
        "local_window_size": (30, 2),
    }
    check(pulled(attend(**options, softcap=3.0)), *heads(41, 51, 4, 2, 24, np.float32))
    texts = np.repeat(np.arange(5, dtype=np.int32), 40)[None, :150].repeat(2, 0)
    packed = pulled(attend(is_causal=True, segment_ids=texts))
    check(packed, *heads(150, 150, 4, 2, 64, bfloat16))
    apart = pulled(attend(segment_ids=(texts[:, :41], texts[:, 20:71])))
    check(apart, *heads(41, 51, 4, 2, 24, np.float32))


def attention_decode(check: Callable) -> None:
    lengths = np.array([1, 1100], np.int32)
    check(attend(key_value_seq_lengths=lengths), *heads(1, 1200, 16, 8, 128, bfloat16))
    check(attend(key_value_seq_lengths=lengths), *heads(3, 1100, 4, 2, 32, np.float32))
    check(attend(key_value_seq_lengths=lengths), *heads(2, 1100, 2, 2, 40, np.float32))
    mask = integers(2, 2, 1, 1, 75) == 1
    check(attend(mask=mask, bias=array(1, 4, 1, 75)), *heads(1, 75, 4, 4, 20, np.float32))
    check(attend(), *heads(1, 75, 4, 4, 64, bfloat16))


def attention_specialized(check: Callable) -> None:
    check(pulled(attend(is_causal=True)), *heads(300, 300, 4, 2, 128, bfloat16))
    check(pulled(attend()), *heads(140, 300, 2, 2, 128, bfloat16))


def scan(check: Callable) -> None:
    check(lambda x: jnp.cumsum(x, 1), array(3, 37))
    check(lambda x: jnp.cumsum(x, 0), array(300, 40, dtype=np.float64))
    check(lambda x: lax.cummax(x, axis=1), array(2, 11000))


def sorting(check: Callable) -> None:
    check(lambda x: jnp.sort(x, 1), array(3, 90, dtype=bfloat16))
    check(lambda x: jnp.argsort(x, 1), array(2, 33))
    check(jnp.sort, array(70000))
    check(lambda x, y: lax.sort((x, y), num_keys=2), integers(9, 3000), array(3000))
    check(lambda x: lax.top_k(x, 3), array(140, 4000))
    check(lambda x: lax.top_k(x, 4), array(3, 300))
    check(lambda x: lax.top_k(x, 50), array(2, 40000))


def scatter(check: Callable) -> None:
    table, rows = array(300, 40, dtype=bfloat16), integers(300, 100)
    check(lambda x: x[rows], table)
    check(lambda x, y: x.at[rows].add(y), array(300, 40), array(100, 40))
    check(lambda x, y: x.at[rows].max(y), array(300, 40), array(100, 40))
    many = integers(1500, 3000)
    for deterministic in (True, False):
        for dtype in (np.float32, bfloat16):
            with gf.deterministic(deterministic):
                given = (array(1500, 9, dtype=dtype), array(3000, 9, dtype=dtype))
                check(lambda x, y: x.at[many].add(y), *given)
    for dtype in (np.float32, bfloat16, np.float64):
        given = (array(1500, 9, dtype=dtype), array(6000, 9, dtype=dtype))
        check(lambda x, y: x.at[integers(1500, 6000)].set(y), *given)
        check(lambda x, y: x.at[integers(1500, 6000)].max(y), *given)
    check(lambda x: ops.segment_sum(x, many, 1500), array(3000))
    check(
        lambda x, w: ops.segment_sum(x[many] * w[:, None], many, 1500), array(1500, 9), array(3000)
    )
    dense = integers(1100, 4500)
    check(lambda x: ops.segment_sum(x, dense, 1100), array(4500))
    check(lambda x: ops.segment_sum(x, dense, 1100), array(4500, 3))
    places = _random.permutation(300)[:100].astype(np.int32)
    for change in ("set", "add"):
        check(
            lambda x, y: getattr(x.at[places], change)(y, unique_indices=True),
            array(300, 40, dtype=bfloat16),
            array(100, 40, dtype=bfloat16),
        )
    check(pulled(lambda x: jnp.take(x, rows, 0)), table)
    check(lambda x: x[integers(300, 5, 1), integers(40, 7)], array(300, 40))


def convolution(check: Callable) -> None:
    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (2, 1), ((1, 1), (0, 1)), precision="highest")

    check(pulled(convolve), array(2, 5, 9, 8), array(7, 5, 3, 3))
    check(pulled(convolve), array(2, 4, 9, 8, dtype=bfloat16), array(6, 4, 3, 3, dtype=bfloat16))
    check(pulled(convolve), array(4, 3, 40, 40), array(4, 3, 3, 3))


def pooling(check: Callable) -> None:
    def pool(start: float, combine: Callable) -> Callable:
        return lambda x: lax.reduce_window(x, start, combine, (1, 1, 3, 2), (1, 1, 2, 1), "SAME")

    check(pulled(pool(-np.inf, lax.max)), array(2, 3, 9, 8))
    check(pulled(pool(0.0, lax.add)), array(2, 3, 9, 8))


def concatenate(check: Callable) -> None:
    check(lambda x, y: jnp.concatenate([x, y], 1), array(70, 16), array(70, 1))
    check(lambda x, y: jnp.concatenate([x, y], 0), array(3, 70), array(40, 70))


def random_bits(check: Callable) -> None:
    check(lambda key: random_bits_of(key, shape=(1030,)), np.array([1, 2**32 - 1], np.uint32))


def generated(check: Callable) -> None:
    check(lambda x, y: jnp.tanh(x) * y + jnp.sum(x, 1, keepdims=True), array(70, 130), array(130))
    check(lambda x: jnp.sum(x, 0), array(1000, 33, dtype=bfloat16))


def linear_algebra(check: Callable) -> None:
    def positive(n: int, count: int = 3) -> np.ndarray:
        x = array(count, n, n)
        return x @ x.swapaxes(-1, -2) + n * np.eye(n, dtype=np.float32)

    size = lambda x: jnp.sum(jnp.abs(x) ** 2, -1)  # of rows: signs, phases and order are free
    lower = lambda x, y: lax.linalg.triangular_solve(x, y, left_side=True, lower=True)
    check(lax.linalg.cholesky, positive(37))
    check(jnp.linalg.solve, positive(67), array(3, 67, 5))
    check(lax.linalg.lu, positive(67))
    # In registers of several warps, of which some have a column less than others.
    for kind in (np.float32, np.complex64):
        medium, sides = positive(37).astype(kind), array(3, 37, 5).astype(kind)
        wide = medium.astype(np.float64) if kind == np.float32 else medium
        check(lambda x: jnp.abs(lax.linalg.cholesky(x)), wide)
        check(lambda x: gf.tree.map(jnp.abs, lax.linalg.lu(x)), medium)
        check(lambda x, y: jnp.abs(jnp.linalg.solve(x, y)), medium, sides)
        check(lambda x, y: jnp.abs(lower(x, y)), medium, sides)
    # In registers: several matrices of a warp, the last ones missing, or one.
    kinds = (np.float32, np.float64, np.complex64)
    for n, count, kind in (*((5, 9, k) for k in kinds), (19, 3, np.float32)):
        small, side = positive(n, count).astype(kind), array(count, n, 2).astype(kind)
        for f, operands in (
            (lax.linalg.cholesky, (small,)),
            (jnp.linalg.solve, (small, side)),
            (lambda x, y: bind(solve_p, x, y, transpose_a=True), (small, side)),
            (lax.linalg.lu, (small,)),
            (jnp.linalg.qr, (small,)),
            (lax.linalg.eigh, (small,)),
            (lower, (small, side)),
        ):
            check(lambda *xs, f=f: gf.tree.map(jnp.abs, f(*xs)), *operands)
    shapes = ((9, 5, 3), np.float32), ((3, 7, 19), np.float32), ((3, 4, 4), np.complex64)
    for shape, kind in shapes:
        for vectors in (False, True):
            f = lambda x, uv=vectors: lax.linalg.svd(x, full_matrices=False, compute_uv=uv)
            check(lambda x, f=f: gf.tree.map(jnp.abs, f(x)), array(*shape).astype(kind))
    check(lambda x: jnp.abs(jnp.linalg.qr(x)[0]), array(3, 37, 21))
    check(lambda x: jnp.abs(jnp.linalg.qr(x)[0]), array(3, 37, 21) + 1j * array(3, 37, 21))
    check(lambda x: jnp.abs(lax.linalg.svd(x, full_matrices=False)[0]), array(3, 37, 21))
    both = array(3, 21, 37) + 1j * array(3, 21, 37)
    check(lambda x: jnp.abs(lax.linalg.svd(x, full_matrices=False)[2]), both)
    check(lambda x: size(jnp.linalg.eig(x)[1]), array(3, 37, 37))
    check(lambda x: jnp.fft.irfftn(x + 1j * x, (5, 6, 7), (1, 2, 3)), array(3, 5, 6, 4))


FAMILIES: dict[str, Callable[[Callable], None]] = {
    f.__name__: f
    for f in (
        norm,
        softmax,
        cross_entropy,
        linear_cross_entropy,
        matmul,
        ragged,
        attention,
        attention_decode,
        attention_specialized,
        scan,
        sorting,
        scatter,
        convolution,
        pooling,
        concatenate,
        random_bits,
        linear_algebra,
        generated,
    )
}


# ---- verdicts ----


def report(logs: Path, out: Path) -> None:
    """Writes what each tool said of each kernel, as JSON and as a table beside it."""
    kernels: dict[str, dict[str, Any]] = {}
    for family in FAMILIES:
        text = {t: (logs / f"{t}-{family}.log") for t in ("plain", *TOOLS)}
        said = {t: p.read_text(errors="replace") for t, p in text.items() if p.exists()}
        found = re.search(rf"^{family}: .* kernels: (.*)$", said.get("plain", ""), re.M)
        for kernel in found[1].split(", ") if found else ():
            row = kernels.setdefault(kernel, {"families": []})
            row["families"].append(family)
            for tool in TOOLS:
                row[tool] = _worse(row.get(tool), _verdict(said.get(tool), family, kernel))
    rows = dict(sorted(kernels.items(), key=lambda x: (x[1]["families"][0], x[0])))
    found = surroundings()
    out.write_text(json.dumps({**found, "kernels": rows}, indent=1) + "\n")
    lines = ["# compute-sanitizer on every kernel", ""]
    lines += [f"{found['device']}, Triton {found['versions']['triton']}, commit {found['commit']}."]
    lines += [
        "What racecheck reports of the kernels with specialised warps, `race_delays.py` tests."
    ]
    lines += ["", "| kernel | of | " + " | ".join(TOOLS) + " |", "|---" * (2 + len(TOOLS)) + "|"]
    for kernel, row in rows.items():
        verdicts = " | ".join(row[t] for t in TOOLS)
        lines.append(f"| `{kernel}` | {', '.join(row['families'])} | {verdicts} |")
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def _verdict(text: str | None, family: str, kernel: str) -> str:
    """What a tool's log says of one kernel."""
    if text is None:
        return "not run"
    said = "\n".join(x for x in text.splitlines() if x.startswith("="))
    reports = re.split(r"^(?==+ +(?:Error|Warning|Invalid|Uninit|Barrier))", said, flags=re.M)[1:]
    mine = [x for x in reports if re.search(rf"\b{re.escape(kernel)}\b", x)]
    lines = sorted({int(n) for x in mine for n in re.findall(r"\.py:(\d+)", x)})
    if mine:
        at = f" (lines {', '.join(map(str, lines))})" if lines else ""
        return f"{len(mine)} reports{at}"
    ended = re.search(rf"^{family}: passed", text, re.M)
    return "clean" if ended and "SUMMARY" in text else "did not end"


def _worse(before: str | None, now: str) -> str:
    order = ("clean", "not run", "did not end")
    ranks = [order.index(x) if x in order else len(order) for x in (before or "clean", now)]
    return now if before is None or ranks[1] > ranks[0] else before


def main(names: list[str]) -> int:
    """Runs the families; the number of those that failed."""
    if names[:1] == ["--report"]:
        report(Path(names[1]), Path(names[2]))
        return 0
    unknown = sorted(set(names) - set(FAMILIES))
    if unknown:
        raise SystemExit(f"no family {', '.join(unknown)}: there are {', '.join(FAMILIES)}")
    if not run.INTERPRETED:
        device_runtime(0)  # the context that the allocations belong to
        run.allocate = Allocation
    failed = 0
    for name in names or FAMILIES:
        start = time.perf_counter()
        machine = Machine(generated=name == "generated")
        try:
            FAMILIES[name](machine.check)
            outcome = "passed"
        except Exception as error:
            failed += 1
            outcome = f"FAILED: {type(error).__name__}: {str(error)[:300]}"
        kernels = ", ".join(sorted(machine.kernels))
        taken = time.perf_counter() - start
        print(f"{name}: {outcome} in {taken:.1f} s; kernels: {kernels}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
