"""Matrix products through Triton's interpreter against float64 references."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import pytest
import torch

from genesis_fn.compiler.target import H200, Target
from genesis_fn.kernels.matmul.grouped import plan_grouped_matmul
from genesis_fn.kernels.matmul.matmul import Hooks, MatmulConfig, MatmulSpec, configs, plan_matmul
from genesis_fn.kernels.matmul.spec import Segment
from genesis_fn.kernels.matmul.tuning import chosen_config
from genesis_fn.kernels.plan import Plan
from tests.kernels.run import run_plan

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "i8": torch.int8,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
}
EPSILON = {
    "fp64": 2**-52,
    "fp32": 2**-23,
    "fp16": 2**-10,
    "bf16": 2**-7,
    "fp8e4nv": 2**-3,
    "fp8e5": 2**-2,
}
FEW = replace(H200, processors=3)
TMA = MatmulConfig("tma", 16, 32, 16, stages=3)
POINTER = MatmulConfig("pointer", 16, 16, 16)


def draw(shape: tuple[int, ...], dtype: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.startswith(("i", "u")):
        low = 0 if dtype.startswith("u") else -5
        return torch.randint(low, 6, shape, generator=generator).to(DTYPES[dtype])
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(DTYPES[dtype])


def operands(spec: MatmulSpec) -> tuple[torch.Tensor, torch.Tensor]:
    lhs = (spec.k, spec.m) if spec.lhs_transposed else (spec.m, spec.k)
    rhs = (spec.n, spec.k) if spec.rhs_transposed else (spec.k, spec.n)
    return (
        draw((*spec.batch, *lhs), spec.lhs_dtype, 0),
        draw((*spec.batch, *rhs), spec.rhs_dtype, 1),
    )


def product(spec: MatmulSpec, lhs: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    exact = torch.int64 if spec.acc_dtype.startswith("i") else torch.float64
    lhs, rhs = lhs.to(exact), rhs.to(exact)
    return (lhs.mT if spec.lhs_transposed else lhs) @ (rhs.mT if spec.rhs_transposed else rhs)


def close(spec: MatmulSpec, got: torch.Tensor, want: torch.Tensor) -> None:
    if spec.out_dtype.startswith(("i", "u")):
        assert torch.equal(got, want.to(got.dtype))
        return
    # One rounding of the result, and the accumulator's over k (1e-3 per operand when tf32).
    tolerance = EPSILON[spec.out_dtype]
    scale = want.abs().max().clamp(min=1.0)
    if spec.operand_dtype == "fp32" and spec.precision in ("default", "tf32"):
        tolerance = max(tolerance, 4e-3)
    wide = EPSILON["fp64" if spec.acc_dtype == "fp64" else "fp32"] * 4 * spec.k
    if spec.operand_dtype.startswith("fp8") and os.environ["TRITON_INTERPRET"] != "1":
        # Hopper adds the terms of one instruction with about 13 bits below the largest
        # (DeepSeek-V3 technical report, 3.3.2).
        wide = max(wide, 2.0**-13)
    error = (got.double() - want).abs() - (tolerance * want.abs() + wide * scale)
    if spec.operand_dtype == "fp32" and spec.precision in ("default", "tf32"):
        error -= tolerance * scale
    assert error.max() <= 0, f"largest excess {error.max()}"


def run(
    spec: MatmulSpec, config: MatmulConfig | None, *more: torch.Tensor, target: Target = FEW
) -> torch.Tensor:
    out = torch.full((*spec.batch, spec.m, spec.n), 7, dtype=DTYPES[spec.out_dtype])
    plan = plan_matmul(spec, target, config)
    run_plan(plan, [*operands(spec), *more], [out])
    return out


@pytest.mark.parametrize("config", [TMA, POINTER], ids=["tma", "pointer"])
@pytest.mark.parametrize("rhs_transposed", [False, True])
@pytest.mark.parametrize("lhs_transposed", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_layouts(dtype, lhs_transposed, rhs_transposed, config):
    spec = MatmulSpec(
        m=40,
        n=72,
        k=48,
        lhs_dtype=dtype,
        rhs_dtype=dtype,
        out_dtype=dtype,
        lhs_transposed=lhs_transposed,
        rhs_transposed=rhs_transposed,
    )
    close(spec, run(spec, config), product(spec, *operands(spec)))


@pytest.mark.parametrize(
    ("lhs", "rhs", "out"),
    [
        ("fp64", "fp64", "fp64"),
        ("fp8e4nv", "fp8e4nv", "fp32"),
        ("fp8e4nv", "fp8e5", "bf16"),
        ("fp8e5", "fp8e5", "fp8e4nv"),
        ("i8", "i8", "i32"),
        ("i8", "i8", "i8"),
        ("u8", "u8", "i32"),
        ("i32", "i32", "i32"),
        ("i64", "i64", "i64"),
        ("bf16", "fp32", "fp32"),
        ("fp16", "bf16", "fp32"),
        ("bf16", "bf16", "fp32"),
        ("fp32", "fp32", "bf16"),
        ("fp32", "fp32", "fp64"),
        ("i8", "i8", "i64"),
        ("i32", "i32", "i64"),
    ],
)
def test_dtypes_of_the_default_configuration(lhs, rhs, out):
    spec = MatmulSpec(m=33, n=40, k=32, lhs_dtype=lhs, rhs_dtype=rhs, out_dtype=out)
    close(spec, run(spec, None), product(spec, *operands(spec)))


def test_a_wide_output_is_summed_in_its_own_type():
    for kind, wide in (("i32", "i64"), ("u8", "i64"), ("fp32", "fp64"), ("bf16", "fp64")):
        spec = MatmulSpec(m=3, n=5, k=4, lhs_dtype=kind, rhs_dtype=kind, out_dtype=wide)
        assert (spec.operand_dtype, spec.acc_dtype) == (wide, wide)
    spec = MatmulSpec(m=3, n=5, k=4, lhs_dtype="i32", rhs_dtype="i32", out_dtype="i64")
    x = torch.full((3, 4), 2**30, dtype=torch.int32)
    y = torch.full((4, 5), 2**20 + 1, dtype=torch.int32)
    out = torch.zeros((3, 5), dtype=torch.int64)
    run_plan(plan_matmul(spec, H200), [x, y], [out])
    assert (out == 4 * 2**30 * (2**20 + 1)).all()


@pytest.mark.parametrize("precision", ["default", "tf32", "tf32x3", "ieee"])
def test_float32_precisions(precision):
    spec = MatmulSpec(
        m=32, n=32, k=64, lhs_dtype="fp32", rhs_dtype="fp32", out_dtype="fp32", precision=precision
    )
    close(spec, run(spec, TMA), product(spec, *operands(spec)))


@pytest.mark.parametrize("lhs_transposed", [False, True])
@pytest.mark.parametrize(
    "m, n, k", [(1, 1, 1), (17, 5, 3), (33, 31, 67), (100, 7, 129), (3, 90, 50)]
)
def test_odd_sizes(m, n, k, lhs_transposed):
    spec = MatmulSpec(m=m, n=n, k=k, lhs_transposed=lhs_transposed, out_dtype="fp32")
    want = product(spec, *operands(spec))
    close(spec, run(spec, POINTER), want)
    close(spec, run(spec, None), want)


@pytest.mark.parametrize("config", [TMA, POINTER], ids=["tma", "pointer"])
def test_batches_and_their_broadcast(config):
    spec = MatmulSpec(m=24, n=40, k=32, batch=(2, 3), rhs_transposed=True)
    close(spec, run(spec, config), product(spec, *operands(spec)))
    # The right operand is shared by the inner batch axis, the left one by the outer.
    spec = MatmulSpec(
        m=24,
        n=40,
        k=32,
        batch=(2, 3),
        lhs_strides=(0, 24 * 32, 32, 1),
        rhs_strides=(32 * 40, 0, 40, 1),
    )
    lhs, rhs = draw((3, 24, 32), "bf16", 2), draw((2, 32, 40), "bf16", 3)
    out = torch.empty(2, 3, 24, 40, dtype=torch.bfloat16)
    run_plan(plan_matmul(spec, FEW, config), [lhs, rhs], [out])
    close(spec, out, torch.einsum("bmk,akn->abmn", lhs.double(), rhs.double()))


@pytest.mark.parametrize("config", [TMA, POINTER], ids=["tma", "pointer"])
def test_heads_as_strided_views(config):
    # q [batch, time, heads, depth] times k of the same layout, one product per (batch, head).
    b, t, h, d = 2, 24, 3, 16
    q, k = draw((b, t, h, d), "bf16", 4), draw((b, t, h, d), "bf16", 5)
    strides = (t * h * d, d, h * d, 1)
    spec = MatmulSpec(
        m=t,
        n=t,
        k=d,
        batch=(b, h),
        out_dtype="fp32",
        lhs_strides=strides,
        rhs_strides=(t * h * d, d, 1, h * d),
    )
    out = torch.empty(b, h, t, t)
    run_plan(plan_matmul(spec, FEW, config), [q, k], [out])
    close(spec, out, torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()))


def test_a_transposed_output():
    lhs, rhs = draw((40, 32), "fp16", 6), draw((32, 24), "fp16", 7)
    types = {"lhs_dtype": "fp16", "rhs_dtype": "fp16", "out_dtype": "fp16"}
    spec = MatmulSpec(m=40, n=24, k=32, out_strides=(1, 40), **types)
    out = torch.empty(24, 40, dtype=torch.float16)
    for config in (TMA, POINTER):
        run_plan(plan_matmul(spec, FEW, config), [lhs, rhs], [out.fill_(9)])
        close(spec, out.T, lhs.double() @ rhs.double())


BIAS = Hooks(
    epilogue="""acc = acc * 0.5 + up(tl.load(bias + rn, mask=rn < N, other=0.0))
