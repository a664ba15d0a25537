"""Products that share launches and accumulators: what is joined, and that it changes nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import programs
import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax, random
from genesis_fn.backends.cuda.lower.steps import BufferTable, keeps_fused
from genesis_fn.backends.cuda.pipeline import schedule
from genesis_fn.backends.cuda.run.steps import SubProgram
from genesis_fn.compiler.fusion.fuse import fuse_jaxpr
from genesis_fn.compiler.fusion.matmul_grouping import group_matmuls
from genesis_fn.compiler.memory.rematerialise import rematerialise_jaxpr
from genesis_fn.compiler.options import without
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core import tree
from genesis_fn.core.aval import aval
from genesis_fn.core.dtypes import BF16
from genesis_fn.core.jaxpr import check
from genesis_fn.kernels.plan import Launch
from genesis_fn.models import qwen
from genesis_fn.transforms.precision.autocast import amp
from genesis_fn.transforms.staging.stage_trace import stage

rng = np.random.default_rng(0)
ULP = 2**-8  # of bfloat16, relative
PASSES = ("grouped", "segments", "epilogues", "stored_casts")


def normal(*shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(BF16)


def matrix_launches(scope) -> list[str]:
    """The matrix kernels that a program launches, in order."""
    steps = [s for child in scope.steps if isinstance(child, SubProgram) for s in child.steps]
    kernels = [s.kernel for s in steps if isinstance(s, Launch)]
    names = [getattr(k, "__name__", getattr(k, "name", "")) for k in kernels]
    return [name for name in names if name.startswith("matmul")]


def both(f, *args, ulps: float):
    """Runs `f` with and without the passes: results agree within `ulps` of their largest value,
    and with the CPU's. The result is the matrix kernels of each."""
    jaxpr, inputs = programs.traced(f, *args)
    want = programs.on_cpu(jaxpr, inputs)
    # Small products would share launches of other names.
    with without("horizontal"):
        joined = programs.compile_jaxpr(jaxpr, programs.PLACE)
    with without("horizontal", *PASSES):
        alone = programs.compile_jaxpr(jaxpr, programs.PLACE)
    given = list(map(programs.put, inputs))
    for x, y, z in zip(joined(*given), alone(*given), want, strict=True):
        a, b = programs.get(x), programs.get(y)
        programs.close(a, z, 4 * ULP)
        largest = np.abs(b.astype(np.float64)).max()
        error = np.abs(a.astype(np.float64) - b.astype(np.float64)).max()
        assert error <= ulps * ULP * largest, (error, largest)
    return matrix_launches(joined.schedule), matrix_launches(alone.schedule)


def test_weight_gradients_share_a_launch() -> None:
    # Odd sizes: rows and columns that tiles do not divide.
    def loss(ws, x):
        a, b = [gnp.matmul(x, w) for w in ws[:2]]
        return gnp.sum(gnp.matmul(gnp.tanh(a) * b, ws[2]).astype(np.float32) ** 2)

    ws = [normal(136, 200), normal(136, 200), normal(200, 128)]
    joined, alone = both(g.grad(loss), ws, normal(520, 136), ulps=0)
    assert "matmul_grouped_bf16_bf16" in joined and len(alone) - len(joined) == 2


def test_a_sum_of_products_is_one_product() -> None:
    # Depths 200, 136 and 72, which blocks of k do not divide.
    def f(xs, ws, bias):
        ys = [gnp.matmul(x, w).astype(np.float32) for x, w in zip(xs, ws, strict=True)]
        return ys[0] + ys[1] + bias + ys[2]

    depths = (200, 136, 72)
    xs, ws = [normal(130, k) for k in depths], [normal(k, 152) for k in depths]
    bias = rng.standard_normal((130, 152)).astype(np.float32)
    joined, alone = both(f, xs, ws, bias, ulps=2)
    assert (len(joined), len(alone)) == (1, 3)


def test_gradients_of_an_input_are_summed_in_one_accumulator() -> None:
    def loss(x, ws):
        return sum(gnp.sum(gnp.sin(gnp.matmul(x, w).astype(np.float32))) for w in ws)

    ws = [normal(144, 256), normal(144, 128), normal(144, 128)]
    joined, alone = both(g.grad(loss), normal(2, 80, 144), ws, ulps=2)
    assert len(alone) - len(joined) == 2


