"""Where the tests run: on the device that `GENESIS_DEVICE` names, the CPU if it names none.

    GENESIS_DEVICE=cuda python -m pytest -n 14 --dist loadgroup tests

runs everything on a GPU but tests marked `cpu`, which are about the CPU backend, and `interpreted`,
which are about Triton's interpreter. With `GENESIS_CUDA_DRIVER=interpret` beside it the same tests
run on host memory; `GENESIS_KERNELS=compiled` beside them runs what Triton's compiler makes of the
kernels (`tests/support/compiled.py`). All of this is decided before JAX and Triton are imported.

A fault on a GPU ends its context, and with it the test process: xdist starts another one.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from genesis_fn.core.configuration import config
from genesis_fn.core.primitive import PRIMITIVES
from genesis_fn.transforms.custom.fused_functions import FUSED
from tests.support import margins
from tests.support.xla import compile_quickly

# The same examples on every run: only a change fails a test. `HYPOTHESIS=explore` draws others.
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("explore")
settings.load_profile(os.environ.get("HYPOTHESIS", "repeatable"))

os.environ.setdefault("GENESIS_DEVICE", "cpu")
os.environ["JAX_PLATFORMS"] = "cpu"  # the reference
# JAX reads it once, when it is first used: the tests of meshes need eight of its devices.
if "device_count" not in os.environ.get("XLA_FLAGS", ""):
    flags = os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8"
    os.environ["XLA_FLAGS"] = " ".join(flags).strip()
compile_quickly()

gc.disable()  # until the tests are collected: see `pytest_collection_finish`

# A shell ignores Ctrl-C for what it starts in the background, and so would what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

COMPILED = os.environ.get("GENESIS_KERNELS") == "compiled"
if COMPILED:
    os.environ["TRITON_INTERPRET"] = "0"
ON_GPU = os.environ["GENESIS_DEVICE"].startswith(("cuda", "gpu"))
if ON_GPU:
    INTERPRETED = os.environ.setdefault("GENESIS_CUDA_DRIVER", "cuda") == "interpret"
    os.environ["TRITON_INTERPRET"] = "1" if INTERPRETED and not COMPILED else "0"
    # Comparisons are of float32 with float32, not with the ten bits of TF32. pytest has imported
    # the library already, for the warnings that it filters; processes that tests start read this.
    os.environ.setdefault("GENESIS_MATMUL_PRECISION", "highest")
    config.update("matmul_precision", os.environ["GENESIS_MATMUL_PRECISION"])
    if "PYTEST_XDIST_WORKER" in os.environ:
        # The test processes are as many as the cores already.
        os.environ.setdefault("GENESIS_COMPILE_WORKERS", "0")


def pytest_configure() -> None:
    """Run compiled kernels, and record the margins of tests, where they were asked for."""
    if COMPILED:
        from tests.support import compiled

        compiled.install()
    elif os.environ.get("TRITON_INTERPRET") == "1":
        from tests.support import interpreter

        interpreter.install()
    if "GENESIS_TEST_MARGINS" in os.environ:
        margins.install()


def pytest_sessionstart() -> None:
    """Write where each thread was when a signal ends a process, to the report's file and a number:
    a test process's own messages are lost with it."""
    if path := os.environ.get("GENESIS_TEST_REPORT"):
        faulthandler.enable(open(f"{path}.{os.getpid()}", "w", encoding="utf-8"))


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the cyclic collector does not walk those millions of
    objects after every module, and in every test that asks for it."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    """Programs compiled for one module are of no use to the next, and would add up to gigabytes."""
    yield
    from genesis_fn.transforms.jitting import clear_caches

    if jax := sys.modules.get("jax"):
        jax.clear_caches()
    clear_caches()
    gc.collect()
    # What is left stays: some thousand objects a module, which all later collections would walk.
    gc.freeze()


@pytest.fixture(scope="module")
def generators(request: pytest.FixtureRequest) -> list[tuple[np.random.Generator, Any]]:
    """The module's random number generators, and their states after it was imported."""
    found = [v for v in vars(request.module).values() if isinstance(v, np.random.Generator)]
    return [(g, g.bit_generator.state) for g in found]


@pytest.fixture(autouse=True)
def same_numbers(generators: list[tuple[np.random.Generator, Any]]) -> None:
    """A test draws the same numbers wherever it runs, whatever ran before it in its process."""
    for generator, state in generators:
        generator.bit_generator.state = state


@pytest.fixture(autouse=True)
def defined() -> Iterator[None]:
    """What a test defines is gone after it: tests that walk the primitives and fused functions see
    the library's (importing it defines all of them), whatever ran before in their process."""
    tables: tuple[dict[str, Any], ...] = (PRIMITIVES, FUSED)
    before = [set(table) for table in tables]
    yield
    for table, names in zip(tables, before, strict=True):
        for name in table.keys() - names:
            del table[name]


@pytest.fixture(autouse=True)
def settled(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a GPU reports late (a bad index, a failed assertion) belongs to the test that did it."""
    yield
    if not ON_GPU:
        return
    import genesis_fn.cuda as cuda
    from genesis_fn.backends.cuda.driver.errors import CudaError

    try:
        cuda.synchronize()
    except CudaError as error:
        if INTERPRETED or "PYTEST_XDIST_WORKER" not in os.environ:
            raise
        _report(request.node.nodeid, "fault", str(error))
        os._exit(1)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Write how much of its tolerance the test has used, where that was asked for."""
    if "GENESIS_TEST_MARGINS" in os.environ:
        margins.write(item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append what failed, at once, to the file `GENESIS_TEST_REPORT`: a run that is cut off at a
    time limit has no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash is not None else str(report.longrepr)
        _report(report.nodeid, report.when or "", text)


def _report(test: str, when: str, text: str) -> None:
    path = os.environ.get("GENESIS_TEST_REPORT")
    if path:
        with open(path, "a", encoding="utf-8") as f:
            f.write(f"{test} [{when}] {' '.join(text.split())[:400]}\n")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what does not belong to the device."""
    if ON_GPU and item.get_closest_marker("cpu"):
        pytest.skip("about the CPU backend")
    if os.environ.get("TRITON_INTERPRET") == "0" and item.get_closest_marker("interpreted"):
        pytest.skip("about Triton's interpreter")
