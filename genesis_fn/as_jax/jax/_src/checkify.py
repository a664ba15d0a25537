"""What libraries import of checkify."""

from __future__ import annotations

from genesis_fn.experimental.checkify import (
    Error as Error,
    check as check,
    check_error as check_error,
    checkify as checkify,
)