def test_terms_that_something_else_reads_stay() -> None:
    def f(x, y, v, w):
        a, b = gnp.matmul(x, v), gnp.matmul(y, w)
        return a + b, a

    args = normal(128, 64), normal(128, 64), normal(64, 128), normal(64, 128)
    joined, _ = both(f, *args, ulps=0)
    assert len(joined) == 2


def test_few_rows_and_other_types_stay_alone() -> None:
    def f(x, y, v, w):
        return gnp.matmul(x, v) + gnp.matmul(y, w)

    few = normal(16, 64), normal(16, 64), normal(64, 128), normal(64, 128)
    jaxpr, _ = programs.traced(f, *few)
    assert (
        group_matmuls(simplify_jaxpr(jaxpr, keeps_fused(H200)), H200).eqns
        == simplify_jaxpr(jaxpr, keeps_fused(H200)).eqns
    )
    wide = [np.asarray(x, np.float32) for x in (normal(128, 64), normal(64, 128))]
    jaxpr, _ = programs.traced(f, wide[0], wide[0], wide[1], wide[1])
    assert "products" not in repr(group_matmuls(simplify_jaxpr(jaxpr, keeps_fused(H200)), H200))


def test_products_that_need_each_other_do_not_wait_for_each_other() -> None:
    def f(x, w):
        for _ in range(4):
            x = gnp.matmul(gnp.tanh(x).T, w)
        return x, gnp.matmul(w, w)

    jaxpr, _ = programs.traced(f, normal(640, 640), normal(640, 640))
    before = simplify_jaxpr(jaxpr, keeps_fused(H200))
    after = group_matmuls(before, H200)
    check(after)
    # The square of w may run with any one of the chain, which stays in four steps.
    dots = [e for e in after.eqns if e.prim.name in ("dot_general", "products")]
    assert len(dots) == 4 and "products" in repr(after)


def silu_and_slope(x, w):
    """silu(x @ w) and its derivative there."""
    y = gnp.matmul(x, w).astype(np.float32)
    s = lax.logistic(y)
    return [z.astype(BF16) for z in (y * s, s + y * s * (1 - s))]


def gated_backward(x, w, gate, up):
    """What the backward pass of silu(gate) * up does with x @ w, and silu(gate) * up again."""
    d = gnp.matmul(x, w).astype(np.float32)
    gate, up = gate.astype(np.float32), up.astype(np.float32)
    s = lax.logistic(gate)
    results = gate * s * up, d * gate * s, d * up * (s + gate * s * (1 - s))
    return [y.astype(BF16) for y in results]


