"""How many modules of the library a call passes through on its way: what somebody reads who follows
it with a debugger.

Counted are distinct modules of `genesis_fn` of which a Python function is entered, in the calling
thread, from the call of a jitted function up to that of its executable, for a program of three
equations. What lies beneath a pass is not counted: the passes make what later calls only look up,
`JitFunction._trace` (tracing the user's function, or finding the program of one that means the
same), `compile_program` (the backend) and `_generate` (writing the call code). Everything else is:
binding and flattening the arguments, keys, looking up, errors, settings.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.transforms.jitting import JitFunction

MOST = 6


def code_of(function: Any) -> CodeType:
    function = inspect.unwrap(function)
    return getattr(function, "__func__", function).__code__


def modules_entered(
    call: Callable[[], Any],
    until: Iterable[Any],
    beneath: Iterable[Any] = (),
    within: Iterable[Any] = (),
) -> list[str]:
    """The modules of the library that `call` enters, in order, up to the first call of a function
    in `until`, which are none for the executable that is compiled on the way: without what
    functions in `beneath` call, and only inside of those in `within`."""
    found: dict[str, None] = {}
    ends, passes, parts = [set(map(code_of, each)) for each in (until, beneath, within)]
    to_executable = not ends
    below: list[FrameType] = []
    inside: list[FrameType] = []
    ended = []

    def watch(frame: FrameType, event: str, value: Any) -> None:
        if ended:
            return
        if event == "call":
            code = frame.f_code
            if code in ends:
                ended.append(code)
                return
            if code in parts:
                inside.append(frame)
            name = frame.f_globals.get("__name__", "")
            if (inside or not parts) and not below and name.partition(".")[0] == "genesis_fn":
                found[name] = None
            if code in passes:
                below.append(frame)
        elif event == "return":
            if to_executable and frame.f_code is JitFunction.compile_program.__code__:
                ends.add(code_of(value.run))
            for stack in (below, inside):
                if stack and frame is stack[-1]:
                    stack.pop()

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert ended, "nothing of `until` was called"
    return list(found)


def program(x: Any, y: Any) -> Any:
    return jnp.tanh(x * y) + 1.0


PASSES = (JitFunction._trace, JitFunction.compile_program, JitFunction._generate)


def check_jit(executable: type) -> None:
    """Count a first and a second call of a function whose program is an `executable`."""
    gf.clear_caches()
    jitted = gf.jit(lambda x, y: program(x, y))
    xs = jnp.ones(3), jnp.full((3,), 2.0)
    first = modules_entered(lambda: jitted(*xs), [], PASSES)
    (found,) = jitted.cache.programs
    assert len(found.jaxpr.eqns) == 3
    (compiled,) = found.executables.values()
    assert type(compiled) is executable
    second = modules_entered(lambda: jitted(*xs), [compiled.run], PASSES)
    assert len(first) <= MOST and len(second) <= MOST, (first, second)
    # The generated call is the whole way: beside it only the settings are looked at.
    assert second == [
        "genesis_fn.transforms.jitting.function",
        "genesis_fn.core.configuration.config",
    ]


@pytest.mark.cpu
def test_from_a_jitted_call_to_its_executable():
    from genesis_fn.backends.cpu.compile import CpuExecutable

    check_jit(CpuExecutable)


def test_the_count_counts():
    """It sees what it is to see, and leaves out what lies beneath a pass."""
    jitted = gf.jit(lambda x, y: program(x, y))
    xs = jnp.ones(3), jnp.full((3,), 2.0)
    jitted(*xs)
    (found,) = jitted.cache.programs
    (compiled,) = found.executables.values()
    jitted.cache.fast.clear()
    full = modules_entered(lambda: jitted(*xs), [compiled.run])
    assert "genesis_fn.transforms.jitting.argspec" in full and "genesis_fn.core.tree" in full
    jitted.cache.fast.clear()
    beneath = [JitFunction._full]
    with pytest.raises(AssertionError, match="was called"):
        modules_entered(lambda: None, [compiled.run])
    rest = modules_entered(lambda: jitted(*xs), [compiled.run], beneath)
    assert rest == [
        "genesis_fn.transforms.jitting.function",
        "genesis_fn.core.configuration.config",
    ]
