"""Events that libraries record. Nothing listens."""

from __future__ import annotations

from typing import Any


def record_event(event: str, **kwargs: Any) -> None:
    """Nothing."""


def record_event_duration_secs(event: str, duration: float, **kwargs: Any) -> None:
    """Nothing."""


def record_scalar(event: str, value: float, **kwargs: Any) -> None:
    """Nothing."""