@pytest.mark.parametrize("sizes", [(130, 72, 200), (256, 64, 256)])
def test_what_reads_a_product_alone_is_its_epilogue(sizes) -> None:
    m, k, n = sizes
    x, w = normal(2, m // 2, k), normal(k, n)
    others = normal(2, m // 2, n), normal(2, m // 2, n)
    # Tensor cores would wait for the other arrays that an epilogue reads.
    for f, args, together in ((silu_and_slope, (x, w), 1), (gated_backward, (x, w, *others), 2)):
        jaxpr, _ = programs.traced(f, *args)
        joined, alone = both(f, *args, ulps=0)
        assert len(joined) == len(alone) == 1
        assert len(groups(jaxpr)) == together
        with without("epilogues"):
            assert len(groups(jaxpr)) == 2


def test_casts_that_must_be_in_memory_are_stored_by_products() -> None:
    def gradients(x, dy, dz):
        wide = [gnp.matmul(x.T, d).astype(np.float32) for d in (dy, dz)]
        # The cast of the second is read in a kernel, which widens it for nothing.
        return wide[0].reshape(136, 2, 76), wide[1] * 2, gnp.sum(wide[1])

    args = normal(520, 136), normal(520, 152), normal(520, 128)
    joined, alone = both(gradients, *args, ulps=0)
    assert len(joined) == len(alone) == 2
    jaxpr, _ = programs.traced(gradients, *args)
    program = group_matmuls(simplify_jaxpr(jaxpr, keeps_fused(H200)), H200)
    (stored,) = [e.outs[0].aval for e in program.eqns if e.prim.name == "products"]
    assert (stored.dtype, stored.shape) == (np.float32, (136, 152))
    with without("stored_casts"):
        program = group_matmuls(simplify_jaxpr(jaxpr, keeps_fused(H200)), H200)
    (joint,) = [e for e in program.eqns if e.prim.name == "products"]
    assert [o.aval.dtype for o in joint.outs] == [BF16, BF16]


def test_casts_of_sums_and_of_few_rows() -> None:
    def total(xs, ws):
        a, b = [gnp.matmul(x, w) for x, w in zip(xs, ws, strict=True)]
        return (a + b).astype(np.float32)

    # Rows of 136 numbers are read by descriptors; those of 131 are not, and are summed one by one.
    for n in (136, 131):
        xs, ws = [normal(130, k) for k in (64, 72)], [normal(k, n) for k in (64, 72)]
        both(total, xs, ws, ulps=2)

    few = lambda x, w: gnp.matmul(x, w).astype(np.float32)
    jaxpr, _ = programs.traced(few, normal(2, 64), normal(64, 256))
    program = simplify_jaxpr(jaxpr, keeps_fused(H200))
    assert group_matmuls(program, H200).eqns == program.eqns
    both(few, normal(2, 64), normal(64, 256), ulps=0)


def groups(jaxpr):
    return fuse_jaxpr(simplify_jaxpr(jaxpr, keeps_fused(H200)), H200).groups


def test_epilogues_read_and_write_tiles_only() -> None:
    def bias(x, w, b):
        return gnp.tanh(gnp.matmul(x, w) + b)

    def transposed(x, w):
        return gnp.tanh(gnp.matmul(x, w)).T

    def kept(x, w):
        y = gnp.matmul(x, w)
        return y, gnp.tanh(y)

    def rows(x, w):
        return gnp.sum(gnp.matmul(x, w).astype(np.float32), 1)

    x, w = normal(128, 64), normal(64, 128)
    for f in (bias, transposed, kept, rows):
        args = (x, w, normal(128)) if f is bias else (x, w)
        jaxpr, _ = programs.traced(f, *args)
        assert len(groups(jaxpr)) == 2, f.__name__
        both(f, *args, ulps=0)


def test_an_epilogue_does_not_write_over_what_it_reads() -> None:
    def f(x, w, y):
        return gnp.tanh(gnp.matmul(x, w)) * y

    args = normal(128, 64), normal(64, 128), normal(128, 128)
    programs.compare(f, *args, donated=[False, False, True], tolerance=4 * ULP)


def test_effects_keep_their_order() -> None:
    def f(x, w):
        a = gnp.matmul(x.T, w)
        first = lax.cumsum(gnp.arange(4))[gnp.sum(a).astype(np.int32) % 4]
        b = gnp.matmul(w.T, x)
        return a, b, first

    programs.compare(f, normal(512, 128), normal(512, 128), tolerance=4 * ULP)


# ---- a layer of a model ----


def planned(layers: int):
    """The scope of a training step of Qwen3-0.6B's shapes with so many layers; nothing runs."""
    config = dataclasses.replace(
        qwen.PRESETS["qwen3-0.6b"], num_hidden_layers=layers, vocab_size=1024
    )

    def loss(params, tokens):
        return qwen.loss(params, tokens[:, :-1], tokens[:, 1:], config)

    params = g.eval_shape(lambda: qwen.init(random.key(0), config))
    leaves, structure = tree.flatten((params, np.zeros((8, 2049), np.int32)))
    f = g.value_and_grad(amp(loss, "bfloat16"))
    jaxpr, captured = stage(
        lambda *xs: tree.leaves(f(*tree.unflatten(structure, xs))),
        [aval(x.shape, x.dtype) for x in leaves],
    )
    program = rematerialise_jaxpr(simplify_jaxpr(jaxpr, keeps_fused(H200)), None)
    table = BufferTable(H200)
    inputs = [table.new(v.aval.nbytes) for v in program.invars]
    return program, schedule(table, program, inputs, [None] * len(program.outs))


@pytest.mark.parametrize("passes", [True, False])
def test_launches_of_a_layer_forward_and_backward(passes: bool) -> None:
    counts = []
    for layers in (2, 7):
        with without(*(() if passes else PASSES)):
            _, scope = planned(layers)
        counts.append(len(matrix_launches(scope)))
    # Forward q, k, v, o, gate, up, down. Backward alone: as many for inputs and for weights.
    # Together: inputs of qkv, o, gate and up, down; five layers' weights in six launches. Alone,
    # five weights' gradients are split along k and added up in a second launch.
    assert counts[1] - counts[0] == (5 * (7 + 4) + 6 if passes else 5 * (21 + 5))


def test_waiting_costs_little_memory() -> None:
    with without(*PASSES):
        _, alone = planned(4)
    _, joined = planned(4)
    assert joined.arena <= alone.arena * 1.1
