"""The kernels around libraries' routines, against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from genesis_fn.kernels.linalg.matrices import (
    Addresses,
    MatrixNumbers,
    Transpose,
    plan_addresses,
    plan_flaws,
    plan_poison,
    plan_transpose,
)
from genesis_fn.kernels.linalg.pivots import RowSwaps, plan_permutation
from genesis_fn.kernels.linalg.reflectors import Reflectors, plan_reflectors
from genesis_fn.kernels.linalg.vectors import (
    ComplexNumbers,
    Signs,
    Vectors,
    plan_align_signs,
    plan_complex_vectors,
    plan_conjugate,
)
from genesis_fn.kernels.plan import BufferArg, Launch, Plan, Scalar
from tests.kernels.run import TARGET, run_plan

KINDS = {
    "float32": torch.float32, "float64": torch.float64,
    "complex64": torch.complex64, "complex128": torch.complex128,
}  # fmt: skip
# One element, rows and columns alone, small matrices of which programs take several, of counts
# that these do not divide, and several tiles.
STACKS = [
    (3, 1, 1), (3, 1, 1100), (2, 1100, 1), (19, 8, 8), (5, 16, 16), (7, 9, 13), (3, 5, 7),
    (3, 31, 33), (3, 40, 33), (3, 100, 3),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count, rows, columns", STACKS)
def test_transposes(kind, count, rows, columns):
    torch.manual_seed(rows)
    x = torch.randn(count, rows, columns, dtype=KINDS[kind])
    y = torch.empty(count, columns, rows, dtype=KINDS[kind])
    run_plan(plan_transpose(Transpose(count, rows, columns, kind), TARGET), [x], [y])
    assert torch.equal(y, x.mT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("triangle", ["upper", "lower"])
@pytest.mark.parametrize("count, rows, columns", [(3, 40, 33), (5, 16, 16), (19, 4, 7), (2, 9, 70)])
def test_transposes_of_triangles_and_failures(kind, triangle, count, rows, columns):
    torch.manual_seed(rows)
    x = torch.randn(count, rows, columns, dtype=KINDS[kind])
    y = torch.empty(count, columns, rows, dtype=KINDS[kind])
    cut = torch.triu if triangle == "upper" else torch.tril
    run_plan(
        plan_transpose(Transpose(count, rows, columns, kind, triangle=triangle), TARGET), [x], [y]
    )
    assert torch.equal(y, cut(x).mT)
    info = torch.zeros(count, dtype=torch.int32)
    info[1], info[-1] = 7, -1
    spec = Transpose(count, rows, columns, kind, triangle=triangle, poisoned=True)
    run_plan(plan_transpose(spec, TARGET), [x, info], [y])
    whole, failed = info == 0, y[info != 0]
    assert torch.equal(y[whole], cut(x).mT[whole])
    kept = cut(torch.ones(rows, columns)).mT != 0
    assert failed[:, kept].isnan().all() and (failed[:, ~kept] == 0).all()


@pytest.mark.parametrize("kind", ["float32", "complex128"])
@pytest.mark.parametrize("bits", ["i32", "i64"])
def test_a_transpose_reads_and_writes_parts_of_wider_matrices(kind, bits):
    x, y = torch.randn(5, 6, 10, dtype=KINDS[kind]), torch.zeros(5, 20, dtype=KINDS[kind])
    spec = Transpose(5, 3, 4, kind, source_stride=10, source_matrix=60, out_matrix=20)
    run_plan(_with_strides(plan_transpose(spec, TARGET), bits), [x], [y])
    assert torch.equal(y[:, :12].reshape(5, 4, 3), x[:, :3, :4].mT) and (y[:, 12:] == 0).all()


def _with_strides(plan: Plan, bits: str) -> Plan:
    """The plan of one launch, of strides of so many bits."""
    (launch,) = plan.steps
    assert isinstance(launch, Launch)
    typed = {
        name: Scalar(a.value, bits) if name.endswith(("_stride", "_matrix")) else a
        for name, a in launch.arguments.items()
        if isinstance(a, (BufferArg, Scalar))
    }
    return replace(plan, steps=(replace(launch, arguments=typed),))


def test_strides_have_the_bits_that_offsets_within_a_tile_take():
    def bits(*shape: int, **layout: int) -> tuple[str, ...]:
        (launch,) = plan_transpose(Transpose(*shape, "complex128", **layout), TARGET).steps
        return tuple(launch.arguments[f"{end}_stride"].dtype for end in ("source", "out"))

    # A matrix and a tile of 32 rows, both of so many elements of two words, reach 2^31.
    assert bits(1, 32, 2**23) == ("i32", "i32")
    assert bits(1, 32, 2**24) == ("i64", "i32")
    assert bits(1, 2**24, 32) == ("i32", "i64")
    assert bits(2, 2, 2, source_matrix=2**31) == ("i64", "i32")


def test_addresses_are_a_stride_apart():
    table = torch.empty(300, dtype=torch.int64)
    run_plan(plan_addresses(Addresses(300, 48), TARGET), [torch.empty(8)], [table])
    assert (table.diff() == 48).all()


def test_flaws_and_poison():
    x = torch.randn(4, 5000)
    x[1, 4321], x[2, 17] = torch.nan, torch.inf
    numbers = MatrixNumbers(4, 5000, "fp32")
    for infinities, want in ((False, [0, 1, 0, 0]), (True, [0, 1, 1, 0])):
        info = torch.zeros(4, dtype=torch.int32)
        run_plan(plan_flaws(numbers, TARGET, infinities=infinities), [x], [info])
        assert info.tolist() == want
    y = torch.ones(4, 5000)
    run_plan(plan_poison(numbers, TARGET), [info], [y])
    assert y[1:3].isnan().all() and (y[::3] == 1).all()
    run_plan(plan_poison(numbers, TARGET, 0.0), [info], [y])
    assert (y[1:3] == 0).all()


@pytest.mark.parametrize("name, dtype", [("i32", torch.int32), ("i64", torch.int64)])
def test_permutations(name, dtype):
    rng = np.random.default_rng(0)
    swaps = np.stack([[rng.integers(i, 9) for i in range(6)] for _ in range(3)]) + 1
    pivots, order = torch.empty(3, 6, dtype=torch.int32), torch.empty(3, 9, dtype=torch.int32)
    spec = RowSwaps(3, 9, 6, name)
    run_plan(plan_permutation(spec, TARGET), [torch.tensor(swaps, dtype=dtype)], [pivots, order])
    for given, found, rows in zip(swaps, pivots.tolist(), order.tolist()):
        want = list(range(9))
        for i, j in enumerate(given - 1):
            want[i], want[j] = want[j], want[i]
        assert rows == want and found == (given - 1).tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_reflectors_make_q(dtype):
    torch.manual_seed(0)
    x = torch.randn(2, 7, 4, dtype=dtype)
    factors, scales = torch.geqrf(x)
    held = factors.mT.contiguous()
    q = torch.empty(2, 7, 5, dtype=dtype)
    spec = Reflectors(2, 7, 5, 4, 28, "fp64", dtype.is_complex)
    run_plan(plan_reflectors(spec, TARGET), [held, scales], [q])
    assert torch.allclose(q[..., :4] @ factors[..., :4, :].triu(), x)
    assert torch.allclose(q.mH @ q, torch.eye(5, dtype=dtype))
    with pytest.raises(ValueError, match="at most 512 rows"):
        Reflectors(2, 513, 5, 4, 28, "fp64")


def test_signs_conjugates_and_complex_vectors():
    factors, vectors = torch.randn(2, 3, 4), torch.randn(2, 3, 5)
    want = vectors * factors.diagonal(dim1=1, dim2=2).sign()[..., None]
    spec = Signs(2, 5, 3, 4, 12, "fp32")
    run_plan(plan_align_signs(spec, TARGET), [factors], [vectors])
    assert torch.equal(vectors, want)
    z = torch.randn(1500, dtype=torch.complex64)
    turned = z.clone()
    run_plan(plan_conjugate(ComplexNumbers(1500, "fp32"), TARGET), [], [turned])
    assert torch.equal(turned, z.conj().resolve_conj())
    x = torch.tensor([[0.0, 2.0, 0.5], [-1.0, 0.3, 0.1], [0.2, 0.4, 1.5]], dtype=torch.float64)
    w, v = torch.linalg.eig(x)
    assert (w.imag != 0).any()
    packed = torch.where(w.imag < 0, -v.imag, v.real).mT.contiguous()
    found = torch.empty(3, 3, dtype=torch.complex128)
    plan = plan_complex_vectors(Vectors(1, 3, "fp64"), TARGET)
    run_plan(plan, [packed, torch.view_as_real(w).contiguous()], [found])
    assert torch.allclose(found, v)
