"""Models' folders to a GPU and from it."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn as gf
from genesis_fn import errors, io, models, random
from genesis_fn.core import dtypes, tree
from genesis_fn.io.read_ahead import ArraySource, read_onto
from genesis_fn.io.safetensors import DataFile, FileSpan, file_version


def test_weights_go_to_the_gpu_and_back(tmp_path):
    config = models.DecoderConfig(
        17, 8, 8, 2, 2, 1, 4, num_experts=3, num_experts_per_tok=1, moe_intermediate_size=6
    )
    params = models.decoder.init(random.key(0), config)
    io.save_model(tmp_path / "here", params, config)
    with gf.transfer_guard("disallow"):  # loading and saving ask for their copies
        there, _ = io.load_model(tmp_path / "here", device="cuda")
        half, _ = io.load_model(tmp_path / "here", "bfloat16", gf.cuda())
        io.save_model(tmp_path / "there", there, config)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    for x, y in zip(tree.leaves(params), tree.leaves(half)):
        assert y.device is gf.cuda() and str(y.dtype) == "bfloat16"
        np.testing.assert_array_equal(
            np.asarray(x.astype("bfloat16").astype("float32")), np.asarray(y.astype("float32"))
        )


@pytest.mark.parametrize("sizes", [[5], [3, 9 << 20, 1, 2 << 20], [1 << 20] * 23, [2, 2]])
def test_an_array_of_several_parts_is_read_in_pieces(tmp_path, sizes):
    """Parts of one file, in any order, that end within the pieces of several threads."""
    draw = np.random.default_rng(sum(sizes))
    gaps = draw.integers(0, 9, len(sizes) + 1)
    wanted, content, at = {}, [draw.bytes(gaps[-1])], int(gaps[-1])
    for n in draw.permutation(len(sizes)):
        content += [draw.bytes(sizes[n]), draw.bytes(gaps[n])]
        wanted[n] = at, content[-2]
        at += sizes[n] + int(gaps[n])
    path = tmp_path / "weights"
    path.write_bytes(b"".join(content))
    with open(path, "rb") as f:
        file = DataFile(str(path), file_version(f))
    spans = [FileSpan(file, wanted[n][0], size) for n, size in enumerate(sizes)]
    source = ArraySource(dtypes.U8, (sum(sizes),), spans)
    for device in (gf.cuda(), gf.cpu()):
        (found,) = read_onto([source], device)
        assert found.device is device
        assert np.asarray(found).tobytes() == b"".join(wanted[n][1] for n in range(len(sizes)))
    with open(path, "r+b") as f:
        f.truncate(path.stat().st_size // 2)
    with pytest.raises(errors.FileError, match="changed while"):
        read_onto([source], gf.cuda())