acc = acc * logistic(acc)""",
    inputs=(("bias", "fp32"),),
)


@pytest.mark.parametrize("split", [2, 5, 19])
@pytest.mark.parametrize("family", ["tma", "pointer"])
def test_split_k(family, split):
    config = MatmulConfig(family, 16, 32, 16, split_k=split, halves=split == 2)
    spec = MatmulSpec(m=24, n=40, k=304, batch=(2,), hooks=BIAS, residual="bf16")
    bias, residual = draw((40,), "fp32", 8), draw((2, 24, 40), "bf16", 9)
    want = torch.nn.functional.silu(0.5 * product(spec, *operands(spec)) + bias.double())
    first = run(spec, config, residual, bias)
    close(spec, first, want + residual.double())
    assert torch.equal(first, run(spec, config, residual, bias))
    odd = MatmulSpec(m=17, n=37, k=96)
    close(odd, run(odd, replace(config, family="pointer")), product(odd, *operands(odd)))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("m", "n"), [(20, 40), (9, 12)])
def test_small_products_of_great_depth_occupy_the_gpu(m, n, dtype):
    names = dict.fromkeys(("lhs_dtype", "rhs_dtype", "out_dtype"), dtype)
    spec = MatmulSpec(m=m, n=n, k=9000, lhs_transposed=True, **names)
    chosen = chosen_config(spec, H200)
    tiles = math.ceil(m / chosen.bm) * math.ceil(n / chosen.bn)
    assert chosen.split_k * tiles >= 32
    close(spec, run(spec, chosen), product(spec, *operands(spec)))
    deepest = chosen_config(replace(spec, k=1 << 18), H200)
    assert deepest.split_k * tiles >= 0.9 * H200.processors


@pytest.mark.parametrize("config", [TMA, POINTER, MatmulConfig("tma", 16, 64, 16, halves=True)])
def test_residual_and_accumulation(config):
    for out_dtype in ("fp32", "bf16"):
        spec = MatmulSpec(m=24, n=80, k=32, out_dtype=out_dtype, residual="fp16", accumulate=True)
        residual = draw((24, 80), "fp16", 11)
        got = run(spec, config, residual)
        close(spec, got, product(spec, *operands(spec)) + residual.double() + 7)


@pytest.mark.parametrize(
    "config",
    [
        TMA,
        POINTER,
        MatmulConfig("tma", 16, 32, 16, halves=True),
        MatmulConfig("tma", 16, 32, 16, split_k=2),
        MatmulConfig("tma", 32, 16, 16, swap=True),
        MatmulConfig("gemv", 32, 16, 16),
    ],
)
def test_gating(config):
    gate = draw((32, 48), "bf16", 12)
    spec = MatmulSpec(m=24, n=48, k=32, gated=True, hooks=Hooks("acc = acc * logistic(acc) * acc1"))
    lhs, rhs = operands(spec)
    want = torch.nn.functional.silu(product(spec, lhs, rhs)) * (lhs.double() @ gate.double())
    close(spec, run(spec, config, gate), want)


@pytest.mark.parametrize("rhs_transposed", [False, True])
@pytest.mark.parametrize("m", [1, 2, 5, 8])
def test_few_rows_without_tensor_cores(m, rhs_transposed):
    spec = MatmulSpec(m=m, n=70, k=90, rhs_transposed=rhs_transposed, residual="bf16")
    residual = draw((m, 70), "bf16", 13)
    menu = configs(spec, H200)
    assert menu[0].family == "gemv"
    want = product(spec, *operands(spec)) + residual.double()
    for config in (menu[0], MatmulConfig("gemv", 8, 16, 32, split_k=2)):
        close(spec, run(spec, config, residual), want)


@pytest.mark.parametrize("m", [9, 16, 40, 64])
@pytest.mark.parametrize("family", ["tma", "pointer"])
def test_few_rows_with_swapped_operands(family, m):
    spec = MatmulSpec(m=m, n=80, k=96, rhs_transposed=True)
    rows = 1 << (m - 1).bit_length()
    for split in (1, 3):
        config = MatmulConfig(family, rows, 64, 16, split_k=split, swap=True)
        close(spec, run(spec, config), product(spec, *operands(spec)))
    assert all(config.swap or config.bn == 32 for config in configs(spec, H200))


@pytest.mark.parametrize("lhs_transposed", [False, True])
@pytest.mark.parametrize(("n", "columns"), [(8, 16), (16, 16), (24, 32), (64, 64)])
def test_few_columns(n, columns, lhs_transposed):
    spec = MatmulSpec(m=200, n=n, k=1160, lhs_transposed=lhs_transposed)
    menu = configs(spec, H200)
    assert {(c.family, c.bm, c.bn) for c in menu} == {("tma", 128, columns)}
    # A long sum is divided among as many processors as it takes to read the left operand.
    long = configs(replace(spec, m=2048, k=16384), H200)[0]
    assert 16 * long.split_k >= H200.processors // 2 and long.stages * long.bk >= 384
    want = product(spec, *operands(spec))
    for config in {menu[0], *[c for c in menu if c.split_k > 1][:1]}:
        close(spec, run(spec, config), want)
    scaled = replace(spec, hooks=Hooks(epilogue="acc = acc * 2.0"))
    assert chosen_config(scaled, H200).split_k == 1  # the epilogue is of the whole sum
    close(scaled, run(scaled, chosen_config(scaled, H200)), 2 * want)


EPILOGUE = Hooks(
    epilogue=(
        "acc = acc * tl.load(cols + rn, mask=rn < N, other=0)\n"
        "tl.store(squares + (rm * N + rn), acc * acc, mask=inside)"
    ),
    inputs=(("cols", "fp32"),),
    outputs=(("squares", "fp32"),),
)
EPILOGUE_CONFIGS = [
    TMA, POINTER, MatmulConfig("tma", 16, 64, 16, halves=True),
    MatmulConfig("tma", 16, 32, 16, split_k=2), MatmulConfig("gemv", 32, 32, 16),
]  # fmt: skip


@pytest.mark.parametrize("config", EPILOGUE_CONFIGS)
def test_generated_epilogue(config):
    spec = MatmulSpec(m=24, n=48, k=32, out_dtype="fp32", hooks=EPILOGUE)
    lhs, rhs = operands(spec)
    cols = draw((48,), "fp32", 15)
    out, squares = torch.empty(24, 48), torch.empty(24, 48)
    run_plan(plan_matmul(spec, FEW, config), [lhs, rhs, cols], [out, squares])
    want = (lhs.double() @ rhs.double()) * cols.double()
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(squares, out * out)


@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("m", [1, 2, 7])
@pytest.mark.parametrize("k", [32, 5000])
def test_generated_left_operand(m, k, steady):
    # The rows of x, scaled: by the kernel itself, which chooses its configuration.
    hooks = Hooks(
        setup="scale = tl.load(scales + rm)",
        lhs=f"a = tl.load(x + rm * {k} + rk_row, rk_row < {k}, other=0.0) * scale",
        inputs=(("x", "fp32"), ("scales", "fp32")),
    )
    spec = MatmulSpec(m, 48, k, rhs_transposed=True, out_dtype="fp32", hooks=hooks, steady=steady)
    x, w, scales = draw((m, k), "fp32", 3), draw((48, k), "bf16", 4), draw((m,), "fp32", 5)
    plan, out = plan_matmul(spec, FEW), torch.empty(m, 48)
    assert ("EARLY" in plan.steps[0].constants) <= steady
    run_plan(plan, [w, w, x, scales], [out])
    want = (x * scales[:, None]).bfloat16().double() @ w.double().T
    torch.testing.assert_close(out.double(), want, rtol=1e-4, atol=1e-3)


def test_a_wide_epilogue_works_on_few_columns_at_once():
    config = chosen_config(MatmulSpec(4096, 4096, 1024, hooks=EPILOGUE), H200)
    assert (config.family, config.bn // config.subtiles) == ("tma", 32)


def test_empty_sizes():
    assert plan_matmul(MatmulSpec(m=0, n=4, k=4), H200).steps == ()
    spec = MatmulSpec(m=3, n=20, k=0, out_dtype="fp32", residual="fp32")
    residual = draw((3, 20), "fp32", 16)
    assert torch.equal(run(spec, None, residual), residual)


def test_the_menu_runs():
    spec = MatmulSpec(m=72, n=136, k=192, rhs_transposed=True, hooks=Hooks("acc = acc * 2"))
    menu = configs(spec, H200)
    assert 2 <= len(menu) <= 10 and len(set(menu)) == len(menu)
    want = 2 * product(spec, *operands(spec))
    for config in menu:
        close(spec, run(spec, config, target=H200), want)


def test_misuse_is_named():
    with pytest.raises(ValueError, match="precision"):
        MatmulSpec(m=1, n=1, k=1, precision="high")
    with pytest.raises(ValueError, match="through descriptors"):
        plan_matmul(MatmulSpec(m=64, n=65, k=64), H200, TMA)
    with pytest.raises(ValueError, match="holds 8 rows, not 9"):
        made = MatmulSpec(m=9, n=64, k=64, hooks=Hooks(lhs="a = rk_row"))
        plan_matmul(made, H200, MatmulConfig("gemv", 8, 16, 32))
    with pytest.raises(ValueError, match="cuts its steps"):
        plan_matmul(MatmulSpec(m=64, n=64, k=64), H200, replace(TMA, slices=2))


@pytest.mark.parametrize("m", [72, 40])
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False)])
def test_segments_share_an_accumulator(m, transposed):
    n, sizes = 96, (48, 16, 32)
    lhs_flipped, rhs_flipped = transposed
    specs = [
        MatmulSpec(m, n, k, lhs_transposed=lhs_flipped, rhs_transposed=rhs_flipped) for k in sizes
    ]
    pairs = [
        (
            draw(tuple(reversed((m, s.k))) if lhs_flipped else (m, s.k), "bf16", 2 * i),
            draw(tuple(reversed((s.k, n))) if rhs_flipped else (s.k, n), "bf16", 2 * i + 1),
        )
        for i, s in enumerate(specs)
    ]
    segments = tuple(Segment(s.k, s.strides("lhs"), s.strides("rhs")) for s in specs[1:])
    whole = replace(specs[0], segments=segments)
    config = MatmulConfig("tma", 16, 32, 16, stages=3) if m > 64 else None
    plan = plan_matmul(whole, FEW, config)
    # Few rows take one launch for each segment.
    assert len(plan.steps) == (1 if m > 64 else 3)
    inputs = [x for pair in pairs for x in pair]
    got = torch.zeros(m, n, dtype=torch.bfloat16)
    run_plan(plan, inputs, [got])
    want = sum(product(s, *pair) for s, pair in zip(specs, pairs, strict=True))
    close(replace(whole, k=whole.depth, segments=(), lhs_strides=None), got, want)


def test_segments_in_a_group():
    whole = MatmulSpec(80, 64, 32, segments=(Segment(16, (16, 1), (64, 1)),))
    other = MatmulSpec(96, 32, 64)
    plan = plan_grouped_matmul([whole, other], FEW, TMA)
    assert len(plan.steps) == 1
    inputs = [
        draw(shape, "bf16", i)
        for i, shape in enumerate([(80, 32), (32, 64), (80, 16), (16, 64), (96, 64), (64, 32)])
    ]
    outs = [torch.zeros(80, 64, dtype=torch.bfloat16), torch.zeros(96, 32, dtype=torch.bfloat16)]
    run_plan(plan, inputs, outs)
    a, b, c, d, e, f = [x.double() for x in inputs]
    close(other, outs[0], a @ b + c @ d)
    close(other, outs[1], e @ f)


@pytest.mark.parametrize("processors", [2, 5, 132])
def test_grouped_products(processors):
    # Weight gradients x^T dy of several layers, one of them accumulating.
    sizes = [(32, 48), (64, 16), (40, 72), (16, 32)]
    specs = [
        MatmulSpec(m=m, n=n, k=64, lhs_transposed=True, out_dtype="fp32", accumulate=i == 2)
        for i, (m, n) in enumerate(sizes)
    ]
    inputs = [x for s in specs for x in operands(s)]
    config = MatmulConfig("tma", 16, 32, 16, halves=True)
    plan = plan_grouped_matmul(specs, replace(H200, processors=processors), config)
    assert len(plan.steps) == 1 and (plan.inputs, plan.outputs) == (8, 4)
    outputs = [torch.full((s.m, s.n), 3.0) for s in specs]
    run_plan(plan, inputs, outputs)
    for i, spec in enumerate(specs):
        want = product(spec, *inputs[2 * i : 2 * i + 2]) + (3 if spec.accumulate else 0)
        close(spec, outputs[i], want)


def rounds_of(plan: Plan) -> Plan:
    """The plan for a device whose processors another kernel shares."""
    return replace(plan, steps=tuple([step.in_rounds() for step in plan.steps]))


@pytest.mark.parametrize("m", [70, 1030])
@pytest.mark.parametrize(("batch", "split_k", "flatten"), [((), 1, True), ((2,), 2, False)])
def test_products_in_rounds(m, batch, split_k, flatten):
    spec = MatmulSpec(m=m, n=136, k=64, batch=batch)
    config = replace(TMA, split_k=split_k, flatten=flatten)
    whole = plan_matmul(spec, FEW, config)
    plan = rounds_of(whole)
    tiles = math.ceil(m / 16) * 5 * math.prod(batch) * split_k
    chunk = plan.steps[0].constants["CHUNK"]
    assert whole.steps[0].grid[0] == 3 and chunk == max(1, tiles // 36)
    starts = {b + r for b in range(0, tiles, 3 * chunk) for r in range(3) if b + r < tiles}
    assert plan.steps[0].grid[0] == len(starts)
    inputs = operands(spec)
    got = torch.zeros(*batch, m, 136, dtype=torch.bfloat16)
    run_plan(plan, inputs, [got])
    close(spec, got, product(spec, *inputs))


@pytest.mark.parametrize("processors", [2, 5, 7])
def test_grouped_products_in_rounds(processors):
    specs = [
        MatmulSpec(m=m, n=n, k=64, out_dtype="fp32") for m, n in [(70, 40), (16, 32), (530, 104)]
    ]
    plan = plan_grouped_matmul(specs, replace(H200, processors=processors), TMA)
    (launch,) = rounds_of(plan).steps
    assert launch.tiles == 10 + 1 + 34 * 4 and launch.grid[0] > 4 * processors
    inputs = [x for s in specs for x in operands(s)]
    outputs = [torch.zeros(s.m, s.n) for s in specs]
    run_plan(rounds_of(plan), inputs, outputs)
    for i, spec in enumerate(specs):
        close(spec, outputs[i], product(spec, *inputs[2 * i : 2 * i + 2]))


def test_what_has_a_program_for_each_tile_has_no_rounds():
    few = MatmulSpec(m=16, n=32, k=64)
    for plan in [plan_matmul(MatmulSpec(m=70, n=136, k=64), FEW, POINTER),
                 plan_matmul(few, FEW, TMA)]:  # fmt: skip
        assert rounds_of(plan) == plan


def test_grouped_products_without_descriptors():
    specs = [
        MatmulSpec(m=20, n=15, k=33),
        MatmulSpec(m=8, n=40, k=512, hooks=Hooks("acc = acc * 2")),
    ]
    inputs = [x for s in specs for x in operands(s)]
    outputs = [torch.empty(s.m, s.n, dtype=torch.bfloat16) for s in specs]
    run_plan(plan_grouped_matmul(specs, H200), inputs, outputs)
    close(specs[0], outputs[0], product(specs[0], *inputs[:2]))
    close(specs[1], outputs[1], 2 * product(specs[1], *inputs[2:]))
    with pytest.raises(ValueError, match="share element types"):
        plan_grouped_matmul([specs[0], MatmulSpec(m=8, n=8, k=8, out_dtype="fp32")], H200)


def test_the_group_of_a_layer_fills_the_machine():
    d, q, kv, f, tokens = 1024, 2048, 1024, 3072, 16384
    shapes = [(d, q), (d, kv), (d, kv), (q, d), (d, f), (d, f), (f, d)]
    specs = [
        MatmulSpec(m=m, n=n, k=tokens, lhs_transposed=True, out_dtype="fp32") for m, n in shapes
    ]
    plan = plan_grouped_matmul(specs, H200)
    assert len(plan.steps) == 1 and plan.steps[0].grid == (132, 1, 1)
    assert (plan.inputs, plan.outputs, plan.workspaces) == (14, 7, ())


@pytest.mark.parametrize("rows", [1, 2])
def test_few_rows_are_gemvs_unless_long_and_down_columns(rows):
    """Down the columns of 4096 x 4096 an H200 took 16.3 us for one row by a gemv, 12.8 in tiles; a
    short gemv shares a launch with its neighbours."""

    def family(n, k, strides):
        return chosen_config(MatmulSpec(rows, n, k, rhs_strides=strides), H200).family

    assert family(4096, 4096, (4096, 1)) == "tma"
    assert family(4096, 4096, (1, 4096)) == "gemv"
    assert family(512, 512, (512, 1)) == "gemv"
