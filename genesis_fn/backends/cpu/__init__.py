"""The CPU backend."""

from genesis_fn.backends.cpu.backend import CpuBackend as CpuBackend
