"""What programs store, and what their kernels compute again: kernels and bytes as planned for an
H200. Nothing is computed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import genesis_fn as g
import genesis_fn.numpy as gnp
from genesis_fn import lax
from genesis_fn.compiler.fusion.fuse import fuse_jaxpr
from genesis_fn.compiler.fusion.group import FusionGroup
from genesis_fn.compiler.fusion.loop_steps import joined_iterations
from genesis_fn.compiler.options import without
from genesis_fn.compiler.rewrites.computed import computed_reductions
from genesis_fn.compiler.rewrites.overlays import overlay_p, overlays
from genesis_fn.compiler.rewrites.rotations import rotate_p, rotations
from genesis_fn.compiler.simplify.simplify import simplify_jaxpr
from genesis_fn.compiler.target import H200
from genesis_fn.core import dtypes, tree
from genesis_fn.core.aval import Aval, aval
from genesis_fn.core.backend import index as ix
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.transforms.control_flow.scanning import scan_p
from genesis_fn.transforms.staging.stage_trace import stage

N = 4096  # bodies


def array(*shape: int) -> Aval:
    return aval(shape, dtypes.F32)


def planned(
    f: Callable[..., Any], avals: Sequence[Aval], then: Callable[[Jaxpr], Jaxpr] = lambda x: x
) -> list[FusionGroup]:
    jaxpr, _ = stage(lambda *xs: tree.leaves(f(*xs)), avals)
    return fuse_jaxpr(computed_reductions(then(rotations(simplify_jaxpr(jaxpr)))), H200).groups


def traffic(groups: Sequence[FusionGroup]) -> int:
    return sum([x.traffic for x in groups])


def energy(x: Any) -> Any:
    d = x[:, None, :] - x[None, :, :]
    return gnp.sum(1 / gnp.sqrt(gnp.sum(d * d, -1) + 0.01))


def forces(x: Any, mass: Any) -> Any:
    d = x[None, :, :] - x[:, None, :]
    r2 = gnp.sum(d * d, -1) + 0.01
    return gnp.sum(d * (mass[None, :] * r2**-1.5)[:, :, None], 1)


def kernel_matrix(x: Any, y: Any) -> Any:
    return gnp.exp(-((x[:, None] - y[None, :]) ** 2))


def group_norm(x: Any, w: Any, b: Any) -> Any:
    y = gnp.reshape(x, (*x.shape[:3], 32, -1))
    y = y - gnp.mean(y, (1, 2, 4), keepdims=True)
    y = y / gnp.sqrt(gnp.mean(y * y, (1, 2, 4), keepdims=True) + 1e-5)
    return gnp.reshape(y, x.shape) * w + b


# ---- pairs ----


def test_energy_and_forces_store_no_pairs() -> None:
    groups = planned(g.value_and_grad(energy), [array(N, 3)])
    assert len(groups) <= 2 and traffic(groups) <= 1 << 20
    # In other forms of the same program they are 4 bytes of every pair, several times.
    with without("computed", "recompute"):
        assert traffic(planned(g.value_and_grad(energy), [array(N, 3)])) > 4 * 4 * N * N


def test_forces_are_one_kernel() -> None:
    (one,) = planned(forces, [array(N, 3), array(N)])
    assert one.traffic <= 1 << 20 and one.domain is not None
    assert one.domain.axes == ((N, False), (N, True))
    # What components share is computed once: a power for each pair.
    assert one.kernel is not None
    powers = [i for i in one.kernel.instrs if i.op == "map" and i.meta[0].name == "pow"]
    assert len(powers) == 1


def test_sums_over_rows_and_columns_of_pairs_share_a_kernel() -> None:
    def f(x, y):
        k = kernel_matrix(x, y)
        return gnp.sum(k, 0), gnp.sum(k, 1), gnp.sum(k)

    groups = planned(f, [array(N), array(N)])
    assert len(groups) <= 2 and traffic(groups) <= 1 << 20


def test_a_square_of_a_reversed_difference_is_computed_once() -> None:
    f = lambda x: [gnp.sum(kernel_matrix(x, x), axis) for axis in (0, 1)]
    (one,) = planned(f, [array(N)])
    assert one.kernel is not None
    assert len([i for i in one.kernel.instrs if i.op == "map" and i.meta[0].name == "exp"]) == 1


def test_what_is_read_keeps_its_reductions() -> None:
    # An array in memory is read along its rows: no reduction of it takes another form.
    def f(x):
        return gnp.sum(x, 0), gnp.sum(x * x), gnp.max(x[:, :, None] + 1, 1)

    jaxpr = simplify_jaxpr(stage(f, [array(N, 512)])[0])
    assert computed_reductions(jaxpr).eqns == jaxpr.eqns


def test_pairs_that_a_product_reads_are_read_along_their_rows() -> None:
    # The matrix is in memory: sums over its columns go down them, and not along rows of another.
    def f(x, y, v):
        k = kernel_matrix(x, y)
        return k @ v, gnp.sum(k, 0)

    jaxpr = simplify_jaxpr(stage(f, [array(N), array(N), array(N, 64)])[0])
    assert computed_reductions(jaxpr).eqns == jaxpr.eqns


# ---- values of few rows ----


def scaled(x: Any, s: Any) -> Any:
    """Groups of channels divided by their deviations, of which there are few."""
    return x * lax.rsqrt(s / 32768 + 1e-5)[:, None, :, None]


def test_deviations_of_few_groups_are_computed_once() -> None:
    few, many = planned(scaled, [array(16, N, 32, 8), array(16, 32)])
    assert few.traffic == 2 * 4 * 16 * 32 and many.kernel is not None
    assert "rsqrt" not in [i.meta[0].name for i in many.kernel.instrs if i.op == "map"]


def test_deviations_that_few_elements_read_are_computed_for_each() -> None:
    assert len(planned(scaled, [array(16, 64, 32, 8), array(16, 32)])) == 1


def test_a_reshaped_input_is_read_where_it_is() -> None:
    f = lambda x, s: x * (gnp.reshape(s, (16, 1, 32, 1)) / 3)
    groups = planned(f, [array(16, N, 32, 8), array(512)])
    assert traffic(groups) < 2.1 * 4 * 16 * N * 256
    f = lambda s: gnp.broadcast_to(gnp.reshape(s, (16, 1, 32)), (16, N, 32)) + 1
    assert len(planned(f, [array(512)])) == 1


# ---- rotations and stencils ----


def test_a_step_of_relaxation_is_one_kernel_of_five_loads() -> None:
    def step(x, b):
        around = [gnp.roll(x, k, axis) for k, axis in itertools.product((1, -1), (0, 1))]
        return 0.25 * (sum(around) + b)

    (one,) = planned(step, [array(N, N), array(N, N)])
    assert one.traffic == 3 * 4 * N * N and one.kernel is not None
    ops = [i.op for i in one.kernel.instrs]
    assert ops.count("load") == 5 and "where" not in ops
    with without("rotations"):
        (two,) = planned(step, [array(N, N), array(N, N)])
    assert two.kernel is not None and [i.op for i in two.kernel.instrs].count("load") == 9


def relaxed(steps: int, n: int) -> Jaxpr:
    """A program of so many steps on n x n points, its iterations joined."""

    def step(_: Any, x: Any, b: Any) -> Any:
        around = [gnp.roll(x, k, axis) for k, axis in itertools.product((1, -1), (0, 1))]
        return 0.25 * (sum(around) + b)

    run = lambda x, b: [lax.fori_loop(0, steps, lambda i, x: step(i, x, b), x)]
    return joined_iterations(simplify_jaxpr(stage(run, [array(n, n)] * 2)[0]), H200)


def test_two_steps_of_relaxation_are_one_kernel() -> None:
    (loop,) = [e for e in relaxed(100, N).eqns if e.prim is scan_p]
    assert loop.params["length"] == 50
    (one,) = fuse_jaxpr(rotations(loop.params["jaxpr"]), H200).groups
    assert one.traffic == 3 * 4 * N * N and one.kernel is not None
    assert [i.op for i in one.kernel.instrs].count("load") == 9 + 5
    # A step that is left is a loop of its own; small arrays are in the cache anyway.
    lengths = [e.params["length"] for e in relaxed(7, N).eqns if e.prim is scan_p]
    assert lengths == [3, 1]
    assert [e.params["length"] for e in relaxed(7, 64).eqns if e.prim is scan_p] == [7]
    with without("loop_steps"):
        assert [e.params["length"] for e in relaxed(7, N).eqns if e.prim is scan_p] == [7]


def test_paddings_by_the_other_side_are_rotations() -> None:
    around = lambda x: [gnp.pad(x, ((1, 2), (3, 1)), mode="wrap")]
    program = rotations(simplify_jaxpr(stage(around, [array(8, 32)])[0]))
    assert [e.params["size"] for e in program.eqns if e.prim is rotate_p] == [11, 36]
    twice = lambda x: [gnp.concatenate([x[4:], x[:9], x[2:]], 0)]
    assert rotate_p not in [e.prim for e in rotations(stage(twice, [array(9, 4)])[0]).eqns]


def test_updates_of_all_but_a_border_are_overlays() -> None:
    def updated(x: Any, y: Any) -> Any:
        return [x.at[1:-1, 1:-1].set(y[1:-1, 1:-1] * 2), x.at[:3].set(y[:3] * 2)]

    program = overlays(simplify_jaxpr(stage(updated, [array(64, 64)] * 2)[0]))
    assert [e.prim for e in program.eqns].count(overlay_p) == 1
    one, *_ = planned(lambda x, y: updated(x, y)[0], [array(64, 64)] * 2, overlays)
    assert one.kernel is not None and one.eqn is None


@pytest.mark.parametrize("shift", [N // 2, N // 4])
def test_equal_parts_stay_concatenations(shift: int) -> None:
    jaxpr = simplify_jaxpr(stage(lambda x: [gnp.roll(x, shift, 1)], [array(8, N)])[0])
    assert rotations(jaxpr) is jaxpr


# ---- norms ----


def test_group_norm_reads_activations_once() -> None:
    x = array(16, 64, 64, 128)
    (one,) = planned(group_norm, [x, array(128), array(128)])
    assert one.traffic <= 2 * x.nbytes + (1 << 20)


def test_the_backward_pass_of_group_norm_stores_nothing_between() -> None:
    x = array(16, 64, 64, 128)
    f = lambda x, w, b, ct: g.vjp(group_norm, x, w, b)[1](ct)
    groups = planned(f, [x, array(128), array(128), x])
    # Of the input: reads x and ct, writes one. Of the weights: reads both.
    assert len(groups) == 2 and traffic(groups) <= 5 * x.nbytes + (1 << 20)
    with without("recompute"):
        assert traffic(planned(f, [x, array(128), array(128), x])) >= traffic(groups)


# ---- costs ----


def two_kernels(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Sums over rows and columns of f(x), which are too long to share a kernel."""

    def sums(x: Any) -> Any:
        y = f(x)
        return gnp.sum(y, (0, 2)), gnp.sum(y, (1, 3))

    return sums


