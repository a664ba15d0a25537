"""What signatures say of arrays and dtypes, under the names of jax.typing.

`isinstance(x, ArrayLike)` tells at run time whether operations take `x` as an array.
"""

from genesis_fn.core.types.annotations import ArrayLike as ArrayLike, DTypeLike as DTypeLike
