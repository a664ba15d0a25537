"""Compiles one kernel with Triton: from a request, which can be pickled, to its binary.

Worker processes import this module and the kernel's own module, and nothing else: up to sixteen of
them start at once, and a program's first call waits for them.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import linecache
import re
from dataclasses import dataclass, replace
from typing import Any

from genesis_fn.backends.cuda.binaries.other_forms import other_forms

GENERATOR = "genesis_fn.kernels.language.source"


class CompileError(RuntimeError):
    """Triton refused a kernel; the message holds its name, signature and Triton's reason."""


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """What a worker needs to compile one kernel; `where` is ("text", name, text), ("generated",
    text) for `kernels/language/source.py`, ("module", module, qualified name) for the library's
    own, or ("object", function) for a user's, which is compiled in this process."""

    where: tuple[Any, ...]
    types: tuple[tuple[str, str], ...]
    divisible: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, Any], ...]
    architecture: int


@dataclass(frozen=True, slots=True)
class FunctionReference:
    """A Triton function as the value of a constexpr parameter, by name."""

    module: str
    name: str


def function_from_text(name: str, text: str) -> Any:
    """The function `name` that `text` defines.

    The text is registered with `linecache`, because Triton reads a function's source through
    `inspect`.
    """
    label = f"<kernel {name} {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
    linecache.cache[label] = (len(text), None, text.splitlines(keepends=True), label)
    space: dict[str, Any] = {"__name__": f"genesis_fn_generated.{name}"}
    exec(compile(text, label, "exec"), space)
    return space[name]


def is_gluon(kernel: object) -> bool:
    """Whether a kernel is written in Gluon, Triton's language of explicit layouts."""
    test = getattr(kernel, "is_gluon", None)
    return bool(test and test())


@functools.lru_cache
def triton_version() -> str:
    """The installed Triton's version, found without importing it."""
    return importlib.metadata.version("triton")


def compiled_by_triton(wanted: CompileRequest) -> Any:
    """What Triton makes of one kernel, here: `asm` holds its PTX and cubin."""
    try:
        return _compiled(wanted)
    except CompileError as error:
        if wanted.where[0] != "text" or "PassManager" not in str(error):
            raise
        _, name, text = wanted.where
        options = dict(wanted.options)
        for other, warps in other_forms(text, options.get("num_warps", 4)):
            given = tuple({**options, "num_warps": warps}.items())
            try:
                return _compiled(replace(wanted, where=("text", name, other), options=given))
            except CompileError:
                continue
        raise


def _compiled(wanted: CompileRequest) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = _resolve(wanted.where)
    types, constants = dict(wanted.types), dict(wanted.constants)
    names = list(kernel.arg_names)
    unknown = [name for name in (*types, *constants) if name not in names]
    if unknown:
        raise CompileError(f"kernel {kernel.__name__} has no parameter {unknown[0]!r}: {names}")
    full: dict[str, str] = {}
    values: dict[tuple[int], Any] = {}
    for i, name in enumerate(names):
        if name in types:
            full[name] = types[name]
            continue
        full[name] = "constexpr"
        if name in constants:
            values[(i,)] = _load(constants[name])
        elif kernel.params[i].has_default:
            values[(i,)] = kernel.params[i].default
        else:
            raise CompileError(f"kernel {kernel.__name__} is given no parameter {name!r}")
    ordered = [name for name in names if name in types]
    if ordered != list(types):
        raise CompileError(f"kernel {kernel.__name__} takes {ordered} in this order, not {types}")
    # What Triton's launcher would find out from the arguments: 16-byte alignment lets it vectorise.
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in wanted.divisible}
    if is_gluon(kernel):
        from triton.experimental.gluon._runtime import GluonASTSource as Source
    else:
        Source = ASTSource
    target = GPUTarget("cuda", wanted.architecture, 32)
    try:
        source = Source(kernel, full, values, attributes)
        return triton.compile(source, target=target, options=dict(wanted.options))
    except Exception as error:
        raise CompileError(
            f"kernel {kernel.__name__} with {types} and {constants} for sm_{wanted.architecture}: "
            f"{type(error).__name__}: {error}"
        ) from error


