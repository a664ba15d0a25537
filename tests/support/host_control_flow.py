"""A pytest plugin under which the host reads the predicates of control flow on a GPU.

compute-sanitizer ends with a fault of its own, or reports an illegal address of no kernel, where a
graph has conditional nodes (13.0 on an H200), so programs with loops run without under it:

    compute-sanitizer --tool memcheck python -m pytest -p tests.support.host_control_flow FILE
"""

from __future__ import annotations


def pytest_collection_finish() -> None:
    """Have drivers without conditional nodes, once the tests' own settings are made."""
    from genesis_fn.backends.cuda.driver import cuda

    cuda._CONDITIONAL_DRIVER = 1 << 30
