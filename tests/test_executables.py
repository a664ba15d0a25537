"""Every backend's executables offer what `core.executable.Executable` says, under its names."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import genesis_fn
import genesis_fn.numpy as jnp
from genesis_fn.backends.cpu.compile import CpuExecutable
from genesis_fn.backends.cpu.inductor import InductorExecutable
from genesis_fn.core.backend.executable import Carry, Executable

pytestmark = pytest.mark.cpu
MEMBERS = {
    "sigs", "overwritten", "unused_donations", "__call__", "run", "own", "explained", "carry",
    "measure", "as_text", "memory_analysis",
}  # fmt: skip


def named(protocol: type) -> set[str]:
    own = {n for n, v in vars(protocol).items() if inspect.isfunction(v) and n != "__init__"}
    return own | set(protocol.__annotations__)


def implementations() -> list[type]:
    found: list[type] = [CpuExecutable, InductorExecutable]
    try:
        from genesis_fn.backends.cuda.run.executable import CudaExecutable
    except ImportError:  # Triton is not there
        return found
    return [*found, CudaExecutable]


def test_the_protocol_names_every_member():
    assert {n for n in named(Executable) if n[:2] != "__" or n == "__call__"} >= MEMBERS
    assert MEMBERS >= {n for n in named(Executable) if n[0] != "_"}
    for name in MEMBERS & set(vars(Executable)):
        member = vars(Executable)[name]
        assert not inspect.isfunction(member) or member.__doc__, name


@pytest.mark.parametrize("kind", implementations(), ids=lambda k: k.__name__)
def test_executables_take_what_the_protocol_says(kind):
    assert Executable in kind.__mro__
    for name in MEMBERS:
        said, done = getattr(Executable, name, None), getattr(kind, name, None)
        if not (inspect.isfunction(said) and inspect.isfunction(done)):
            continue  # a value, or a slot for one
        kinds = [[(p.kind, p.name) for p in inspect.signature(f).parameters.values()]
                 for f in (said, done)]  # fmt: skip
        assert [k for k, _ in kinds[0]] == [k for k, _ in kinds[1]], name
    # Of what only the protocol has a stub for, each has its own.
    for name in ("__call__", "run", "as_text", "memory_analysis"):
        assert getattr(kind, name) is not vars(Executable).get(name), name


def check(executable, xs):
    """What holds for any executable of `x * y + 1, x` on (float32[3], float32[3])."""
    assert {n for n in MEMBERS if not hasattr(executable, n)} == set()
    outs = executable(*xs)
    storages = executable.run([executable.own(x) if i in executable.overwritten else x.data
                               for i, x in enumerate(xs)])  # fmt: skip
    assert len(storages) == len(outs) == len(executable.sigs) == 2
    for out, sig in zip(outs, executable.sigs, strict=True):
        assert out.sig is sig and not sig.weak
        np.testing.assert_array_equal(np.asarray(outs[0]), np.full(3, 3.0))
    assert executable.as_text() and executable.memory_analysis()["argument_size_in_bytes"] == 24
    error = ValueError("of the user")
    assert isinstance(executable.explained(error), ValueError)
    carry = executable.carry(0, 1, 1)
    assert carry is None or set(Carry.__annotations__) | {"run"} <= set(dir(carry))
    measured = executable.measure(xs, 1)
    assert measured is None or len(measured[0]) == 2


@pytest.mark.parametrize("donate", [(), (0,)])
def test_on_the_cpu(donate):
    xs = [jnp.full((3,), 2.0, device="cpu"), jnp.ones((3,), device="cpu")]
    lowered = genesis_fn.jit(lambda x, y: (x * y + 1, x), donate_argnums=donate).lower(*xs)
    check(lowered.executable(genesis_fn.devices("cpu")[0]), xs)


def test_nobody_probes_an_executable():
    probe = re.compile(r"(hasattr|getattr)\(\s*(self\.)?_?executable\b")
    folder = Path(genesis_fn.__path__[0])
    assert not [p for p in folder.rglob("*.py") if probe.search(p.read_text("utf-8"))]