def compile_request(wanted: CompileRequest) -> tuple[dict[str, Any], bytes]:
    """(metadata, cubin) of one kernel, compiled here."""
    result = compiled_by_triton(wanted)
    found = result.metadata
    ptx = apart(result.asm["ptx"])
    # Kernels whose source waits do something useful before (they load weights).
    if dict(wanted.options).get("launch_pdl") and "griddepcontrol.wait" not in ptx:
        ptx = _waiting(ptx)
    unchanged = ptx == result.asm["ptx"]
    binary = bytes(result.asm["cubin"]) if unchanged else _assembled(ptx, wanted)
    return {
        "name": found.name,
        "parameters": [kind for _, kind in wanted.types],
        "layout": _parameter_sizes(result.asm["ptx"]),
        "descriptors": [dict(d) for d in (getattr(found, "tensordesc_meta", None) or ())],
        "shared": found.shared,
        "num_warps": found.num_warps,
        "num_ctas": found.num_ctas,
        "scratch": found.global_scratch_size,
        "cooperative": bool(found.launch_cooperative_grid),
        "triton": triton_version(),
    }, binary


# At the start of a line: no instruction under a predicate, which a block could not have.
_PACKED = re.compile(r"^[ \t]*(add|min|max)\.([su]16)x2\s+(%\w+), (\S+), (\S+);", re.MULTILINE)


def apart(ptx: str) -> str:
    """The PTX with packed 16-bit integer operations as two of 16 bits each.

    LLVM makes them of index arithmetic that fits 16 bits. ptxas 12.8 and 12.9 forget the constant
    of an addition of which only the upper half is used: (r % 33) - 1 < 31 was r % 33 < 31, and the
    last element of a row was left out of a sum.
    """
    return _PACKED.sub(
        "{\n\t.reg .b16 %al, %ah, %bl, %bh;\n"
        "\tmov.b32 {%al, %ah}, \\4;\n\tmov.b32 {%bl, %bh}, \\5;\n"
        "\t\\1.\\2 %al, %al, %bl;\n\t\\1.\\2 %ah, %ah, %bh;\n"
        "\tmov.b32 \\3, {%al, %ah};\n\t}",
        ptx,
    )


def _waiting(ptx: str) -> str:
    """The PTX with a wait for the preceding grid at the kernel's entry, for a programmatic launch
    of a kernel whose source has none.

    `launch_dependents` right behind it lets the next grid start once all blocks of this one have
    started, so that its blocks cannot take the processors that blocks of this one need.
    """
    start = ptx.index("{", ptx.index(")", ptx.index(".entry")))
    wait = "\n\tgriddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;"
    return ptx[: start + 1] + wait + ptx[start + 1 :]


def _assembled(ptx: str, wanted: CompileRequest) -> bytes:
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    backend = make_backend(GPUTarget("cuda", wanted.architecture, 32))
    options = backend.parse_options(dict(wanted.options))
    return bytes(backend.make_cubin(ptx, {}, options, wanted.architecture))


def _parameter_sizes(ptx: str) -> list[int]:
    """The bytes of each parameter of the entry function."""
    start = ptx.index(".entry")
    declared = ptx[ptx.index("(", start) : ptx.index(")", start)]
    sizes = []
    for line in declared.splitlines():
        if array := re.search(r"\.b8 \w+\[(\d+)\]", line):
            sizes.append(int(array[1]))
        elif scalar := re.search(r"\.param \.[a-z](\d+)", line):
            sizes.append(int(scalar[1]) // 8)
    return sizes


def _resolve(where: tuple[Any, ...]) -> Any:
    if where[0] == "text":
        return function_from_text(where[1], where[2])
    if where[0] == "generated":
        return importlib.import_module(GENERATOR).kernel_from_source(where[1])
    if where[0] == "object":
        return where[1]
    return getattr(importlib.import_module(where[1]), where[2])


def _load(value: Any) -> Any:
    if isinstance(value, FunctionReference):
        return _resolve(("module", value.module, value.name))
    if isinstance(value, tuple):
        return tuple(map(_load, value))
    return value
