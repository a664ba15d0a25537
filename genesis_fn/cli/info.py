"""`genesis-fn info`: versions and devices."""

from __future__ import annotations

import argparse
import platform
from typing import Any

import torch

import genesis_fn
from genesis_fn.cli import options
from genesis_fn.core import device

_EXAMPLES = ("genesis-fn info", "genesis-fn info --device cuda")


def add(commands: Any) -> None:
    """The command and its options."""
    parser = options.add_command(
        commands,
        "info",
        run,
        help="versions and devices",
        description="Print versions and devices. Fails where the device of --device is not there.",
        examples=_EXAMPLES,
    )
    options.add_device(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print versions and devices. Returns the exit status."""
    print(
        f"genesis_fn {genesis_fn.__version__}, Python {platform.python_version()}, torch "
        f"{torch.__version__} ({torch.get_num_threads()} threads)"
    )
    print(f"default device: {device.default_device()}")
    for kind in ("cpu", "cuda"):
        if kind == "cpu" or device.cuda_usable():
            print(f"{kind}: {', '.join(map(str, device.devices(kind)))}")
    return 0
