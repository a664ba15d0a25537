"""The names of JAX's batching that libraries import."""

from __future__ import annotations

from typing import Any

primitive_batchers: dict[Any, Any] = {}  # rules that libraries register; nothing reads them
axis_primitive_batchers: dict[Any, Any] = {}
not_mapped = None
