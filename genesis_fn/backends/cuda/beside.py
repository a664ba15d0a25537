"""Small independent steps as one launch: query, key and value products of a decoded token, say.

Each program finds from its number whose work it does. What limits small kernels is not bandwidth
but one launch waiting for the one before, so fewer launches are faster even if nothing is shared.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from genesis_fn.backends.cuda.codegen.source import kernel
from genesis_fn.backends.cuda.compile import SourceKernel
from genesis_fn.backends.cuda.graph import Child
from genesis_fn.kernels.expressions import PRELUDE
from genesis_fn.kernels.launch import Buf, Launch, Scalar

_SMALL = 16 << 20  # bytes of the operands of a step that its launch's latency matters to
_TINY = 1 << 20  # bytes of the operands of a step whose number of warps does not matter
_MOST = 6
_WINDOW = 12  # steps that are looked at for company


def side_by_side(items: Sequence[Any], table: Any) -> list[Any]:
    """`items` with small steps joined to an earlier one that they do not depend on."""
    root = table.root
    taken: set[int] = set()
    result: list[Any] = []
    for n, item in enumerate(items):
        if n in taken:
            continue
        members = [item] if _joinable(item, table) else []
        reads, writes = {root(b) for b in item.reads}, {root(b) for b in item.writes}
        for m in range(n + 1, min(n + 1 + _WINDOW, len(items)) if members else 0):
            other = items[m]
            if m in taken or len(members) == _MOST:
                continue
            r, w = {root(b) for b in other.reads}, {root(b) for b in other.writes}
            apart = w.isdisjoint(reads) and w.isdisjoint(writes) and r.isdisjoint(writes)
            if apart and _joinable(other, table) and _fit(members[0], other, table):
                members.append(other)
                taken.add(m)
            # What stays in its place is in the way of what follows, as the members are.
            reads |= r
            writes |= w
        result.append(_joined(members) if len(members) > 1 else item)
    return result


def _launch(item: Any) -> Launch | None:
    """The step's only launch."""
    if len(item.steps) != 1 or type(item.steps[0]) is not Child or len(item.steps[0].steps) != 1:
        return None
    (launch,) = item.steps[0].steps
    return launch if type(launch) is Launch else None


def _joinable(item: Any, table: Any) -> bool:
    launch = _launch(item)
    if launch is None or launch.grid[1:] != (1, 1) or launch.max_registers is not None:
        return False
    if any(type(a) not in (Buf, Scalar) for a in launch.arguments.values()):
        return False
    if table.word is not None and table.word in item.writes:
        return False
    return _bytes(item, table) <= _SMALL and text_of(launch.kernel) is not None


def _bytes(item: Any, table: Any) -> int:
    """Bytes of what a step reads and writes; of what it updates in place it touches little."""
    return sum([table.bytes[b] for b in {*item.reads} ^ {*item.writes}])


def _fit(item: Any, other: Any, table: Any) -> bool:
    a, b = _launch(item), _launch(other)
    assert a is not None and b is not None
    # Either all parts of a kernel wait for the one before it, or it is made to at its start.
    if a.programmatic != b.programmatic or ("EARLY" in a.constants) != ("EARLY" in b.constants):
        return False
    if (a.num_warps, a.num_stages) == (b.num_warps, b.num_stages):
        return True
    return max(_bytes(item, table), _bytes(other, table)) <= _TINY


def text_of(function: Any) -> str | None:
    """The definition of a kernel that was made from text and uses nothing but `tl` and the
    functions of `MODULES`."""
    if isinstance(function, SourceKernel):
        head, _, text = function.text.partition("@triton.jit\n")
        known = head.startswith(PRELUDE.partition("@triton.jit\n")[0].rstrip())
        return text if known and "flag_error" not in text else None
    inner = getattr(function, "fn", None)
    if getattr(inner, "__module__", None) != "genesis_fn.kernels.source":
        return None
    return "".join(linecache.getlines(inner.__code__.co_filename))


def _joined(members: Sequence[Any]) -> Any:
    launches = [_launch(item) for item in members]
    texts = tuple([text_of(launch.kernel) for launch in launches])  # type: ignore[union-attr]
    grids = tuple([launch.grid[0] for launch in launches])  # type: ignore[union-attr]
    function = _kernel(texts, grids)  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    buffers: list[tuple[int, int]] = []
    for k, (item, launch) in enumerate(zip(members, launches)):
        assert launch is not None
        for name, argument in launch.arguments.items():
            if type(argument) is Buf:
                argument = replace(argument, index=argument.index + len(buffers))
            arguments[f"{name}_{k}"] = argument
        constants |= {f"{name}_{k}": value for name, value in launch.constants.items()}
        (child,) = item.steps
        buffers += child.buffers
    # In the order of the kernel's parameters.
    arguments = {name: arguments[name] for name in _parameters(function) if name in arguments}
    first = launches[0]
    assert first is not None
    launch = replace(
        first, kernel=function, grid=(sum(grids), 1, 1), arguments=arguments, constants=constants,
        num_warps=max([x.num_warps for x in launches if x is not None]),
        num_stages=max([x.num_stages for x in launches if x is not None]),
    )  # fmt: skip
    return replace(
        members[0],
        steps=[Child((launch,), tuple(buffers))],
        reads=[b for item in members for b in item.reads],
        writes=[b for item in members for b in item.writes],
        scratch=[b for item in members for b in item.scratch],
        plan=None,
    )


def _parameters(function: SourceKernel) -> list[str]:
    (definition,) = ast.parse(function.text.removeprefix(PRELUDE)).body
    assert isinstance(definition, ast.FunctionDef)
    return [a.arg for a in definition.args.args]


@functools.lru_cache(maxsize=1024)
def _kernel(texts: tuple[str, ...], grids: tuple[int, ...]) -> SourceKernel:
    """The kernel whose program i does the work of program i - (those before) of one of `texts`."""
    parameters: list[str] = []
    lines: list[str] = []
    names: list[str] = []
    before = 0
    for k, (text, grid) in enumerate(zip(texts, grids)):
        (definition,) = ast.parse(text).body
        assert isinstance(definition, ast.FunctionDef)
        _Apart(definition, k, before).visit(definition)
        parameters += [ast.unparse(a) for a in definition.args.args]
        names.append(definition.name)
        last = k == len(texts) - 1
        test = "else" if last else f"{'elif' if k else 'if'} tl.program_id(0) < {before + grid}"
        lines += [f"    {test}:"]
        body = "\n".join([ast.unparse(s) for s in definition.body])
        lines += ["        " + line for line in body.splitlines()]
        before += grid
    name = "_and_".join(dict.fromkeys(names)) if len(set(names)) < 3 else f"{len(names)}_steps"
    return kernel(f"beside_{name}", ", ".join(parameters), "\n".join(lines) + "\n")


class _Apart(ast.NodeTransformer):
    """Gives a kernel's own names a suffix, and its programs their numbers."""

    def __init__(self, definition: ast.FunctionDef, number: int, before: int) -> None:
        self.number, self.before = number, before
        stored = [
            x.id for x in ast.walk(definition)
            if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
        ]  # fmt: skip
        self.own = {*stored, *[a.arg for a in definition.args.args]}

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = f"{node.arg}_{self.number}"
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id in self.own:
            node.id = f"{node.id}_{self.number}"
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if self.before and ast.unparse(node) == "tl.program_id(0)":
            return ast.parse(f"(tl.program_id(0) - {self.before})", mode="eval").body
        return node


__all__ = ["side_by_side", "text_of"]
