"""Kernels of generated text, and kernels that do the work of several."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Mapping

from genesis_fn.backends.cuda.binaries.compile import SourceKernel
from genesis_fn.kernels.language.dtypes import DTYPES, MEMORY
from genesis_fn.kernels.language.expressions import MODULES, PRELUDE
from genesis_fn.kernels.plan import Argument, BufferArg


@functools.lru_cache(maxsize=8192)
def kernel(name: str, parameters: str, body: str) -> SourceKernel:
    """The kernel of this text; equal texts are one kernel."""
    return SourceKernel(name, f"{PRELUDE}def {name}({parameters}):\n{body}", MODULES)


def definition(function: object) -> str | None:
    """The definition of a kernel that was made from text and uses nothing but `tl` and the
    functions of `MODULES`; None for other kernels, and those that report errors."""
    if isinstance(function, SourceKernel):
        head, _, text = function.text.partition("@triton.jit\n")
        known = head.startswith(PRELUDE.partition("@triton.jit\n")[0].rstrip())
        return text if known and "flag_error" not in text else None
    inner = getattr(function, "fn", None)
    if inner is None or getattr(inner, "__module__", None) != "genesis_fn.kernels.language.source":
        return None
    return "".join(linecache.getlines(inner.__code__.co_filename))


def multi_tensor_kernel(
    function: SourceKernel, arguments: Mapping[str, Argument], width: int
) -> SourceKernel:
    """The kernel with its arguments, all of them pointers, taken from row `program_id(2)` of a
    table whose rows are `width` addresses long."""
    head, body = function.text.removeprefix(PRELUDE).split("\n", 1)
    lines = [f"    row = table + tl.program_id(2) * {width}\n"]
    for name, argument in arguments.items():
        assert type(argument) is BufferArg
        kind = MEMORY[DTYPES[argument.dtype]]
        place = f"tl.multiple_of(tl.load(row + {argument.index}), 16)"
        lines.append(f"    {name} = {place}.to(tl.pointer_type({kind}))\n")
    name = head.removeprefix("def ").split("(", 1)[0]
    return kernel(f"{name}_of_many", "table", "".join(lines) + body)


@functools.lru_cache(maxsize=1024)
def joint_kernel(
    definitions: tuple[str, ...], grids: tuple[int, ...]
) -> tuple[SourceKernel, tuple[str, ...]]:
    """(the kernel whose program i does the work of program i - (those before) of one of the
    definitions, its parameters: those of definition k end in _k)."""
    parameters: list[str] = []
    lines: list[str] = []
    names: list[str] = []
    order: list[str] = []
    before = 0
    for k, (text, grid) in enumerate(zip(definitions, grids, strict=True)):
        (found,) = ast.parse(text).body
        assert isinstance(found, ast.FunctionDef)
        _Apart(found, k, before).visit(found)
        parameters += [ast.unparse(a) for a in found.args.args]
        order += [a.arg for a in found.args.args]
        names.append(found.name)
        last = k == len(definitions) - 1
        test = "else" if last else f"{'elif' if k else 'if'} tl.program_id(0) < {before + grid}"
        lines += [f"    {test}:"]
        body = "\n".join([ast.unparse(s) for s in found.body])
        lines += ["        " + line for line in body.splitlines()]
        before += grid
    name = "_and_".join(dict.fromkeys(names)) if len(set(names)) < 3 else f"{len(names)}_steps"
    made = kernel(f"joint_{name}", ", ".join(parameters), "\n".join(lines) + "\n")
    return made, tuple(order)


class _Apart(ast.NodeTransformer):
    """Gives a kernel's own names a suffix, and its programs their numbers."""

    def __init__(self, definition: ast.FunctionDef, number: int, before: int) -> None:
        self.number, self.before = number, before
        stored = [
            x.id
            for x in ast.walk(definition)
            if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
        ]
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
