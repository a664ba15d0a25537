"""Large products of matrices with rows that no descriptor can describe, on rows that lie apart.

A descriptor wants every row to begin at a multiple of 16 bytes. The gradient of logits over a
vocabulary of 50,257 words has no such rows, and both products that read it took four times as long
as others. Its kernel stores it with rows of 50,264 elements instead, of which the products read
50,257: nothing depends on the others, so that they need not be zero.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from genesis_fn.backends.cuda.lowerings.call import Call
from genesis_fn.backends.cuda.lowerings.contraction import matmul_spec
from genesis_fn.compiler.fusion.value_graph import kind_of
from genesis_fn.compiler.loop_ir.layouts import pitched_p, pitched_product_p
from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.target import Target
from genesis_fn.core import dtypes
from genesis_fn.core.aval import Aval
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.kernels.matmul.tuning import OperandReads
from genesis_fn.primitives.dot_general import dot_general_p, free_dims
from genesis_fn.primitives.shape import slice_p

_ROW = 16  # bytes: rows begin at multiples of these
# The rate of products without descriptors, as a share of that of others. On an H200, in TFLOP/s, of
# bfloat16: 141 to 198 with rows that begin at multiples of 2 bytes, 430 to 449 of 4 or 8, 750 of
# 16; in TF32: 149 of 4, 217 of 8, 368 of 16.
_SHARES = {(2, 2): 0.25, (2, 4): 0.6, (2, 8): 0.6, (4, 4): 0.4, (4, 8): 0.6}
"""By the bytes of an element, and those of which rows begin at multiples."""
# Bytes of a result that is worth a pitch: 8192 x 50257 in bfloat16 took 1034 us to multiply and
# store, with a pitch 915, and what reads it then loads whole vectors.
_LARGE = 64 << 20
_MARGIN = 2.0  # a gain is worth so many times what it costs


def pitched_products(jaxpr: Jaxpr, target: Target) -> Jaxpr:
    """`jaxpr` with products on rows that lie apart where that is faster."""
    if not target.descriptors or not enabled("pitched"):
        return jaxpr
    if not any([_is_product(e) for e in jaxpr.eqns]):
        return jaxpr
    apart = _RowsApart(jaxpr, target)
    return apart.program() if apart.chosen or apart.results else jaxpr


def _is_product(e: Eqn) -> bool:
    """Whether an equation is a product of two arrays of one type of floats."""
    if e.prim is not dot_general_p or not all([type(i) is Var for i in e.ins]):
        return False
    return e.ins[0].aval.dtype == e.ins[1].aval.dtype in (dtypes.BF16, dtypes.F16, dtypes.F32)


def _pitch(x: Aval) -> int:
    """The elements from one row of `x` to the next, if rows begin where a descriptor wants them."""
    lanes = _ROW // x.dtype.itemsize
    return -(-x.shape[-1] // lanes) * lanes


class _RowsApart:
    """The arrays of one program whose rows lie apart.

    * `arrays[x]`: the array that holds x so. `results` are those x that a product stores.
    * `chosen[e]`: the operands that product e reads so.
    """

    def __init__(self, jaxpr: Jaxpr, target: Target) -> None:
        self.jaxpr, self.target = jaxpr, target
        self.readers: dict[Var, list[Eqn]] = {}
        for e in jaxpr.eqns:
            for i in {i for i in e.ins if type(i) is Var}:
                self.readers.setdefault(i, []).append(e)
        self.arrays: dict[Var, Var] = {}
        self.results: set[Var] = set()
        self.chosen: dict[Eqn, tuple[int, ...]] = {}
        self._eqns: list[Eqn] = []
        self._read: dict[Var, Var] = {}  # by kernels, in place of an array that is not stored
        for e in jaxpr.eqns:
            if _is_product(e):
                self._choose(e)

    def _choose(self, e: Eqn) -> None:
        (out,) = e.outs
        if self._is_worth_a_pitch(e, out):
            self.results.add(out)
            self._hold(out)
        wanted = self._wanted(e)
        new = {e.ins[i] for i in wanted} - self.arrays.keys()
        if wanted and self._gain(e, wanted) > _MARGIN * sum([self._cost(x) for x in new]):
            self.chosen[e] = wanted
            for x in new:
                self._hold(x)

    def _hold(self, x: Var) -> None:
        self.arrays[x] = Var(x.aval.update((*x.aval.shape[:-1], _pitch(x.aval))))

    def _wanted(self, e: Eqn) -> tuple[int, ...]:
        """The operands whose rows must lie apart for both to be read through descriptors: the
        fewest; empty if there are none, or if they need not."""
        wide = [
            i
            for i in range(2)
            if e.ins[i].aval.ndim and _pitch(e.ins[i].aval) > e.ins[i].aval.shape[-1]
        ]
        for count in range(len(wide) + 1):
            for some in itertools.combinations(wide, count):
                call = self._call(e, some)
                spec, copies = matmul_spec(call)
                if not any(copies) and OperandReads(spec, self.target).through_descriptors:
                    return some
        return ()

    def _call(self, e: Eqn, some: Sequence[int]) -> Call:
        """Product `e` as one of which the rows of some operands lie apart."""
        kinds = [i.aval for i in e.ins]
        for i in some:
            kinds[i] = kinds[i].update((*kinds[i].shape[:-1], _pitch(kinds[i])))
        params = self._params(e, 0)
        return Call(pitched_product_p, tuple(kinds), params, self.target, numerics=e.numerics)

    def _params(self, e: Eqn, pitch: int) -> dict[str, Any]:
        """The parameters of product `e` as one of operands with rows apart."""
        return {**e.params, "shapes": tuple([i.aval.shape for i in e.ins]), "pitch": pitch}

    def _gain(self, e: Eqn, wanted: Sequence[int]) -> float:
        """The seconds that descriptors save a product which cannot describe these operands."""
        assert dot_general_p.flops is not None
        kinds = [i.aval for i in e.ins]
        flops = dot_general_p.flops(kinds, [e.outs[0].aval], **e.params)
        size = kinds[0].dtype.itemsize
        begin = math.gcd(_ROW, *[kinds[i].shape[-1] * size for i in wanted])
        return flops / self.target.matrix_rate(size) * (1 / _SHARES[size, begin] - 1)

    def _cost(self, x: Var) -> float:
        """The seconds that a copy of `x` takes; one that a kernel computes anyway takes none."""
        return (2 * x.aval.nbytes + self.target.launch_bytes) / self.target.bandwidth

    def _is_worth_a_pitch(self, e: Eqn, out: Var) -> bool:
        """Whether a product's result is stored with rows that lie apart: one axis of the right
        operand has its columns, and kernels alone read it, which reduce it. Others could be the
        product's epilogue."""
        (_, contracted), (_, batch) = e.params["dimension_numbers"]
        y = e.ins[1].aval
        columns = [y.shape[d] for d in free_dims(y.ndim, (*contracted, *batch))]
        if columns[-1:] != [math.prod(columns)] or _pitch(out.aval) == out.aval.shape[-1]:
            return False
        large = out.aval.nbytes >= _LARGE
        return large and self._is_read_in_kernels(out) and self._is_reduced(out)

    def _is_read_in_kernels(self, x: Var) -> bool:
        """Whether nothing but generated kernels reads `x` and its views."""
        if x in self.jaxpr.outs:
            return False
        for e in self.readers.get(x, ()):
            kind = kind_of(e)
            if kind == "opaque" or (kind == "view" and not self._is_read_in_kernels(e.outs[0])):
                return False
        return True

    def _is_reduced(self, x: Var) -> bool:
        """Whether generated kernels reduce what they compute of `x`."""
        todo, seen = [x], {x}
        while todo:
            for e in self.readers.get(todo.pop(), ()):
                kind = kind_of(e)
                if kind == "reduce":
                    return True
                if kind != "opaque":
                    todo += [o for o in e.outs if o not in seen]
                    seen.update(e.outs)
        return False

    def program(self) -> Jaxpr:
        """The program with these arrays."""
        held = {x for x in self.arrays if x in self.results}
        for e in self.jaxpr.eqns:
            for i in self.chosen.get(e, ()):
                if e.ins[i] not in held:
                    held.add(e.ins[i])
                    self._store(e.ins[i], e)
            if e in self.chosen or not self.results.isdisjoint(e.outs):
                self._product(e)
            elif kind_of(e) in ("map", "reduce"):
                self._eqns.append(
                    e.replace(ins=[self._read.get(i, i) if type(i) is Var else i for i in e.ins])
                )
            else:
                self._eqns.append(e)
            for o in e.outs:
                if o in self.arrays and o not in held and kind_of(e) == "map":
                    held.add(o)
                    self._store(o, e)
                    self._read[o] = self._seen(o, e)
        return Jaxpr(
            self.jaxpr.invars, self._eqns, self.jaxpr.outs, self.jaxpr.labels, self.jaxpr.name
        )

    def _store(self, x: Var, e: Eqn) -> None:
        """Add the equation that stores `x`, of the same pass as `e`."""
        pitch = {"pitch": _pitch(x.aval)}
        self._eqns.append(e.replace(prim=pitched_p, ins=[x], params=pitch, outs=(self.arrays[x],)))

    def _seen(self, x: Var, e: Eqn, result: Var | None = None) -> Var:
        """Add the equation that reads `x` where it is stored: its result."""
        result = result or Var(x.aval)
        params = {"start": (0,) * x.aval.ndim, "limit": x.aval.shape, "strides": (1,) * x.aval.ndim}
        self._eqns.append(
            e.replace(prim=slice_p, ins=[self.arrays[x]], params=params, outs=(result,))
        )
        return result

    def _product(self, e: Eqn) -> None:
        (out,) = e.outs
        ins = list(e.ins)
        for i in self.chosen.get(e, ()):
            ins[i] = self.arrays[ins[i]]
        pitch = _pitch(out.aval) if out in self.results else 0
        stored = self.arrays[out] if pitch else out
        self._eqns.append(
            e.replace(
                prim=pitched_product_p, ins=ins, params=self._params(e, pitch), outs=(stored,)
            )
        )
        if pitch:
            self._seen(out, e, out)
