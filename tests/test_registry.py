"""Every primitive has every rule and a row in `tests/primitives/table.py`, by which it passes."""

from __future__ import annotations

import importlib
import pathlib
import pkgutil

import jax
import numpy as np
import pytest

import genesis_fn.lax
import genesis_fn.numpy
import genesis_fn.transforms
from genesis_fn.backends.cpu.lower import has_lowering
from genesis_fn.core.jaxpr import Jaxpr, check, e_jaxprs
from genesis_fn.core.primitive import PRIMITIVES, Primitive, typeof
from genesis_fn.transforms.custom.fused_functions import FUSED, fused
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.precision.autocast import amp
from genesis_fn.transforms.staging.stage_trace import stage
from tests.primitives import check as checks
from tests.primitives.check import as_list, is_inexact, listed, random, to_array, to_numpy, vjp
from tests.primitives.table import ROWS

for _module in pkgutil.walk_packages(genesis_fn.transforms.__path__, "genesis_fn.transforms."):
    importlib.import_module(_module.name)

# Primitives that hold programs or functions, act on named axes or have effects, and the tests that
# hold them.
ELSEWHERE = {
    "jit": "transforms/test_jit.py", "precision_region": "transforms/test_amp.py",
    "wide_region": "amp/test_autocast_lists.py",
    "custom_call": "transforms/test_custom.py", "scan": "transforms/test_scan.py",
    "while": "transforms/test_loops.py", "cond": "transforms/test_cond.py",
    "fused": "transforms/test_fused.py",
    "checkpoint": "transforms/test_checkpoint.py",
    "name": "transforms/test_checkpoint.py",
    **dict.fromkeys(
        ("psum", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "ppermute",
         "axis_index"), "transforms/test_collectives.py",
    ),
    # The pieces of a max pooling's derivative.
    **dict.fromkeys(("window_offset", "window_take", "window_put"), "primitives/test_windows.py"),
}  # fmt: skip
ELSEWHERE |= {
    "if_active": "transforms/test_active_lanes.py",
    "torch_call": "transforms/test_foreign.py",
    "triton_call": "transforms/test_foreign.py",
    "pure_callback": "transforms/test_callback.py",
    "random_wrap": "random/test_keys.py",
    "random_unwrap": "random/test_keys.py",
    "power_of_integers": "primitives/test_specials.py",
    **dict.fromkeys(
        ("psum_invariant", "pvary", "assume_invariant", "all_gather_invariant"),
        "sharding/test_collective_derivatives.py",
    ),
    "shard_map": "sharding/test_outside.py",
    "sharding_constraint": "sharding/test_partition.py",
}


def test_every_primitive_has_a_row_or_a_test_of_its_own():
    here = pathlib.Path(__file__).parent
    without = [
        name
        for name, p in PRIMITIVES.items()
        if name not in ROWS
        and name not in ELSEWHERE
        and not name.startswith("test_")
        and not p.effect
    ]
    assert not without, f"give {without} a row in tests/primitives/table.py"
    assert all((here / path).exists() for path in ELSEWHERE.values())
    assert [name for name in (*ROWS, *ELSEWHERE) if name not in PRIMITIVES] == []


@pytest.mark.parametrize("name", ROWS)
def test_rules(name):
    prim = PRIMITIVES[name]
    assert callable(prim.shape)
    assert callable(prim.linearize), "a primitive without a tangent says so by no_tangent"
    assert callable(prim.batch)
    assert prim.precision in ("low", "high", "follow")
    assert has_lowering(prim), f"{name} has no torch function in backends/cpu/lowerings/"


def primitives_of(jaxpr: Jaxpr) -> set[Primitive]:
    """All primitives of a program."""
    found = {e.prim for e in jaxpr.eqns}
    return found.union(*(primitives_of(j) for e in jaxpr.eqns for j in e_jaxprs(e)))


@pytest.mark.parametrize("name", ROWS)
def test_row(name):
    for row in ROWS[name]:
        with jax.enable_x64(True):
            f, inputs, exact = row.f, row.inputs, 1e-9
            checks.check_value(f, row.reference, *inputs, tolerance=exact)
            xs = list(map(to_array, inputs))
            program, _ = stage(listed(f), [typeof(x) for x in xs])
            assert PRIMITIVES[name] in primitives_of(check(program)), "the row exercises it"
            checks.check_staged(f, *inputs, tolerance=exact)
            jitted = as_list(jit(f)(*xs))
            checks.assert_all_same(jitted, as_list(f(*xs)), "jit", exact)
            if row.batch and inputs:
                checks.check_batched(f, *inputs, tolerance=exact)
            if row.order:
                derivatives(f, inputs, row.order, row.tolerance)
                if row.batch:
                    checks.check_batched_vjp(f, *inputs, tolerance=exact)


def derivatives(f, inputs, order: int, tolerance: float) -> None:
    """jvp and vjp by differences; at order 2 those of the vjp, by inputs and cotangents."""
    checks.check_numeric(f, *inputs, tolerance=tolerance)
    if order > 1:
        n = len(inputs)
        outs = [to_numpy(o) for o in as_list(f(*map(to_array, inputs)))]
        cts = [random(o.shape, o.dtype, seed=60 + i) for i, o in enumerate(outs)]
        back = lambda *args: vjp(f, args[:n], args[n:])
        checks.check_numeric(back, *inputs, *cts, tolerance=tolerance)


CLASSES = {"low": ("dot_general", "conv_general_dilated"), "high": ("exp", "reduce_sum", "cumsum"),
           "follow": ("add", "mul", "max", "transpose", "select")}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ROWS))
def test_precision_class_decides_the_dtype(name):
    """Under amp a row with float32 inputs runs its primitive in the dtype of its class."""
    row = ROWS[name][0]
    prim = PRIMITIVES[name]
    if not row.inputs or not any(is_inexact(x) and x.dtype.kind == "f" for x in row.inputs):
        assert prim.precision in ("low", "high", "follow")
        return
    inputs = [x.astype(np.float32) if x.dtype == np.float64 else x for x in row.inputs]
    try:
        program, _ = stage(
            amp(lambda *xs: tuple(as_list(row.f(*xs)))), [typeof(to_array(x)) for x in inputs]
        )
    except TypeError as error:  # rows that fix float64 themselves
        assert "dtype" in str(error)
        return
    kinds = {
        i.aval.dtype.name
        for e in _flat(program)
        if e.prim is prim
        for i in e.ins
        if hasattr(i, "aval") and i.aval.dtype.kind in "fV"
    }
    if kinds - {"float64"}:
        assert kinds - {"float64"} == {"bfloat16" if prim.precision == "low" else "float32"}


def _flat(jaxpr: Jaxpr):
    for e in jaxpr.eqns:
        yield e
        for sub in e_jaxprs(e):
            yield from _flat(sub)


def test_classes_of_well_known_operations():
    for cls, names in CLASSES.items():
        for name in names:
            assert PRIMITIVES[name].precision == cls, name


@pytest.mark.parametrize("time", ["once", "again"])
def test_what_a_test_defines_is_gone_after_it(time):
    Primitive("test_of_one_test", lambda x: x)
    assert "test_of_one_test" in PRIMITIVES
    fused("test_of_one_test")(lambda x: x)
    assert "test_of_one_test" in FUSED
