"""Launches every hand-written kernel on small shapes, each buffer an allocation of its own.

    python benchmarks/kernels/sanitize.py [FAMILY ...]        # all families
    compute-sanitizer --tool memcheck python benchmarks/kernels/sanitize.py norm

The shapes have odd sizes, tails and more than one block, so that masks and barriers matter. Results
are held to the references of `tests/kernels`. Prints one line for each family.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["GENESIS_CUDA_DRIVER"] = os.environ.get("GENESIS_CUDA_DRIVER", "cuda")
os.environ["TRITON_INTERPRET"] = "01"[os.environ["GENESIS_CUDA_DRIVER"] == "interpret"]
os.environ["GENESIS_DEVICE"] = "cpu"
sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from genesis_fn.compiler.target import H200
from genesis_fn.kernels import block_sort
from genesis_fn.kernels.attention_select import plan_attention, plan_attention_backward
from genesis_fn.kernels.attention_spec import AttentionSpec
from genesis_fn.kernels.cross_entropy import CrossEntropy
from genesis_fn.kernels.language import INTERPRETED
from genesis_fn.kernels.matmul import Config
from genesis_fn.kernels.norm import Norm
from genesis_fn.kernels.scan import Scan
from genesis_fn.kernels.scatter import ScatterRows
from tests.kernels import (
    attention_reference,
    run,
    test_attention,
    test_concat,
    test_conv,
    test_cross_entropy,
    test_linear_cross_entropy,
    test_matmul,
    test_norm,
    test_pool,
    test_random,
    test_scan,
    test_scatter,
    test_softmax,
    test_sort,
)


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


def norm() -> None:
    for spec in (
        Norm(5, 64, "fp32", weight_dtype="fp32"),
        Norm(70, 48, "bf16", "layer", 1e-5, "fp32", "fp32"),
        Norm(2, 17000, "fp32", "layer", 1e-5, "fp32", "fp32"),
    ):
        test_norm.test_forward_and_backward(spec)


def softmax() -> None:
    for kind in test_softmax.KINDS:
        test_softmax.test_forward_and_backward(kind, 70, 100, "bf16")
    test_softmax.test_forward_and_backward("softmax", 2, 17001, "fp32")


def cross_entropy() -> None:
    test_cross_entropy.test_forward_and_backward(CrossEntropy(70, 33, "bf16", ignore_index=-100))
    test_cross_entropy.test_forward_and_backward(
        CrossEntropy(3, 17000, "fp32", label_smoothing=0.1, z_loss=1e-2, soft_cap=9.0)
    )


def linear_cross_entropy() -> None:
    test_linear_cross_entropy.test_loss_and_gradients(test_linear_cross_entropy.CASES[1])


def matmul() -> None:
    tma = Config("tma", 64, 64, 32, stages=3, group=2)
    pointer = Config("pointer", 64, 64, 32, group=2)
    for config in (tma, pointer):
        test_matmul.test_layouts("bf16", False, True, config)
        test_matmul.test_layouts("fp32", True, False, config)
        test_matmul.test_bias_residual_and_accumulation(config, "col")
    test_matmul.test_odd_sizes(100, 7, 129, False)
    test_matmul.test_split_k("tma", 2)
    test_matmul.test_few_rows_without_tensor_cores(5, True)
    test_matmul.test_few_rows_with_swapped_operands("tma", 16)
    test_matmul.test_run_time_sizes_share_one_kernel("tma", 1)
    test_matmul.test_grouped_products(5)


def attention() -> None:
    for name in ("causal", "everything", "tma_causal_tails"):
        test_attention.check(test_attention.CASES[name])


def attention_decode() -> None:
    test_attention.test_decode_matches_the_formula("bf16", 3)
    test_attention.test_decode_matches_the_formula("several_queries", None)


def attention_specialized() -> None:
    """The kernels with specialised warps, which have no interpreter."""
    for spec in (
        AttentionSpec(1, 4, 2, 300, 300, 128, causal=True),
        AttentionSpec(1, 2, 2, 140, 300, 128),
    ):
        inputs = attention_reference.random_inputs(spec)
        shape = (spec.batch, spec.q_len, spec.q_heads, spec.v_dim)
        dout = torch.randn(*shape, generator=torch.Generator().manual_seed(1)).bfloat16()
        wanted = attention_reference.reference_gradients(spec, inputs, dout)
        out, lse = torch.empty_like(dout), torch.empty(spec.batch, spec.q_heads, spec.q_len)
        run.run_plan(plan_attention(spec, H200), list(inputs.values()), [out, lse])
        check_close(out, wanted["out"])
        found = [torch.empty_like(inputs[n]) for n in ("q", "k", "v")]
        backward = plan_attention_backward(spec, H200)
        run.run_plan(backward, [*inputs.values(), out, lse, dout], found)
        for name, value in zip(("dq", "dk", "dv"), found, strict=True):
            check_close(value, wanted[name])


def check_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Assert that attention in bfloat16 is near its float64 reference."""
    distance = test_attention.error(found, wanted)
    assert distance < test_attention.TOLERANCE["bf16"], distance


