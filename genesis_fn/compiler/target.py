"""The GPU that a program is compiled for, as compiler passes and kernel planners see it.

A driver makes the `Target` of its device; every pass and planner that depends on the GPU takes it
as an argument, so that a program can be compiled for a GPU that the machine lacks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # kernels import this module in compiling processes, without NumPy
    from genesis_fn.core.dtypes import DType


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU: its architecture, sizes in bytes, and rates per second.

    `architecture` is the compute capability as one number (90 for 9.0), `processors` the number of
    multiprocessors, `shared_memory` the most that one program may use of it. `bandwidth` (bytes)
    and `operations` (of bfloat16 matrix products, two for each multiplication and addition) are
    what kernels reach at best, `link` (bytes) what collectives send to other GPUs. `interpreted`:
    kernels run in Triton's interpreter, which has no warp groups.
    """

    architecture: int
    processors: int
    shared_memory: int
    l2: int
    bandwidth: float
    operations: float
    link: float
    registers: int = 65536  # of 32 bits, of one processor
    conditional_nodes: bool = True
    interpreted: bool = False
    libraries: bool = False  # whether this process may call the device's

    @property
    def generation(self) -> int:
        """The major compute capability: 8 for Ampere and Ada, 9 for Hopper, 10 and 12 Blackwell."""
        return self.architecture // 10

    @property
    def descriptors(self) -> bool:
        """Whether kernels read tiles through TMA descriptors. Consumer GPUs (sm_120) have them,
        too, but too little shared memory for the tiles that profit."""
        return 90 <= self.architecture < 120

    @property
    def warp_groups(self) -> bool:
        """Whether kernels of Hopper's warp groups (wgmma, specialised warps) can run."""
        return self.generation == 9 and not self.interpreted

    @property
    def contiguous_depth(self) -> bool:
        """Whether tensor cores read 32-bit operands with the contracted axis contiguous only."""
        return self.generation == 9

    @property
    def double_tensor_cores(self) -> bool:
        """Whether Triton multiplies float64 matrices on tensor cores."""
        return self.generation != 10

    @property
    def tensor_memory(self) -> bool:
        """Whether accumulators of 32-bit products pass through shared memory on their way out."""
        return self.generation >= 10

    @property
    def float8(self) -> bool:
        """Whether matrix products and conversions of 8-bit floats are in hardware."""
        return self.architecture >= 89

    @property
    def library_convolutions(self) -> bool:
        """Whether cuDNN is asked for convolutions: its engines for older GPUs were not measured."""
        return self.generation >= 8

    @property
    def programmatic_launch(self) -> bool:
        """Whether a kernel may be started before the one ahead of it has ended."""
        return self.architecture >= 90

    def lacks(self, kind: DType) -> bool:
        """Whether kernels of this GPU cannot compute with a dtype: the host does."""
        return kind.name.startswith("float8") and not self.float8

    def matrix_rate(self, itemsize: int) -> float:
        """Operations per second of matrix products whose operands have so many bytes each."""
        return self.operations * 2 / itemsize

    @property
    def additions(self) -> float:
        """Additions of float32 numbers per second, one a cycle of each lane."""
        # At 1.48 GHz, as measured: 50e12 operations a second of multiply-adds on an H200.
        lanes = 64 if self.architecture == 80 else 128
        return self.processors * lanes * 1.48e9

    @property
    def launch_bytes(self) -> int:
        """The bytes that memory moves in the 4 us that a kernel's start and end take, in whole MiB:
        steps that touch no more gain by sharing a launch."""
        return round(4e-6 * self.bandwidth / (1 << 20)) << 20

    def seconds(self, traffic: float, operations: float) -> float:
        """The least time for so many bytes and operations."""
        return max(traffic / self.bandwidth, operations / self.operations)


# Rates of the H200 are measured (copy, matrix product, sums over NVLink); the others in proportion
# to their data sheets. Shared memory and L2 from NVIDIA's table of compute capabilities and data
# sheets.
H200 = Target(90, 132, 232448, 50 << 20, 4.2e12, 700e12, 300e9)
TARGETS = {
    "H200": H200,
    "H100 PCIe": replace(H200, processors=114, bandwidth=1.75e12, operations=530e12, link=40e9),
    "H100": replace(H200, bandwidth=2.9e12),
    "A100": Target(80, 108, 166912, 40 << 20, 1.7e12, 260e12, 200e9),
    "L40S": Target(89, 142, 101376, 96 << 20, 0.75e12, 300e12, 20e9),
    "L4": Target(89, 58, 101376, 48 << 20, 0.26e12, 100e12, 20e9),
    "RTX 4090": Target(89, 128, 101376, 72 << 20, 0.9e12, 150e12, 20e9),
    "B200": Target(100, 148, 232448, 126 << 20, 6.9e12, 1600e12, 600e9),
    "RTX 5090": Target(120, 170, 101376, 96 << 20, 1.6e12, 200e12, 40e9),
}
"""GPUs by name; a device is the first whose name is a part of the name that its driver reports."""

# One GPU of each architecture, for programs that are compiled without a device.
OF_ARCHITECTURE = {
    80: TARGETS["A100"], 89: TARGETS["L40S"], 90: H200, 100: TARGETS["B200"],
    120: TARGETS["RTX 5090"],
}  # fmt: skip


def rates(name: str, architecture: int) -> tuple[float, float, float]:
    """(bandwidth, operations, link) of the device `name`; of an unknown one those of a known GPU of
    its architecture, or of the nearest below."""
    for known, target in TARGETS.items():
        if known in name:
            return target.bandwidth, target.operations, target.link
    below = [a for a in OF_ARCHITECTURE if a <= architecture]
    target = OF_ARCHITECTURE[max(below, default=min(OF_ARCHITECTURE))]
    return target.bandwidth, target.operations, target.link
