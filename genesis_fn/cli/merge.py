"""`genesis-fn merge`: a model and its adapters as one model."""

from __future__ import annotations

import argparse
from typing import Any

from genesis_fn import io, nn
from genesis_fn.cli import options
from genesis_fn.cli.language_model import opening
from genesis_fn.cli.options import option


def add(commands: Any) -> None:
    """The command and its options."""
    parser = options.add_command(
        commands,
        "merge",
        run,
        help="a model and its adapters as one model",
        description="Add adapters to the weights of their model, and write a model folder that "
        "computes the same without them.",
        examples=(
            "genesis-fn merge --model qwen --adapter runs/sft/adapter --out runs/sft/merged",
        ),
    )
    option(
        parser,
        "--model",
        type=options.path,
        required=True,
        metavar="FOLDER",
        help="the model: config.json, safetensors files, tokenizer.json",
    )
    folder: dict[str, Any] = {"type": options.path, "required": True, "metavar": "FOLDER"}
    option(parser, "--adapter", help="its adapters, of PEFT", **folder)
    option(parser, "--out", help="where the merged model goes", **folder)
    options.add_device(parser)
    opening.add_dtype(parser)


def run(arguments: argparse.Namespace) -> int:
    """Merge, and write. Returns the exit status."""
    # In the dtype of the files, whatever computes fast here: the folder is for others too.
    dtype = None if arguments.dtype == "auto" else arguments.dtype
    params, config = io.load_model(arguments.model, dtype=dtype)
    adapters, settings = io.load_adapter(arguments.adapter, params)
    merged = nn.lora.merge(params, adapters, settings)
    io.save_model(arguments.out, merged, config, source=arguments.model)
    print(f"written: {arguments.out}")
    return 0
