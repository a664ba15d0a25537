"""Generated kernels that Triton cannot compile as they are."""

from __future__ import annotations

import pytest

from genesis_fn.backends.cuda.binaries import triton_compile
from genesis_fn.backends.cuda.binaries.other_forms import other_forms, stores_early
from genesis_fn.backends.cuda.binaries.triton_compile import CompileError, CompileRequest

KERNEL = """def rows(b0, b1, b2):
    p = tl.arange(0, 16)
    v0 = tl.load(b0 + p)
    v1 = v0 + 1
    if p:
        v2 = v1 * 2
        v3 = v2 * v1
        tl.store(b1 + p, v2)
        v4 = tl.load(b1 + 0)
        tl.store(b2 + p, v1)
        v5 = v4 + 1
        q = p + 1
        tl.store(b2 + q, v4)
    tl.store(b0 + p, v1)"""


def test_stores_move_up_to_their_values_and_pass_no_access() -> None:
    moved = stores_early(KERNEL).split("\n")
    assert sorted(moved) == sorted(KERNEL.split("\n"))
    assert moved[5:13] == [
        "        v2 = v1 * 2",
        "        tl.store(b1 + p, v2)",
        "        v3 = v2 * v1",
        "        v4 = tl.load(b1 + 0)",
        "        tl.store(b2 + p, v1)",
        "        v5 = v4 + 1",
        "        q = p + 1",
        "        tl.store(b2 + q, v4)",
    ]
    assert moved[13] == "    tl.store(b0 + p, v1)"  # not into the branch


def request(kind: str = "text") -> CompileRequest:
    return CompileRequest((kind, "rows", KERNEL), (), (), (), (("num_warps", 4),), 90)


@pytest.mark.parametrize("works", range(6))
def test_forms_are_tried_until_one_compiles(monkeypatch: pytest.MonkeyPatch, works: int) -> None:
    tried = []

    def compiled(wanted: CompileRequest) -> str:
        tried.append((wanted.where[2], dict(wanted.options)["num_warps"]))
        if len(tried) <= works:
            raise CompileError(f"RuntimeError: PassManager::run failed {len(tried)}")
        return "made"

    monkeypatch.setattr(triton_compile, "_compiled", compiled)
    forms = [(KERNEL, 4), *other_forms(KERNEL, 4)]
    assert [w for _, w in forms] == [4, 4, 2, 2, 1, 1]
    assert triton_compile.compiled_by_triton(request()) == "made"
    assert tried == forms[: works + 1]


def test_other_errors_and_kernels_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said, tried = "PassManager::run failed", []

    def compiled(wanted: CompileRequest) -> None:
        tried.append(wanted)
        raise CompileError(f"{said} {len(tried)}")

    monkeypatch.setattr(triton_compile, "_compiled", compiled)
    with pytest.raises(CompileError, match="failed 1$"):  # that of the kernel as it was
        triton_compile.compiled_by_triton(request())
    assert len(tried) == 6
    tried.clear()
    with pytest.raises(CompileError):
        triton_compile.compiled_by_triton(request("module"))
    said = "ptxas"
    with pytest.raises(CompileError, match="ptxas"):
        triton_compile.compiled_by_triton(request())
    assert len(tried) == 2
