"""Random programs with views, aliases, loops and branches, for tests of what rewrites them."""

from __future__ import annotations

import random

import numpy as np
import torch

from genesis_fn.backends.cpu.storage import host_view
from genesis_fn.core import dtypes
from genesis_fn.core.aval import aval
from genesis_fn.core.jaxpr import Jaxpr
from genesis_fn.core.primitive import typeof
from genesis_fn.lax.fused.norms import rms_norm
from genesis_fn.primitives import elementwise as ops
from genesis_fn.primitives.dot_general import dot_general
from genesis_fn.primitives.factories import full
from genesis_fn.primitives.indexing.indexing import dynamic_update_slice
from genesis_fn.primitives.reductions.reduce import reduce_max, reduce_sum
from genesis_fn.primitives.shape import (
    broadcast_in_dim,
    concatenate,
    copy,
    iota,
    optimization_barrier,
    pad,
    reshape,
    rev,
    slice_in_dim,
    split,
    transpose,
)
from genesis_fn.transforms.autodiff.checkpointing import checkpoint
from genesis_fn.transforms.control_flow.conditionals import cond
from genesis_fn.transforms.control_flow.loops import while_loop
from genesis_fn.transforms.control_flow.scanning import scan
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.staging.stage_trace import stage

SHAPE = (4, 6)


def random_program(seed: int, size: int = 25) -> Jaxpr:
    """A program of about `size` random operations on three float32 inputs [4, 6] and one vector."""
    rng = random.Random(seed)

    def f(*xs):
        return Maker(rng).run(list(xs), size)

    kinds = [aval(SHAPE, dtypes.F32)] * 3 + [aval(SHAPE[1:], dtypes.F32)]
    return stage(f, kinds)[0]


def random_inputs(seed: int) -> list[torch.Tensor]:
    """Inputs of a random program: one of them a transposed view, two of them sharing memory."""
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(2, *SHAPE, generator=g)
    turned = torch.randn(*SHAPE[::-1], generator=g).t()
    return [base[0], base.view(-1)[12:36].view(SHAPE), turned, torch.randn(SHAPE[1], generator=g)]


