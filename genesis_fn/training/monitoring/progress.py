"""What a training run shows while it goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Generator
from typing import Any, TextIO

from genesis_fn.training.monitoring.amounts import duration_text, size_text


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


@dataclasses.dataclass
class _Speaker:
    """Where lines go beside the terminal, and whether they go there."""

    file: TextIO | None = None
    shown: bool = True


_speaker = _Speaker()


@contextlib.contextmanager
def noting(file: TextIO, *, shown: bool) -> Generator[None]:
    """`with noting(file, shown=False):` what is said goes to a file, and is shown or not."""
    before = _speaker.file, _speaker.shown
    _speaker.file, _speaker.shown = file, shown
    try:
        yield
    finally:
        _speaker.file, _speaker.shown = before


def note(text: str) -> None:
    """Write a line to the file of `noting` alone, where there is one."""
    if _speaker.file is not None:
        with contextlib.suppress(OSError):  # a full disk: what matters fails by itself
            # At once: threads write lines, too.
            _speaker.file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


def say(text: str) -> None:
    """Print a line, if there is somebody to read it."""
    note(text)
    if not _speaker.shown:
        return
    try:
        print(text, flush=True)
    except OSError:
        # What it holds back would be written again, and fail again, when the process ends.
        sys.stdout = open(os.devnull, "w")


class Progress:
    """A bar at a terminal, elsewhere a line at each evaluation. Both say how long it will take.

    Args:
        total: number of steps.
        done: how many of them an earlier process took.
        quiet: whether nothing is shown but an interruption.
    """

    def __init__(self, total: int, done: int, *, quiet: bool) -> None:
        from tqdm import tqdm

        self.total, self.quiet = total, quiet
        self.began, self.first = time.perf_counter(), done
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
        self.used: dict[str, str] = {}

    def advanced(
        self, loss: float, rate: float, mfu: float | None = None, memory: int | None = None
    ) -> None:
        """A step was taken.

        Args:
            loss: of the step.
            rate: tokens per second so far.
            mfu: the share of the device's peak that they use; None: not known.
            memory: the most bytes that were in use; None: not known.
        """
        self.used = _used(mfu, memory)
        shown = {"loss": f"{loss:.3f}", "tok_s": f"{rate:,.0f}", **self.used}
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update()

    def evaluated(self, step: int, loss: float, validation_loss: float, rate: float) -> None:
        """The run was evaluated at a step."""
        if not self.quiet and not self.watched:
            used = "".join(f", {name} {value}" for name, value in self.used.items())
            say(
                f"step {step} of {self.total}: loss {loss:.3f}, validation loss "
                f"{validation_loss:.3f}, {rate:,.0f} tokens/s{used}{self._left(step)}"
            )

    def _left(self, step: int) -> str:
        """How long the steps behind this one will take, at the pace of those that were taken."""
        taken, left = step - self.first, self.total - step
        if taken < 1 or left < 1:
            return ""
        return f", {duration_text((time.perf_counter() - self.began) / taken * left)} left"

    def interrupted(self, step: int) -> None:
        """The run ends at a step that is not its last."""
        line = "\n" if self.watched else ""  # below the bar
        say(f"{line}interrupted at step {step}; run the same command to go on")

    def close(self) -> None:
        """End the bar."""
        self.bar.close()


def _used(mfu: float | None, memory: int | None) -> dict[str, str]:
    """What is known of the use of the device, by its name."""
    used = {} if mfu is None else {"MFU": f"{mfu:.1%}"}
    return used if memory is None else {**used, "memory": size_text(memory)}
