"""Types of annotations."""

from __future__ import annotations

from genesis_fn.core.types.annotations import ArrayLike as ArrayLike, DTypeLike as DTypeLike