class Maker:
    """Draws operations; `values` holds arrays [4, 6], and any of them may be used again."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def run(self, xs: list, size: int) -> list:
        """Some of the values after `size` operations."""
        rng = self.rng
        values = [x if typeof(x).shape == SHAPE else _spread(x) for x in xs]
        values.append(full(SHAPE, rng.choice([0.0, -0.0, 1.0, -1.5]), dtypes.F32))
        for _ in range(size):
            made = self.operation(values)
            values.extend(made if isinstance(made, list) else [made])
        outs = [rng.choice(values) for _ in range(rng.randint(1, 4))]
        return [*outs, values[-1]]

    def operation(self, values: list):
        """One operation on recent values."""
        rng = self.rng
        x, y, z = [rng.choice(values[-6:] if rng.random() < 0.7 else values) for _ in range(3)]
        number = rng.choice([0.0, -0.0, 1.0, -1.0, 2.0, 0.5])
        bounded = ops.tanh(x)
        choices = [
            lambda: ops.add(x, y),
            lambda: ops.sub(x, y),
            lambda: ops.mul(bounded, y),
            lambda: ops.add(x, number),
            lambda: ops.mul(x, number),
            lambda: ops.sub(number, x),
            lambda: ops.max(x, y),
            lambda: ops.max(x, x),
            lambda: ops.neg(ops.neg(x)),
            lambda: ops.neg(x),
            lambda: bounded,
            lambda: ops.abs(x),
            lambda: ops.div(x, ops.add(ops.abs(y), 1.0)),
            lambda: ops.mul(x, ops.logistic(x)),
            lambda: ops.add(x, ops.mul(bounded, z)),
            lambda: ops.sub(x, ops.mul(z, 0.25)),
            lambda: ops.add(ops.mul(x, 0.9), ops.mul(ops.mul(bounded, bounded), 0.1)),
            lambda: ops.select(ops.lt(x, y), x, z),
            lambda: ops.select(ops.lt(x, y), x, number),
            lambda: ops.add_n(x, y, z),
            lambda: ops.add_n(ops.add_n(x, y), z),
            lambda: ops.stop_gradient(x),
            lambda: copy(x),
            lambda: optimization_barrier([x, y]),
            lambda: ops.convert(ops.convert(x, dtypes.F64), dtypes.F32),
            lambda: ops.convert(ops.convert(x, dtypes.BF16), dtypes.F32),
            lambda: reshape(reshape(x, (3, 8)), SHAPE),
            lambda: transpose(transpose(x, (1, 0)), (1, 0)),
            lambda: reshape(transpose(x, (1, 0)), SHAPE),
            lambda: rev(x, (0,)),
            lambda: concatenate([slice_in_dim(x, 2, 4, axis=0), slice_in_dim(y, 0, 2, axis=0)], 0),
            lambda: concatenate(list(reversed(split(x, (2, 4), 1))), 1),
            lambda: ops.add(x, pad(slice_in_dim(y, 1, 3, axis=0), 0.0, ((1, 1, 0), (0, 0, 0)))),
            lambda: _spread(reduce_sum(x, (0,))),
            lambda: _spread(reduce_max(x, (0,))),
            lambda: ops.mul(x, broadcast_in_dim(reduce_sum(bounded, (1,)), SHAPE, (0,))),
            lambda: reduce_sum(reshape(x, (4, 1, 6)), (1,)),
            lambda: ops.add(y, _product(bounded, ops.tanh(y), ops.tanh(z))),
            lambda: ops.add(_product(bounded, ops.tanh(y), z), _spread(reduce_max(y, (0,)))),
            lambda: ops.add_n(x, _product(bounded, ops.tanh(y), z), _product(y, bounded, bounded)),
            lambda: ops.add_n(*[_product(bounded, v, bounded) for v in (x, y, z)]),
            lambda: silu_gradient(x, y),
            lambda: ops.add_n(
                x,
                pad(slice_in_dim(y, 0, 2, axis=1), 0.0, ((0, 0, 0), (4, 0, 0))),
                z,
                pad(slice_in_dim(x, 1, 3, axis=0), 0.0, ((1, 1, 0), (0, 0, 0))),
            ),
            lambda: dynamic_update_slice(x, slice_in_dim(y, 0, 2, axis=0), (1, 0)),
            lambda: dynamic_update_slice(x, slice_in_dim(x, 0, 2, axis=0), (2, 0)),
            lambda: rms_norm(x, reduce_max(y, (0,)), eps=1e-6),
            lambda: ops.mul(x, ops.convert(iota(dtypes.I32, SHAPE, 1), dtypes.F32)),
            lambda: jit(lambda a, b: [ops.add(a, b), a])(x, y),
            lambda: checkpoint(lambda a: ops.mul(ops.sin(a), a))(x),
            lambda: self.scan(x, y, z),
            lambda: self.loop(x, y),
            lambda: self.branch(x, y, z),
        ]
        return rng.choice(choices)()

    def scan(self, x, y, z):
        """A scan with a moving, a fixed and an unused carry, and invariant work inside."""
        rng = self.rng
        keep, reverse = rng.random() < 0.5, rng.random() < 0.5

        def body(carry, row):
            a, b, count, fixed = carry
            inside = ops.mul(ops.tanh(z), fixed)
            a2 = ops.add(ops.mul(a, 0.5), broadcast_in_dim(row, SHAPE, (1,)))
            out = ops.add(a2, inside)
            if rng_choice == 0:
                return (out, a, ops.add(count, 1.0), fixed), (row, reduce_sum(out, (1,)), fixed)
            return (b, ops.mul(out, 0.5), ops.add(count, 1.0), fixed), (row, b, z)

        rng_choice = rng.randint(0, 1)
        length = rng.choice([0, 1, 3])
        rows = slice_in_dim(y, 0, length, axis=0)
        (a, b, count, fixed), (rows, sums, _) = scan(
            body, (x, y, reduce_sum(x, (0, 1)), ops.tanh(y)), rows, reverse=reverse
        )
        outs = [a, fixed] if keep else [b]
        return (
            outs
            if rng.random() < 0.5 or not length
            else [ops.add(o, _spread(reduce_sum(rows, (0,)))) for o in outs]
        )

    def loop(self, x, y):
        """A while loop of a fixed number of steps with an unchanged carry."""

        def test(c):
            return ops.lt(c[0], 3.0)

        def body(c):
            i, a, b, dead = c
            return ops.add(i, 1.0), ops.add(ops.mul(a, 0.5), b), b, ops.mul(dead, 0.5)

        start = full((), 0.0, dtypes.F32)
        _, a, b, dead = while_loop(test, body, (start, x, ops.tanh(y), y))
        return [a, b] if self.rng.random() < 0.5 else [a, dead]

    def branch(self, x, y, z):
        """A conditional, its predicate known or not."""
        pred = reduce_sum(x, (0, 1))
        pred = ops.gt(pred, 0.0) if self.rng.random() < 0.7 else full((), True, dtypes.BOOL)
        return list(
            cond(
                pred,
                lambda a, b, c: (a, ops.add(a, b), c),
                lambda a, b, c: (b, ops.neg(a), c),
                x,
                y,
                z,
            )
        )


def silu_gradient(x, t):
    """What the derivative of x * logistic(x) is made of, and that product itself."""
    s = ops.logistic(x)
    y = ops.mul(x, s)
    slope = ops.mul(s, ops.sub(1.0, s))
    return [y, ops.add(ops.mul(t, s), ops.mul(ops.mul(x, t), slope))]


def _spread(v):
    return broadcast_in_dim(v, SHAPE, (1,))


def _product(a, b, c):
    left = dot_general(a, b, (((1,), (1,)), ((), ())))  # [4, 4]
    return dot_general(left, c, (((1,), (0,)), ((), ())))


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Equal up to the rounding of merged multiply-adds; NaN equals NaN."""
    x, y = host_view(x, dtypes.F32), host_view(y, dtypes.F32)
    scale = np.maximum(1.0, np.abs(np.nan_to_num(x, posinf=0, neginf=0)).max(initial=0.0))
    return x.shape == y.shape and np.allclose(x, y, rtol=2e-4, atol=2e-5 * scale, equal_nan=True)


__all__ = ["random_inputs", "random_program", "same"]
