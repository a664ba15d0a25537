"""Every backend and its executables offer what the protocols of `core/backend` say, under their
names, and nobody asks them for anything else."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import genesis_fn
import genesis_fn.numpy as jnp
from genesis_fn.backends.cpu.backend import CpuBackend
from genesis_fn.backends.cpu.compile import CpuExecutable
from genesis_fn.backends.cpu.inductor import InductorExecutable
from genesis_fn.core import device as devices
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.aval import sig
from genesis_fn.core.backend.backend import Backend
from genesis_fn.core.backend.executable import Carry, Executable
from genesis_fn.core.errors import BackendError

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
        kinds = [
            [(p.kind, p.name) for p in inspect.signature(f).parameters.values()]
            for f in (said, done)
        ]
        assert [k for k, _ in kinds[0]] == [k for k, _ in kinds[1]], name
    # Of what only the protocol has a stub for, each has its own.
    for name in ("__call__", "run", "as_text", "memory_analysis"):
        assert getattr(kind, name) is not vars(Executable).get(name), name


def test_an_incomplete_backend_is_refused_with_what_it_lacks():
    class Some(Backend):
        def device_count(self):
            return 1

    class Program(Executable):
        def __call__(self, *args):
            return []

    with pytest.raises(TypeError, match="Some.*compile.*eager.*from_numpy.*to_numpy.*wait"):
        Some()  # pyright: ignore[reportAbstractUsage]
    with pytest.raises(TypeError, match="Program.*as_text.*memory_analysis.*run"):
        Program()  # pyright: ignore[reportAbstractUsage]


def test_a_registered_backend_is_not_replaced():
    before = devices.backend("cpu")
    with pytest.raises(BackendError, match="there is a backend of devices 'cpu' already"):
        devices.register_backend("cpu", CpuBackend)
    assert devices.backend("cpu") is before


def check(executable, xs):
    """What holds for any executable of `x * y + 1, x` on (float32[3], float32[3])."""
    assert {n for n in MEMBERS if not hasattr(executable, n)} == set()
    outs = executable(*xs)
    storages = executable.run(
        [executable.own(x) if i in executable.overwritten else x.data for i, x in enumerate(xs)]
    )
    assert len(storages) == len(outs) == len(executable.sigs) == 2
    for out, own in zip(outs, executable.sigs, strict=True):
        assert out.sig is own and not own.weak
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


# ---- backends ----


def backends() -> list[type]:
    found: list[type] = [CpuBackend]
    try:
        from genesis_fn.backends.cuda.backend import CudaBackend
    except ImportError:
        return found
    return [*found, CudaBackend]


@pytest.mark.parametrize("kind", backends(), ids=lambda k: k.__name__)
def test_backends_take_what_the_protocol_says(kind):
    assert Backend in kind.__mro__
    for name, said in vars(Backend).items():
        if name[0] == "_" or not inspect.isfunction(said):
            continue
        assert said.__doc__, name
        done = getattr(kind, name)
        assert [*inspect.signature(done).parameters] == [*inspect.signature(said).parameters], name
        # What the protocol says nothing about, each says itself.
        assert done is not said or "raise" in inspect.getsource(said), name


class HostBackend(Backend):
    """The least that a backend can be: two devices, NumPy arrays for memory."""

    def device_count(self):
        return 2

    def from_numpy(self, value, aval, device):
        return np.array(value)

    def to_numpy(self, array):
        return array.data

    def wait(self, array):
        pass

    def eager(self, prim, avals, params, device):
        raise BackendError(f"the least backend computes no {prim.name}")

    def compile(self, jaxpr, device, donated=(), compiler=None):
        raise BackendError("the least backend compiles nothing")


@pytest.fixture
def least() -> Iterator[ArrayImpl]:
    """An array on a device of a backend that need not have more than it has."""
    devices.register_backend("least", HostBackend)
    place = devices.device("least", 0)
    yield ArrayImpl(np.ones(3, np.float32), sig(jnp.ones(3).aval, place))
    del devices._loaders["least"], devices._backends["least"]
    for index in (0, 1):
        devices._devices.pop(("least", index), None)


def test_what_a_backend_lacks_it_refuses_by_name(least):
    with pytest.raises(BackendError, match="least backend does not copy to another"):
        genesis_fn.device_put(least, devices.device("least", 1))
    for exchange in (least.__dlpack__, least.__dlpack_device__):
        with pytest.raises(BackendError, match="least backend has no DLPack form"):
            exchange()
    with pytest.raises(BackendError, match="least backend takes no arrays of other libraries"):
        least.device.backend.from_dlpack(np.ones(3), least.device)
    with pytest.raises(AttributeError, match=r"f32\[3\] on least\(0\) has no"):
        _ = least.__cuda_array_interface__
    np.testing.assert_array_equal(np.asarray(genesis_fn.device_put(least, "cpu")), np.ones(3))


# ---- nobody asks for anything else ----


def public(protocol: type) -> set[str]:
    return {n for n in named(protocol) if n[0] != "_"}


def asked_of_backends(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, name) of what code asks an expression for that ends in `backend`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of = node.value.func if isinstance(node.value, ast.Call) else node.value
            if isinstance(of, (ast.Attribute, ast.Name)):
                if getattr(of, "attr", getattr(of, "id", "")) == "backend":
                    yield node.lineno, node.attr


def probes(tree: ast.AST) -> Iterator[int]:
    """The lines that look whether a backend, an executable or a carry has a member."""
    members = public(Backend) | MEMBERS | public(Carry)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("hasattr", "getattr"):
            of, name = ast.unparse(node.args[0]), node.args[1]
            if (isinstance(name, ast.Constant) and name.value in members) or of.endswith(
                ("backend", "backend()", "executable", "compiled")
            ):
                yield node.lineno


def modules() -> list[tuple[str, ast.Module]]:
    folder = Path(genesis_fn.__path__[0])
    return [(str(p), ast.parse(p.read_text("utf-8"))) for p in sorted(folder.rglob("*.py"))]


def test_nobody_probes_what_a_protocol_names():
    assert [(name, at) for name, tree in modules() for at in probes(tree)] == []


def test_backends_are_asked_for_what_their_protocol_names():
    found = {
        (name, at, what)
        for name, tree in modules()
        for at, what in asked_of_backends(tree)
        if "/backends/" not in name  # a backend's own modules; Triton's compiler is called so, too
    }
    assert len(found) > 10
    assert {f for f in found if f[2] not in public(Backend)} == set()


@pytest.mark.parametrize(
    "text",
    [
        "if hasattr(x.device.backend, 'pinned'): pass", "getattr(executable, 'graphs', None)",
        "hasattr(found, 'carry')", "getattr(place, 'dlpack_device', None)",
    ],
)  # fmt: skip
def test_the_walk_finds_probes(text: str):
    assert list(probes(ast.parse(text)))
