"""What libraries import of JAX's dtypes."""

from __future__ import annotations

from genesis_fn.core.errors import DTypeError as TypePromotionError
from genesis_fn.dtypes import float0 as float0, issubdtype as issubdtype