def scan() -> None:
    test_scan.test_short_lines("add", (3, 37, 1), False)
    test_scan.test_long_lines(Scan(2, 11000, 1, "fp32", "add", True))
    test_scan.test_long_lines(Scan(1, 300, 40, "fp64", "add", True))


def sorting() -> None:
    block, block_sort.BLOCK = block_sort.BLOCK, 64
    try:
        test_sort.test_argsort_of_every_type("fp32", 33)
        test_sort.test_argsort_of_every_type("bf16", 90)
        test_sort.test_several_keys_and_a_payload(100)
        test_sort.test_top_k(300, 4, "fp64")
    finally:
        block_sort.BLOCK = block


def scatter() -> None:
    test_scatter.test_gather("bf16", 40, 70)
    test_scatter.test_operations_on_repeated_indices("add", "operand")
    test_scatter.test_operations_on_repeated_indices("max", "zeros")
    test_scatter.check(
        ScatterRows(300, 40, 100, "bf16", update_dtype="bf16"),
        torch.randint(0, 300, (100,), dtype=torch.int32),
    )
    test_scatter.test_embedding_gradient_adds_to_the_tied_weight()


def convolution() -> None:
    test_conv.test_convolution_and_both_gradients(test_conv.CASES[3])
    test_conv.test_types_and_channels_last("bf16")


def pooling() -> None:
    test_pool.test_max_pool_and_its_gradient(3, 2, 1, 2, True)
    test_pool.test_average_pool_and_its_gradient(3, 2, 1, "valid")


def concatenate() -> None:
    test_concat.test_each_axis_and_type(1, "fp32")
    test_concat.test_sizes([(70, 16), (70, 1)], 1)


def random_bits() -> None:
    test_random.test_bits_are_the_words_of_each_keys_stream(32, 1030)


FAMILIES: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        norm, softmax, cross_entropy, linear_cross_entropy, matmul, attention, attention_decode,
        attention_specialized, scan, sorting, scatter, convolution, pooling, concatenate,
        random_bits,
    )
}  # fmt: skip


def main(names: list[str]) -> int:
    """Runs the families; the number of those that failed."""
    unknown = sorted(set(names) - set(FAMILIES))
    if unknown:
        raise SystemExit(f"no family {', '.join(unknown)}: there are {', '.join(FAMILIES)}")
    if not INTERPRETED:
        run.runtime(0)  # the context that the allocations belong to
        run.allocate = Allocation
    failed = 0
    for name in names or FAMILIES:
        if INTERPRETED and name == "attention_specialized":
            continue
        start = time.perf_counter()
        try:
            FAMILIES[name]()
            outcome = "passed"
        except Exception as error:
            failed += 1
            outcome = f"FAILED: {type(error).__name__}: {str(error)[:300]}"
        print(f"{name}: {outcome} in {time.perf_counter() - start:.1f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
