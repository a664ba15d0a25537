"""How processes find each other, and what they say when they do not."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import genesis_fn as gf
from genesis_fn.core.errors import ArgumentError
from genesis_fn.core.sharding.world import world
from genesis_fn.distributed.clusters import Place, find_place, first_node
from genesis_fn.distributed.facts import Facts, disagreement
from genesis_fn.distributed.initialization import exports_memory
from tests.distributed.conftest import ROOT, Launcher, environment, free_port, needs, of_torchrun


@pytest.mark.parametrize(
    "nodes, first",
    [
        ("gpu[003-007,12],x1", "gpu003"),
        ("gpu[12,003-007]", "gpu12"),
        ("x1,gpu[3-4]", "x1"),
        ("node", "node"),
        ("rack[1-2]-gpu[07-08]-ib,x", "rack1-gpu07-ib"),
        ("", ""),
    ],
)
def test_the_first_node_of_slurms_lists(nodes: str, first: str):
    assert first_node(nodes) == first


def test_what_launchers_say():
    torchrun = of_torchrun(2, 4, 29400)
    assert find_place(torchrun) == Place(2, 4, 2, "127.0.0.1", 29400)
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "3"}
    assert find_place(torchrun | agent) == Place(2, 4, 2, "127.0.0.1", 29400, True, "3")
    slurm = {
        "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "123456",
        "SLURM_STEP_NODELIST": "gpu[03-04]",
    }  # fmt: skip
    port = 65536 - 4096 + 123456 % 4096
    assert find_place(slurm) == Place(5, 8, 1, "gpu03", port)
    assert find_place(slurm | {"MASTER_ADDR": "x", "MASTER_PORT": "7"}) == Place(5, 8, 1, "x", 7)
    in_step = {k: v for k, v in slurm.items() if "STEP" not in k} | {"SLURM_JOB_NODELIST": "a[1-2]"}
    assert find_place(in_step) == Place()  # a batch script
    assert find_place(in_step | {"SLURM_STEP_ID": "0"}) == Place(5, 8, 1, "a1", port)
    assert find_place(slurm | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) == Place(0, 1, 1)
    assert find_place({}) == Place()


def test_arguments_come_before_variables():
    assert find_place({}, "host:7", 2, 1) == Place(1, 2, None, "host", 7)
    assert find_place({}, "[::1]:7", 2, 1) == Place(1, 2, None, "::1", 7)
    assert find_place(of_torchrun(0, 4, 1), "host:7") == Place(0, 4, 0, "host", 7)


@pytest.mark.parametrize(
    "told, arguments, message",
    [
        ({}, (None, 2, 0), "nothing says where the 2 processes meet"),
        ({}, (None, 2, None), "process_id is missing"),
        ({}, ("host:x", 2, 0), "coordinator_address is 'x', which is no number"),
        ({}, ("host:7", 2, 2), "process 2 of 2: processes are numbered from 0 to 1"),
        ({"RANK": "a", "WORLD_SIZE": "2"}, (), "process_id is 'a', which is no number"),
    ],
)
def test_what_is_missing_is_named(
    told: dict[str, str], arguments: tuple[object, ...], message: str
):
    with pytest.raises(ArgumentError, match=message):
        find_place(told, *arguments)  # pyright: ignore[reportArgumentType]


def test_a_world_of_one(monkeypatch: pytest.MonkeyPatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID", "SLURM_STEP_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    assert not gf.distributed.is_initialized()
    gf.distributed.initialize()
    try:
        assert gf.distributed.is_initialized() and world().store is None
        with pytest.raises(RuntimeError, match="called before; this is process 0 of 1"):
            gf.distributed.initialize()
        gf.distributed.barrier()
        x = gf.numpy.arange(2)
        assert gf.distributed.broadcast_one_to_all([x])[0].tolist() == [0, 1]
        assert gf.distributed.process_allgather(x).tolist() == [[0, 1]]
        assert gf.distributed.process_allgather(x, tiled=True).tolist() == [0, 1]
        gf.distributed.assert_equal(x)
        assert gf.local_devices(0) == gf.devices() == gf.local_devices()
        with pytest.raises(ValueError, match="there is no process 1"):
            gf.local_devices(1)
    finally:
        gf.distributed.shutdown()
    assert not gf.distributed.is_initialized()
    gf.distributed.shutdown()


def facts(rank: int, **changes: object) -> Facts:
    given: dict[str, Any] = {"rank": rank, "host": "host", "machine": "m", "pid": rank}
    given |= {"started": "1", "kind": "cuda", "gpu": f"{rank}"}
    return Facts(**given | {"versions": {"torch": "2.9", "triton": "3.6"}} | changes)


def test_what_must_be_the_same():
    assert disagreement([facts(0), facts(1)]) == ""
    other = facts(2, versions={"torch": "2.10", "triton": "3.6"})
    said = disagreement([facts(0), facts(1), other])
    assert "their torch: 2.9 on ranks 0, 1; 2.10 on rank 2" in said
    said = disagreement([facts(0), facts(1, kind="cpu", versions={"torch": "2.9"})])
    assert "their devices: cuda on rank 0; cpu on rank 1" in said
    assert "their triton: 3.6 on rank 0; none on rank 1" in said
    said = disagreement([facts(0), facts(1, gpu="0")])
    assert "ranks 0 and 1 have the same GPU of host" in said
    assert disagreement([facts(0), facts(1, gpu="0", machine="other")]) == ""


REFUSED = {
    "other_version": "their genesis_fn: 0.1.0 on rank 0; 0.0.9 on rank 1",
    "other_size": "was started as one of ",
    "same_rank": "",
    "too_few": "1 of 3 processes did not come to 127.0.0.1",
}


@pytest.mark.parametrize("program", ["other_version", "other_size", "too_few"])
def test_processes_that_do_not_fit_together(launcher: Launcher, tmp_path: Path, program: str):
    world = launcher.start(program, 2, tmp_path)
    assert world.wait() == [1, 1]
    for rank in range(2):
        said = world.said(rank)
        assert said.count("DistributedError: initialize: ") == 1 and REFUSED[program] in said, said


def test_two_processes_of_one_rank(launcher: Launcher, tmp_path: Path):
    world = launcher.start("same_rank", 3, tmp_path)
    assert world.wait() == [1, 1, 1]
    for rank in range(3):
        assert "two processes were started as rank 1 of 3" in world.said(rank)


@pytest.mark.cpu
def test_several_cpu_devices_are_of_one_process(launcher: Launcher, tmp_path: Path):
    world = launcher.start("simple", 2, tmp_path, GENESIS_CPU_DEVICES="4")
    assert world.wait() == [1, 1]
    for rank in range(2):
        assert "GENESIS_CPU_DEVICES=4 shows several devices in one process" in world.said(rank)


@pytest.mark.cpu
@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_a_number_of_cpu_devices(value: str, monkeypatch: pytest.MonkeyPatch):
    backend = gf.cpu().backend
    monkeypatch.setenv("GENESIS_CPU_DEVICES", "3")
    assert backend.device_count() == 3
    monkeypatch.setenv("GENESIS_CPU_DEVICES", value)
    with pytest.raises(gf.errors.BackendError, match="GENESIS_CPU_DEVICES='.*' is no number of"):
        backend.device_count()


def test_torchrun_starts_a_world(tmp_path: Path):
    """By its own store, of which no process is the keeper."""
    needs(2)
    script = tmp_path / "script.py"
    script.write_text(
        "import genesis_fn as gf, numpy as np\n"
        "gf.distributed.initialize()\n"
        "rank, size = gf.process_index(), gf.process_count()\n"
        "ranks = gf.distributed.process_allgather(np.int32(rank))\n"
        # A file each: what two processes print to one pipe comes in any order, also within a line.
        f"open(f'{tmp_path}/{{rank}}', 'w').write(f'{{size}} {{ranks.tolist()}}')\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, str(script)], cwd=ROOT, env=environment(), capture_output=True, text=True,
        timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["2 [0, 1]"] * 2
    assert "Error" not in done.stderr


def test_importing_the_library_is_no_world():
    assert "RANK" not in os.environ or world().size == 1


DIRECT = """
import sys
import numpy as np
import genesis_fn as gf
from genesis_fn.backends.cuda.driver.driver import opened
from genesis_fn.core.sharding.world import world

