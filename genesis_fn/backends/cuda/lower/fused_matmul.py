"""Plans of matrix products with a fused prologue or epilogue.

Products of few rows (decoding) finish their result in the kernel (a residual, a gate), and as gemvs
compute their left operand there (a norm); other products have an epilogue only. Instructions of the
fused bodies become lines of the product's kernel, its hooks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from genesis_fn.backends.cuda.codegen.emit import KernelWriter
from genesis_fn.backends.cuda.codegen.loops import Loops, needed
from genesis_fn.backends.cuda.codegen.reductions import step
from genesis_fn.backends.cuda.codegen.tiling import Tiling
from genesis_fn.backends.cuda.lowerings.call import Call
from genesis_fn.backends.cuda.lowerings.contraction import matmul_spec
from genesis_fn.compiler.fusion.gemv_fusion import FusedMatmul, few_row_sizes
from genesis_fn.compiler.loop_ir.kernel import KernelIR
from genesis_fn.compiler.target import Target
from genesis_fn.core.jaxpr import Var
from genesis_fn.kernels.language.dtypes import NAMES
from genesis_fn.kernels.language.expressions import rounded
from genesis_fn.kernels.matmul.matmul import plan_matmul
from genesis_fn.kernels.matmul.spec import Hooks
from genesis_fn.kernels.plan import Plan
from genesis_fn.kernels.plan_builder import next_power_of_two


def plan_few_rows(
    product: FusedMatmul, result: Var, steady: bool, target: Target
) -> tuple[Plan, list[Any]]:
    """(the plan that computes `result`, the values of its inputs), for a product of few rows.

    With a prologue the first input is not read: it stands for the left operand, which the kernel
    computes. `steady`: nothing in the program writes the right operands, so that the kernel may
    load them before it waits for the one ahead of it.
    """
    first = product.eqns[0]
    found = few_row_sizes(first)
    assert found is not None
    _, columns, depth = found
    call = Call(first.prim, _avals(first), dict(first.params), target, numerics=first.numerics)
    spec, copies = matmul_spec(call)
    assert not any(copies)
    spec = replace(spec, out_dtype=NAMES[result.aval.dtype])
    left = first.ins[1] if product.prologue is not None else first.ins[0]
    operands: list[Any] = [left, *[e.ins[1] for e in product.eqns]]
    hooks = Hooks()
    if product.prologue is not None:
        setup, lhs, inputs = gemv_prologue_text(product.prologue, depth)
        hooks = Hooks(setup=setup, lhs=lhs, inputs=_types(inputs))
        operands += inputs.values()
    if product.epilogue is not None:
        values = [e.outs[0] for e in product.eqns]
        text, inputs = few_row_epilogue_text(product.epilogue, values, columns)
        hooks = replace(hooks, epilogue=text, inputs=hooks.inputs + _types(inputs))
        operands += inputs.values()
    spec = replace(spec, hooks=hooks, gated=len(product.eqns) == 2, steady=steady)
    return plan_matmul(spec, target), operands


def plan_matmul_epilogue(
    product: FusedMatmul, results: list[Var], target: Target
) -> tuple[Plan, list[Any]]:
    """(the plan that computes `results` tile by tile, the values of its inputs)."""
    (e,) = product.eqns
    assert product.epilogue is not None
    call = Call(e.prim, _avals(e), dict(e.params), target, numerics=e.numerics)
    spec, copies = matmul_spec(call)
    assert not any(copies)
    spec = replace(spec, out_dtype=NAMES[results[0].aval.dtype])
    text, inputs, outputs = matmul_epilogue_text(product.epilogue, e.outs[0], results, spec.n)
    hooks = Hooks(epilogue=text, inputs=_types(inputs), outputs=_types(outputs))
    return plan_matmul(replace(spec, hooks=hooks), target), [*e.ins, *inputs.values()]


def _avals(e: Any) -> tuple[Any, ...]:
    return tuple([i.aval if type(i) is Var else i for i in e.ins])


def _types(inputs: dict[str, Var]) -> tuple[tuple[str, str], ...]:
    return tuple([(name, NAMES[v.aval.dtype]) for name, v in inputs.items()])


class InlinedKernel(KernelWriter):
    """Writes instructions of a body as lines of another kernel. The names of values and pointers
    begin with `letter`, so that several bodies can stand in one kernel."""

    def __init__(self, body: KernelIR, letter: str, tiling: Tiling, inputs: dict[str, Var]) -> None:
        over = body.domain
        loops = Loops(over.kept, over.reduced, over.inner, body.instrs, body.stores, {})
        super().__init__(loops, tiling, letter, depth=0, inlined=True)
        self.inputs = inputs
        self.outputs: dict[str, Var] = {}

    def pointer(self, target: Any, written: bool) -> str:
        """The parameter for a buffer."""
        held = self.outputs if written else self.inputs
        for name, v in held.items():
            if v is target:
                return name
        name = f"{self.letter}{'out' if written else 'in'}{len(held)}"
        held[name] = target
        return name

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines)


def few_row_epilogue_text(
    body: KernelIR, values: list[Var], columns: int
) -> tuple[str, dict[str, Var]]:
    """(lines that turn `acc` (and `acc1`), the results `values`, into the body's root, the
    pointers they use)."""
    # `rm`, `rn` and `inside` are the product kernel's (see `Hooks`): the body's flat index is made
    # of them.
    inputs: dict[str, Var] = {}
    part = InlinedKernel(body, "e", Tiling("flat", (1, 1, 1), 1), inputs)
    part.masks = {"p": "inside"}
    part.line(f"p = rm * {columns} + rn")
    accumulators = dict(zip(values, ("acc", "acc1")))
    for n, i in enumerate(body.instrs):
        if i.op == "load" and i.meta[0] in accumulators:
            # Rounded as if it had been stored and loaded, so that fusion changes no bit.
            part.value[n] = rounded(accumulators[i.meta[0]], i.dtype)
        else:
            part.emit(n)
    ((_, _, root),) = body.stores
    part.line(f"acc = {part.value[root]}")
    return part.text, inputs


def matmul_epilogue_text(
    body: KernelIR, value: Var, results: list[Var], columns: int
) -> tuple[str, dict[str, Var], dict[str, Var]]:
    """(lines that turn `acc`, the product `value`, into the first of `results` and store the
    others, the pointers that they read, those that they write)."""
    inputs: dict[str, Var] = {}
    part = InlinedKernel(body, "e", Tiling("flat", (1, 1, 1), 1), inputs)
    part.masks = {"p": "inside"}
    part.line(f"p = rm * {columns} + rn")
    for n, i in enumerate(body.instrs):
        if i.op == "load" and i.meta[0] is value:
            part.line(f"e{n} = {rounded('acc', i.dtype)}")
            part.value[n] = f"e{n}"
        else:
            part.emit(n)
    for v in results[1:]:
        part.pointer(v, True)  # so that outputs are numbered in this order
    for store in body.stores:
        if store[0] is not results[0]:
            part.store(store)
    (first,) = [n for target, _, n in body.stores if target is results[0]]
    part.line(f"acc = {part.value[first]}")
    return part.text, inputs, part.outputs


def gemv_prologue_text(body: KernelIR, depth: int) -> tuple[str, str, dict[str, Var]]:
    """(lines that run once for each row, lines that make `a` at elements `rk_row` of row `rm`, the
    pointers that both use)."""
    # Each program computes the row's reductions itself: the row comes from the L2 cache, and a
    # kernel of its own would cost a launch that this one waits for.
    inputs: dict[str, Var] = {}
    padded = next_power_of_two(depth)
    tiling = Tiling("row", (1, 1, 1), 1, padded)
    instrs = body.instrs
    ((_, _, root),) = body.stores
    part = InlinedKernel(body, "v", tiling, inputs)
    reductions = [n for n, i in enumerate(instrs) if i.op == "reduce"]
    if reductions:
        part.line("p = rm")
        part.line(f"r = tl.arange(0, {padded})[None, :]")
        part.bounded("r", depth, depth == padded)
        fixed = [n for n in needed(instrs, [root]) if "r" not in instrs[n].names]
        for n in needed(instrs, [*reductions, *fixed]):
            step(part, n)
    # The elements are computed again in the loop over k, from the reductions that are known now.
    again = InlinedKernel(body, "w", tiling, inputs)
    pointwise = body.domain.reduced == 1
    again.line(f"p = rm * {depth} + rk_row" if pointwise else "p = rm")
    again.line("r = rk_row")
    exact = depth % 1024 == 0
    if not exact:
        again.masks["p" if pointwise else "r"] = "rk_in"
        again.line(f"rk_in = rk_row < {depth}")
    again.value = {n: t for n, t in part.value.items() if "r" not in instrs[n].names}
    for n in needed(instrs, [root], made=again.value):
        again.emit(n)
    value = again.value[root]
    again.line(f"a = {value}" if exact else f"a = tl.where(rk_in, {value}, 0.0)")
    return part.text, again.text, inputs
