"""What a launcher says in environment variables: which process this is, and where all meet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from genesis_fn.core.errors import ArgumentError

# Slurm gives a job no port: one of the last 4096 follows from the job's number, as in JAX.
_PORTS = 1 << 12


@dataclass(frozen=True, slots=True)
class Place:
    """A process among `size`, by its `rank`, which meet at `host`:`port`.

    `hosted`: the launcher keeps the store there; else rank 0 does. `attempt`: how often the
    launcher has started them before. `local_rank` is None where nothing says it.
    """

    rank: int = 0
    size: int = 1
    local_rank: int | None = None
    host: str = ""
    port: int = 0
    hosted: bool = False
    attempt: str = "0"

    @property
    def address(self) -> str:
        """Where the processes meet, as text."""
        return f"{self.host}:{self.port}"


def find_place(
    environ: Mapping[str, str],
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> Place:
    """The place of this process: what the arguments say, the rest by the launcher's variables.

    Raises ArgumentError where something is missing, or is no number.
    """
    found = _torchrun(environ) or _slurm(environ) or {}
    given = {"size": num_processes, "rank": process_id}
    found |= {k: str(v) for k, v in given.items() if v is not None}
    if coordinator_address is not None:
        host, _, port = coordinator_address.rpartition(":")
        found |= {"host": host, "port": port, "hosted": ""}
    if "size" not in found and "rank" not in found and coordinator_address is None:
        return Place()
    size, rank = _number(found, "size"), _number(found, "rank")
    if not 0 <= rank < size:
        raise ArgumentError(
            f"initialize: process {rank} of {size}: processes are numbered from 0 to {size - 1}"
        )
    if size == 1:
        return Place(0, 1, _optional(found, "local_rank"))
    if not found.get("host"):
        raise ArgumentError(
            f"initialize: nothing says where the {size} processes meet\n"
            '  give coordinator_address="host:port" of process 0, or set MASTER_ADDR and '
            "MASTER_PORT; torchrun and srun do"
        )
    return Place(
        rank,
        size,
        _optional(found, "local_rank"),
        found["host"].strip("[]"),
        _number(found, "port"),
        found.get("hosted") == "True",
        found.get("attempt", "0"),
    )


def is_first(environ: Mapping[str, str], number: str = "rank") -> bool:
    """Whether this process speaks for all that its launcher started: the one numbered 0, or one
    whose number cannot be right. `number`: "local_rank" for those of its machine."""
    found = _torchrun(environ) or _slurm(environ) or {}
    own, size = found.get(number, ""), found.get("size", "")
    return not (own.isdecimal() and size.isdecimal() and 0 < int(own) < int(size))


_TORCHRUN = {
    "rank": "RANK", "size": "WORLD_SIZE", "local_rank": "LOCAL_RANK", "host": "MASTER_ADDR",
    "port": "MASTER_PORT", "hosted": "TORCHELASTIC_USE_AGENT_STORE",
    "attempt": "TORCHELASTIC_RESTART_COUNT",
}  # fmt: skip
_NAMES = {"size": "num_processes", "rank": "process_id", "port": "coordinator_address"}


def _torchrun(environ: Mapping[str, str]) -> dict[str, str] | None:
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    return {name: environ[key] for name, key in _TORCHRUN.items() if environ.get(key)}


def _slurm(environ: Mapping[str, str]) -> dict[str, str] | None:
    """What `srun` says. In a batch script, which runs once, only the nodes of the job are known."""
    step = environ.get("SLURM_STEP_NODELIST")
    if step is None and "SLURM_STEP_ID" not in environ:
        return None
    names = {"rank": "SLURM_PROCID", "size": "SLURM_NTASKS", "local_rank": "SLURM_LOCALID"}
    found = {name: environ[key] for name, key in names.items() if key in environ}
    if "rank" not in found or "size" not in found:
        return None
    nodes = step or environ.get("SLURM_JOB_NODELIST", "")
    job = int(environ.get("SLURM_JOB_ID") or 0)
    found["host"] = environ.get("MASTER_ADDR") or first_node(nodes)
    found["port"] = environ.get("MASTER_PORT") or str((1 << 16) - _PORTS + job % _PORTS)
    return found


def first_node(nodes: str) -> str:
    """The first host of a list in Slurm's notation: "gpu003" of "gpu[003-007,12],x1"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    name = first[0] if first else ""
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", name)


def _number(found: Mapping[str, str], name: str) -> int:
    text = found.get(name, "")
    if not text.isdecimal():
        said = f"{text!r}, which is no number" if text else "missing"
        variables = f"{_TORCHRUN[name]} (torchrun) and SLURM variables (srun)"
        raise ArgumentError(
            f"initialize: {_NAMES[name]} is {said}\n  give it, or start the processes by a "
            f"launcher, which says it by {variables}"
        )
    return int(text)


def _optional(found: Mapping[str, str], name: str) -> int | None:
    text = found.get(name, "")
    return int(text) if text.isdecimal() else None
