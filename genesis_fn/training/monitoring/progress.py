"""What a training run shows while it goes on."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any


class Terminal:
    """A stream for what is shown only. A terminal that is gone, as after SIGHUP, ends no run."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, text: str) -> None:
        """Show `text`, if there is somebody to show it to."""
        with contextlib.suppress(OSError):
            self.stream.write(text)

    def flush(self) -> None:
        """Show what is held back."""
        with contextlib.suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def say(text: str) -> None:
    """Print a line, if there is somebody to read it."""
    try:
        print(text, flush=True)
    except OSError:
        # What it holds back would be written again, and fail again, when the process ends.
        sys.stdout = open(os.devnull, "w")


class Progress:
    """A bar at a terminal, elsewhere a line at each evaluation.

    Args:
        total: number of steps.
        done: how many of them an earlier process took.
        quiet: whether nothing is shown but an interruption.
    """

    def __init__(self, total: int, done: int, *, quiet: bool) -> None:
        from tqdm import tqdm

        self.total, self.quiet = total, quiet
        self.watched = sys.stderr is not None and sys.stderr.isatty()
        self.bar = tqdm(
            total=total,
            initial=done,
            disable=quiet or not self.watched,
            unit="step",
            dynamic_ncols=True,
            desc="training",
            file=Terminal(sys.stderr),
        )

    def advanced(self, loss: float, rate: float) -> None:
        """A step was taken: its loss, and tokens per second so far."""
        self.bar.set_postfix(loss=f"{loss:.3f}", tok_s=f"{rate:,.0f}", refresh=False)
        self.bar.update()

    def evaluated(self, step: int, loss: float, validation_loss: float, rate: float) -> None:
        """The run was evaluated at a step."""
        if not self.quiet and not self.watched:
            say(
                f"step {step} of {self.total}: loss {loss:.3f}, validation loss "
                f"{validation_loss:.3f}, {rate:,.0f} tokens/s"
            )

    def interrupted(self, step: int) -> None:
        """The run ends at a step that is not its last."""
        line = "\n" if self.watched else ""  # below the bar
        say(f"{line}interrupted at step {step}; run the same command to go on")

    def close(self) -> None:
        """End the bar."""
        self.bar.close()