def test_what_is_cheap_is_computed_twice_and_what_is_not_is_stored() -> None:
    shape = array(64, 64, 64, 64)
    cheap = planned(two_kernels(lambda x: gnp.exp(x) + x), [shape])
    assert sum([x.traffic for x in cheap if x.domain is not None]) <= 2.1 * shape.nbytes

    def dear(x):
        for _ in range(12):
            x = gnp.sin(x) * gnp.exp(x)
        return x

    groups = planned(two_kernels(dear), [shape])
    assert traffic(groups) >= 2.9 * shape.nbytes


def test_a_value_of_many_operands_is_stored() -> None:
    # Computed again it would be four arrays to read in place of one.
    def f(a, b, c, d):
        return two_kernels(lambda x: x + b * c - d)(a)

    shape = array(64, 64, 64, 64)
    assert traffic(planned(f, [shape] * 4)) <= 6.1 * shape.nbytes


def test_each_level_of_an_associative_scan_is_stored_at_most_once() -> None:
    def f(a, b):
        combine = lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1])
        return [lax.associative_scan(combine, (a, b), axis=1)[1]]

    x = array(4096, 4096)
    # The recursion, as where the function is no formula.
    levels = simplify_jaxpr(stage(f, [x, x])[0], lambda e: False)
    # Up: reads a level and writes the next. Down: reads what up wrote and half of the level.
    up, down = 2 * (2 + 1), 1 + 0.5 + 0.5 + 1
    assert traffic(fuse_jaxpr(levels, H200).groups) <= (up + down * 2 + 3) * x.nbytes


# ---- index algebra ----


def test_quotients_of_rows_lose_the_place_in_a_row() -> None:
    p, r = ix.var("p", 64), ix.var("r", 32)
    e = ix.shift(ix.add(ix.scale(p, 32), r), 96)
    assert ix.div(e, 64) == ix.div(ix.shift(p, 3), 2)
    for c in (16, 24, 32, 48, 64, 128):
        quotient, remainder = ix.div(e, c), ix.mod(e, c)
        for at in [{"p": i, "r": j} for i in (0, 1, 5, 63) for j in (0, 7, 31)]:
            assert quotient.evaluate(at) == e.evaluate(at) // c
            assert remainder.evaluate(at) == e.evaluate(at) % c
