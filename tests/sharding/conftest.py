"""Eight CPU devices in one process, for the tests of this folder alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from genesis_fn.core import device as devices

_shown: dict[tuple[str, int], devices.Device] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The folder is about the CPU."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cpu)


@pytest.fixture(autouse=True)
def eight_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU shows eight devices, the same objects in all tests, and none of them afterwards."""
    monkeypatch.setenv("GENESIS_CPU_DEVICES", "8")
    devices._devices.update(_shown)
    yield
    for key in [k for k in devices._devices if k[0] == "cpu" and k[1]]:
        _shown[key] = devices._devices.pop(key)


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """JAX keeps float64."""
    with jax.enable_x64(True):
        yield
