"""The checkpoints of a run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from genesis_fn import io
from genesis_fn.core.errors import FileError
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.distributed.agreement import from_first
from genesis_fn.training.monitoring.progress import say


class RunCheckpoints:
    """The checkpoints of a run in a folder, written while it goes on or before it does.

    Args:
        root: the folder.
        identity: what must not change between a run and its continuation, as {name: value}.
        keep: newest checkpoints that are kept.
        best: how many of the best validation losses keep theirs beside the newest ones.
        background: whether they are written by a thread.
    """

    def __init__(
        self,
        root: str,
        identity: dict[str, Any],
        *,
        keep: int = 2,
        best: int = 0,
        background: bool = False,
    ) -> None:
        self.root, self.identity, self.keep, self.best = root, identity, keep, best
        self.saver = io.AsyncSaver(root, keep) if background else None

    def save(
        self, step: int, state: PyTree, values: dict[str, Any], spare: Collection[int] = ()
    ) -> None:
        """Write a checkpoint, or begin to, and remove the oldest ones but those of `spare`.

        Raises OSError naming the file; in the background, of the save before.
        """
        values = {**values, "identity": self.identity}
        if self.saver is not None:
            self.saver.save(step, state, values, spare)
        else:
            io.save(self.root, step, state, values, self.keep, spare)

    def wait(self) -> None:
        """Return when nothing is being written. Raises what the last save raised."""
        if self.saver is not None:
            self.saver.wait()

    def close(self) -> None:
        """`wait`, for the last time."""
        if self.saver is not None:
            self.saver.close()

    def newest(self, template: PyTree) -> tuple[PyTree, dict[str, Any]] | None:
        """(state, values) of the newest checkpoint that is not damaged, None where there is none;
        those that are passed over are named.

        Raises ValueError where it is of a run with other settings, FileError where none is whole.
        """
        damaged: FileError | None = None
        # What the first process sees: another machine may learn of a folder later.
        for step in reversed(from_first(lambda: io.steps(self.root), "the checkpoints")):
            try:
                state, _, values = io.restore(self.root, template, step)
            except FileError as error:
                say(f"passed over a checkpoint: {error}")
                damaged = error
                continue
            if changed := _changed(values.get("identity"), self.identity):
                raise ValueError(
                    f"{self.root} holds a run with other settings ({changed}); choose another "
                    "folder by --out"
                )
            return state, values
        if damaged is None:
            return None
        raise FileError(
            f"{damaged}; no whole checkpoint is left, remove {self.root} to start again"
        )


def _changed(before: Any, now: dict[str, Any]) -> str:
    """What differs between two runs, as `batch 8, now 12`; "" where nothing does."""
    old = before if isinstance(before, dict) else {}
    found = [
        f"{name} {old.get(name)!r}, now {value!r}"
        for name, value in now.items()
        if old.get(name) != value
    ]
    return "; ".join(found[:3])
