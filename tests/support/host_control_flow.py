"""A pytest plugin under which the host reads the predicates of control flow on a GPU.

compute-sanitizer ends with a fault of its own, or reports an illegal address of no kernel, where a
graph has conditional nodes (13.0 on an H200), so programs with loops run without under it:

    compute-sanitizer --tool memcheck python -m pytest -p tests.support.host_control_flow FILE

With TESTS_OF=1/3 in the environment every third test runs, from the second on.
"""

from __future__ import annotations

import os

import pytest


def pytest_sessionstart() -> None:
    """Have drivers without conditional nodes: once the tests' own settings are made, and ahead of
    modules of tests, some of which make arrays."""
    from genesis_fn.backends.cuda.driver import cuda

    cuda._CONDITIONAL_DRIVER = 1 << 30


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first, step = map(int, os.environ.get("TESTS_OF", "0/1").split("/"))
    items[:] = items[first::step]
