"""The numbers of a training run for TensorBoard."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Sequence
from typing import Any


def require_tensorboard() -> None:
    """Raise ModuleNotFoundError where TensorBoard's package is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ModuleNotFoundError(
            "log.tensorboard needs the package tensorboard: pip install tensorboard",
            name="tensorboard",
        )


class ScalarBoard:
    """Event files of a run, each number of the log a curve.

    Opened behind a step, it has TensorBoard forget what earlier files say of later ones. A folder
    without event files begins with the rows that the log has kept.

    Args:
        folder: where the event files are.
        start: the step behind which the run goes on.
        rows: of the log, up to that step.
    """

    def __init__(self, folder: str, start: int = 0, rows: Sequence[dict[str, Any]] = ()) -> None:
        require_tensorboard()
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        earlier = os.path.isdir(folder) and any("tfevents" in name for name in os.listdir(folder))
        self._writer = EventFileWriter(folder)
        if earlier:
            session = SessionLog(status=SessionLog.START)
            # What stands at this step or behind it, in any file, is dropped by who reads it.
            event = Event(wall_time=time.time(), step=start + 1, session_log=session)
            self._writer.add_event(event)
        for row in () if earlier else rows:
            self._add(row)
        self._writer.flush()

    def write(self, row: dict[str, Any]) -> None:
        """Add the numbers of a row of the log, at once. Events have none."""
        self._add(row)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    def _add(self, row: dict[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        if "event" in row:
            return
        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in row.items()
            if name != "step" and type(value) in (int, float, bool)
        ]
        summary = Summary(value=values)
        self._writer.add_event(Event(wall_time=time.time(), step=row["step"], summary=summary))
