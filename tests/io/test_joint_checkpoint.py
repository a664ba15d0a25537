"""Checkpoints of several processes: what each of them would write, put together and read again over
other meshes. One process has all devices, and takes the part of each of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import io, optim, parallel
from genesis_fn.core import device as devices
from genesis_fn.core.sharding.mesh import Mesh
from genesis_fn.errors import FileError
from genesis_fn.io.joint import saving as joint
from genesis_fn.io.manifest import read_arrays, read_manifest, write_manifest
from genesis_fn.io.safetensors import flat_names

MESHES = {
    "one": ((1,), ("data",)), "two": ((2,), ("fsdp",)), "four": ((4,), ("fsdp",)),
    "both": ((2, 2), ("data", "fsdp")), "model": ((2, 2), ("fsdp", "model")),
}  # fmt: skip


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GENESIS_CPU_DEVICES", "4")
    yield
    for key in [k for k in devices._devices if k[0] == "cpu" and k[1]]:
        del devices._devices[key]


def state() -> Any:
    params = {
        "mlp": {"up_proj": {"weight": jnp.arange(96.0).reshape(8, 12)}},
        "norm": jnp.arange(5.0).astype("bfloat16"),
        "none": jnp.zeros((0, 4)),
    }
    adam = optim.adam(1e-3).init(params)
    return {"params": params, "opt_state": adam, "step": jnp.asarray(7, "int32")}


def laid_out(name: str, x: Any) -> Any:
    shape, axes = MESHES[name]
    mesh = gf.make_mesh(shape, axes)
    base = None
    if "model" in axes:
        rules = {"weight$": gf.P(None, "model")}
        base = parallel.tensor(x, mesh, rules)
    if "fsdp" in axes:
        base = parallel.fsdp(x, mesh, "fsdp", base=base, min_size=1)
    return gf.device_put(x, base or parallel.replicated(mesh))


def written(root: Path, x: Any) -> Path:
    """A checkpoint, of whose arrays each device writes what a process with it would."""
    mesh: Mesh = gf.tree.leaves(x)[0].sharding.mesh
    folder = root / "step-00000007"
    folder.mkdir(parents=True)
    reports = []
    for rank, device in enumerate(mesh.devices.flat):
        parts: dict[str, joint.OwnPart] = {}
        for turn, (name, leaf) in enumerate(flat_names(x).items()):
            start = joint.start_of(leaf.sharding, leaf.shape, device, turn)
            if start is not None:
                held = np.asarray(leaf)[leaf.sharding.devices_indices_map(leaf.shape)[device]]
                parts[name] = joint.OwnPart(held, start, str(leaf.dtype), leaf.shape)
        file = joint.file_name(rank, mesh.size)
        reports.append(json.loads(json.dumps(joint.write_part(str(folder), file, parts))))
    files, leaves = joint.described(reports)
    structure = str(gf.tree.structure(x))
    write_manifest(str(folder), 7, files, leaves, {"loss": 0.5}, {}, structure)
    return folder


def same(a: Any, b: Any) -> None:
    for x, y in zip(gf.tree.leaves(a), gf.tree.leaves(b), strict=True):
        assert x.sharding == y.sharding and x.dtype == y.dtype
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.mark.parametrize("before, now", list(itertools.product(MESHES, MESHES)))
def test_what_one_mesh_wrote_is_read_over_another(tmp_path: Path, before: str, now: str):
    written(tmp_path, laid_out(before, state()))
    wanted = laid_out(now, state())
    empty = laid_out(now, gf.tree.map(jnp.zeros_like, state()))
    found, step, values = io.restore(tmp_path, empty)
    assert (step, values) == (7, {"loss": 0.5})
    same(found, wanted)
    # And on one device, as where there is no mesh.
    same(io.restore(tmp_path, state())[0], state())


@pytest.mark.parametrize("mesh", MESHES)
def test_a_checkpoint_of_one_process_is_read_over_a_mesh(tmp_path: Path, mesh: str):
    io.save(tmp_path, 7, state())
    wanted = laid_out(mesh, state())
    empty = laid_out(mesh, gf.tree.map(jnp.zeros_like, state()))
    same(io.restore(tmp_path, empty)[0], wanted)
    io.save(tmp_path, 8, wanted)  # which one process has all of
    same(io.restore(tmp_path, state())[0], state())


def test_every_number_is_written_once_and_by_turns(tmp_path: Path):
    folder = written(tmp_path, laid_out("both", state()))
    manifest = read_manifest(str(folder))
    assert manifest.leaves is not None and len(manifest.files) == 4
    for leaf in manifest.leaves.values():
        assert sum(int(np.prod(p.shape)) for p in leaf.pieces) == int(np.prod(leaf.shape))
    weights = [leaf.pieces for n, leaf in manifest.leaves.items() if n.endswith("weight")]
    assert len({p.file for pieces in weights for p in pieces}) > 2  # both halves of the devices


def test_a_slice_is_a_view_of_the_file_that_has_it(tmp_path: Path):
    """And what lies in several files is put together of them."""
    folder = written(tmp_path, laid_out("four", state()))
    arrays = read_arrays(str(folder), read_manifest(str(folder)))
    x: Any = arrays["params.mlp.up_proj.weight"]
    whole = np.arange(96.0, dtype=np.float32).reshape(8, 12)
    for rows, columns in itertools.product([(0, 8), (2, 4), (3, 3), (1, 7)], [(0, 12), (3, 6)]):
        index = slice(*rows), slice(*columns)
        np.testing.assert_array_equal(x[index], whole[index])
    assert x[...].base is None
    part = x[slice(0, 8), slice(3, 6)]
    assert part.base is not None and not part.flags.writeable


def test_a_damaged_part_is_named(tmp_path: Path):
    folder = written(tmp_path, laid_out("two", state()))
    path = folder / joint.file_name(1, 2)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"state-00002-of-00002\.safetensors: damaged"):
        io.restore(tmp_path, state())
