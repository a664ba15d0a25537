"""What libraries import of JAX's dtypes."""

from __future__ import annotations

from genesis_fn.core.errors import DTypeError as TypePromotionError
from genesis_fn.core.types.extended import KeyType as ExtendedDType
from genesis_fn.dtypes import (
    DType as DType,
    canonicalize_dtype as canonicalize_dtype,
    extended as extended,
    float0 as float0,
    issubdtype as issubdtype,
    prng_key as prng_key,
    result_type as result_type,
)
