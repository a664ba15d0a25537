"""Kernels from generated text, and the multi-tensor and combo kernels of horizontal fusion."""

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
    """The source of a kernel that can stand in another one: it was made from text, uses only `tl`
    and the functions of `MODULES`, has none of its own, and no error word. None for other
    kernels."""
    if isinstance(function, SourceKernel):
        # Kernels of lowerings import `flag_error` as well, which does no harm unless they call it.
        head, _, text = function.text.partition("@triton.jit\n")
        known = head.startswith(PRELUDE.partition("@triton.jit\n")[0].rstrip())
        alone = "@triton.jit\n" not in text
        return text if known and alone and "flag_error" not in text else None
    inner = getattr(function, "fn", None)
    if inner is None or getattr(inner, "__module__", None) != "genesis_fn.kernels.language.source":
        return None
    return "".join(linecache.getlines(inner.__code__.co_filename))


def multi_tensor_kernel(
    function: SourceKernel, arguments: Mapping[str, Argument], width: int
) -> SourceKernel:
    """The multi-tensor form of a kernel whose arguments are all pointers: they are loaded from row
    `program_id(2)` of a table with `width` addresses a row."""
    head, body = function.text.removeprefix(PRELUDE).split("\n", 1)
    lines = [f"    row = table + tl.program_id(2) * {width}\n"]
    for name, argument in arguments.items():
        assert type(argument) is BufferArg
        kind = MEMORY[DTYPES[argument.dtype]]
        # Divisibility is lost in the table; without it Triton does not vectorise the accesses.
        address = f"tl.multiple_of(tl.load(row + {argument.index}), 16)"
        lines.append(f"    {name} = {address}.to(tl.pointer_type({kind}))\n")
    name = head.removeprefix("def ").split("(", 1)[0]
    return kernel(f"{name}_of_many", "table", "".join(lines) + body)


@functools.lru_cache(maxsize=1024)
def combo_kernel(
    definitions: tuple[str, ...], grids: tuple[int, ...]
) -> tuple[SourceKernel, tuple[str, ...]]:
    """Fuse kernels horizontally: (kernel, its parameters), where those of definition k end in _k.

    The programs of the fused grid are those of the first kernel, then those of the second one, and
    so on: a chain of `if`s on the program's number chooses the body.
    """
    parameters: list[str] = []
    lines: list[str] = []
    names: list[str] = []
    order: list[str] = []
    before = 0  # programs of the kernels ahead
    for k, (text, grid) in enumerate(zip(definitions, grids, strict=True)):
        (found,) = ast.parse(text).body
        assert isinstance(found, ast.FunctionDef)
        _RenameLocals(found, k, before).visit(found)
        parameters += [ast.unparse(a) for a in found.args.args]
        order += [a.arg for a in found.args.args]
        names.append(found.name)
        last = k == len(definitions) - 1
        test = "else" if last else f"{'elif' if k else 'if'} tl.program_id(0) < {before + grid}"
        lines += [f"    {test}:"]
        # Re-parsed and printed, not concatenated as text: only names are changed, never strings.
        body = "\n".join([ast.unparse(s) for s in found.body])
        lines += ["        " + line for line in body.splitlines()]
        before += grid
    name = "_and_".join(dict.fromkeys(names)) if len(set(names)) < 3 else f"{len(names)}_steps"
    made = kernel(f"joint_{name}", ", ".join(parameters), "\n".join(lines) + "\n")
    return made, tuple(order)


class _RenameLocals(ast.NodeTransformer):
    """Adds a suffix to a kernel's local names, and subtracts the programs before its own from
    `program_id(0)`."""

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
