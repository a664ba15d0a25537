"""Models' folders to a GPU and from it."""

from __future__ import annotations

import numpy as np

import genesis_fn as gf
from genesis_fn import io, models, random
from genesis_fn.core import tree


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
