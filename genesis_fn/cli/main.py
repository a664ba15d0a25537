"""`genesis-fn`: the command that pyproject installs."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence

from genesis_fn.cli.interrupt import Interrupted
from genesis_fn.core.errors import GenesisError


def _info(arguments: argparse.Namespace) -> int:
    """Print versions and devices."""
    import platform

    import torch

    import genesis_fn
    from genesis_fn.core import device

    print(
        f"genesis_fn {genesis_fn.__version__}, Python {platform.python_version()}, torch "
        f"{torch.__version__} ({torch.get_num_threads()} threads)"
    )
    print(f"default device: {device.default_device()}")
    for kind in ("cpu", "cuda"):
        if kind == "cpu" or device.cuda_usable():
            print(f"{kind}: {', '.join(map(str, device.devices(kind)))}")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    from genesis_fn.cli import demo

    top = argparse.ArgumentParser(prog="genesis-fn", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    sub = commands.add_parser("demo", help="train a small Qwen3 on text found on this machine")
    demo.add_arguments(sub)
    sub.set_defaults(run=demo.run)
    commands.add_parser("info", help="versions and devices").set_defaults(run=_info)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status; errors of files and settings are one line.

    It is 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, which end a run when it is saved.
    """
    arguments = parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files can be any bytes
    try:
        return arguments.run(arguments)
    except Interrupted as interrupted:
        return interrupted.status
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError, GenesisError) as error:
        print(f"genesis-fn: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
