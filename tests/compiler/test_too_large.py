"""Steps whose kernel would be too large: they are tried again only when a merge has changed one."""

from __future__ import annotations

from typing import Any

import pytest

import genesis_fn.numpy as gnp
from genesis_fn.compiler.fusion import fuse
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.transforms.staging.stage_trace import stage


def test_a_pair_in_the_other_order_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any, *ys: Any) -> tuple[Any, ...]:
        first = x + ys[0]
        between = gnp.sin(x)
        for y in ys[13:]:
            between = between * y
        # One kernel with `first`, which begins before `between` and runs behind it.
        last = first * 2
        for y in ys[1:13]:
            last = last + y
        return first, between, last

    jaxpr, _ = stage(f, [aval((4096, 64), dtypes.F32)] * 27)
    calls, once = [], fuse._FusionState.try_merge

    def counted(self: Any, *args: Any) -> bool:
        calls.append(args)
        assert len(calls) < 1000, "the same steps again and again"
        return once(self, *args)

    monkeypatch.setattr(fuse._FusionState, "try_merge", counted)
    groups = fuse.fuse_jaxpr(simplify_jaxpr(jaxpr), H200).groups
    assert len(groups) == 2  # both would load 27 arrays
