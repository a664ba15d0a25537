"""`genesis-fn info`: versions and devices."""

from __future__ import annotations

import argparse
import platform
from typing import Any

import numpy as np
import torch

import genesis_fn
from genesis_fn.cli import options
from genesis_fn.core import device
from genesis_fn.core.sharding.world import world

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
    print("\n".join(_facts()))
    return 0


def _facts() -> list[str]:
    """Versions and devices, line by line."""
    kinds = ["cpu", "cuda"] if device.cuda_usable() else ["cpu"]
    return [
        f"genesis_fn {genesis_fn.__version__}, Python {platform.python_version()}, torch "
        f"{torch.__version__} ({torch.get_num_threads()} threads)",
        f"default device: {device.default_device()}",
        *[f"{kind}: {', '.join(map(str, device.devices(kind)))}" for kind in kinds],
    ]


def print_environment_info(return_string: bool = False) -> str | None:
    """Print versions and devices of this process, for a report.

    Args:
        return_string: whether to return the text instead.

    Returns:
        The text, or None.

    >>> gf.print_environment_info(return_string=True).startswith("genesis_fn ")
    True
    """
    lines = [
        *_facts(),
        f"numpy: {np.__version__}",
        f"processes: {world().size}",
        f"platform: {platform.platform()}",
    ]
    if return_string:
        return "\n".join(lines)
    print("\n".join(lines))
    return None