rank = int(sys.argv[1])
if sys.argv[1] == sys.argv[2]:
    gf.numpy.ones(3) + 1
gf.distributed.initialize(sys.argv[3], 2, rank, local_device_ids=rank)
mesh = gf.make_mesh((2,), ("i",))
whole = gf.device_put(np.arange(8.0, dtype=np.float32), gf.NamedSharding(mesh, gf.P("i")))
turned = gf.shard_map(
    lambda x: gf.lax.ppermute(x, "i", [(0, 1), (1, 0)]), mesh=mesh, in_specs=gf.P("i"),
    out_specs=gf.P("i"),
)
for _ in range(2):
    found = gf.jit(turned)(whole)
mine = gf.device_get(found.addressable_shards[0].data)
assert mine.tolist() == [4 - 4 * rank + i for i in range(4)]
print(world().direct, opened[rank].info.shared)
"""


@pytest.mark.cpu
@pytest.mark.parametrize("early", [pytest.param(None, marks=pytest.mark.slow), 1])
def test_memory_of_gpus_is_mapped_where_no_process_used_its_own_before(early: int | None):
    """On the interpreting driver, which checks what a GPU would hang on."""
    told = {"GENESIS_CUDA_DRIVER": "interpret", "GENESIS_INTERPRET_DEVICES": "2"}
    told |= {"TRITON_INTERPRET": "1", "GENESIS_DEVICE": f"cuda:{early or 0}"}
    place = f"127.0.0.1:{free_port()}"
    made = [
        subprocess.Popen(
            [sys.executable, "-c", DIRECT, str(rank), str(early), place],
            cwd=ROOT, env=environment() | told, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [p.communicate(timeout=120) for p in made]
    assert [p.returncode for p in made] == [0, 0], said
    assert [out.split() for out, _ in said] == [[str(early is None)] * 2] * 2, said


@pytest.mark.parametrize("exported, code", [(1, 0), (0, 0), (1, 1)])
def test_others_are_told_of_a_gpu_that_exports_no_memory(
    monkeypatch: pytest.MonkeyPatch, exported: int, code: int
):
    name = "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"
    bindings = types.SimpleNamespace(
        CUdevice_attribute=types.SimpleNamespace(**{name: "exports"}),
        CUresult=types.SimpleNamespace(CUDA_SUCCESS=0),
        cuDeviceGet=lambda index: (0, index),
        cuDeviceGetAttribute=lambda asked, gpu: (code, exported * (asked == "exports")),
    )
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", types.SimpleNamespace(driver=bindings))
    monkeypatch.delenv("GENESIS_CUDA_DRIVER", raising=False)
    gpu: Any = types.SimpleNamespace(kind="cuda", index=63)
    assert exports_memory(gpu) == (exported == 1 and code == 0)
