"""What processes tell each other when they meet, and what must be the same in all of them."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import genesis_fn
from genesis_fn.core.configuration import environment


@dataclass(frozen=True, slots=True)
class Facts:
    """A process: `versions` are of what it computes with, `gpu` names the GPU that it took, by
    whatever name it goes in this process. Processes of equal `machine` see each other's `pid`.
    `direct`: others can map its GPU's memory, of which it has taken none yet."""

    rank: int
    host: str
    machine: str
    pid: int
    started: str
    versions: dict[str, str]
    kind: str
    gpu: str = ""
    direct: bool = False

    def as_text(self) -> str:
        """The facts, for a store."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def of_text(text: bytes) -> Facts:
        """The facts that `as_text` wrote."""
        return Facts(**json.loads(text))


def own_facts(rank: int, kind: str, gpu: str, direct: bool) -> Facts:
    """What this process tells the others."""
    pid = os.getpid()
    return Facts(
        rank, socket.gethostname(), _machine(), pid, started(pid), versions(kind), kind, gpu, direct
    )


def versions(kind: str) -> dict[str, str]:
    """The versions of what results depend on, on devices of `kind`."""
    packages = ("torch", "triton") if kind == "cuda" else ("torch",)
    found = {name: importlib.metadata.version(name) for name in packages}
    return {"genesis_fn": genesis_fn.__version__} | found


def _machine() -> str:
    try:  # containers may share a name, but not their processes
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} {os.getpid()}"


def started(pid: int) -> str:
    """When a process of this machine started, "" where there is none: one that has ended, and one
    that took over its number later, differ from it in that."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if status[0] in "ZX" else status[19]


def disagreement(ranks: Sequence[Facts]) -> str:
    """What differs between processes that must not, and on which ranks; "" where nothing does."""
    lines = []
    kinds = {f.rank: f.kind for f in ranks}
    if len(set(kinds.values())) > 1:
        lines.append(f"their devices: {by_value(kinds)}")
    for name in sorted({n for f in ranks for n in f.versions}):
        found = {f.rank: f.versions.get(name, "none") for f in ranks}
        if len(set(found.values())) > 1 and len(lines) < 3:
            lines.append(f"their {name}: {by_value(found)}")
    if lines:
        advice = "install the same versions on every machine, and give each process a device alike"
        return "\n  ".join(["the processes do not agree on", *lines, advice])
    return _shared_gpu(ranks)


def _shared_gpu(ranks: Sequence[Facts]) -> str:
    taken: dict[tuple[str, str], int] = {}
    for f in ranks:
        other = taken.setdefault((f.machine, f.gpu), f.rank)
        if f.gpu and other != f.rank:
            return (
                f"ranks {other} and {f.rank} have the same GPU of {f.host}; one process drives one "
                "GPU\n  start at most as many processes on a machine as it has GPUs: torchrun "
                "--nproc-per-node"
            )
    return ""


def by_value(found: dict[int, str]) -> str:
    """ "2.9 on ranks 0, 1; 2.10 on rank 2"."""
    texts = []
    for value in dict.fromkeys(found.values()):
        ranks = [str(r) for r, v in found.items() if v == value]
        more = ", ..." if len(ranks) > 8 else ""
        texts.append(f"{value} on rank{'s' * (len(ranks) > 1)} {', '.join(ranks[:8])}{more}")
    return "; ".join(texts)


def several_cpu_devices() -> str:
    """Why `GENESIS_CPU_DEVICES` does not go with several processes; "" where it is not set."""
    value = environment.text("GENESIS_CPU_DEVICES")
    if not value or value == "1":
        return ""
    return (
        f"GENESIS_CPU_DEVICES={value} shows several devices in one process, and here are several "
        "processes, of which each has one device\n  unset it"
    )
