"""What libraries import of checkify."""

from __future__ import annotations
