"""Policies: the dtypes of parameters, computation and outputs, and casts of pytrees to them."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import numpy as np

from genesis_fn.core import dtypes, tree
from genesis_fn.core.array import Array
from genesis_fn.core.convert import as_array
from genesis_fn.core.dtypes import DType, DTypeLike

T = TypeVar("T")

_ROLES = {
    "p": "param_dtype", "param": "param_dtype", "params": "param_dtype",
    "c": "compute_dtype", "compute": "compute_dtype",
    "o": "output_dtype", "out": "output_dtype", "output": "output_dtype", "outputs": "output_dtype",
}  # fmt: skip


def half_dtype() -> DType:
    """The 16-bit float that "half" means in a policy: bfloat16 on every device.

    Returns:
        The dtype.

    >>> gf.amp.half_dtype().name
    'bfloat16'
    """
    return dtypes.BF16


def _cast_floats(values: T, dtype: DTypeLike) -> T:
    target = dtypes.dtype(dtype)

    def at(x: Any) -> Any:
        if not isinstance(x, (Array, np.ndarray, np.generic)) or not dtypes.is_float(x.dtype):
            return x
        return as_array(x, target).astype(target)

    return tree.map(at, values)


def cast_to_half(values: T) -> T:
    """Cast the floating arrays of a tree to `half_dtype()`.

    Args:
        values: pytree; leaves that are no floating arrays stay as they are.

    Returns:
        The tree with these arrays cast.

    >>> gf.amp.cast_to_half({"w": jnp.ones(2), "n": 3})
    {'w': Array([1., 1.], dtype=bfloat16), 'n': 3}
    """
    return _cast_floats(values, half_dtype())


def cast_to_full(values: T) -> T:
    """Cast the floating arrays of a tree to float32.

    Args:
        values: pytree; leaves that are no floating arrays stay as they are.

    Returns:
        The tree with these arrays cast.

    >>> gf.amp.cast_to_full(jnp.ones(2, "bfloat16")).dtype.name
    'float32'
    """
    return _cast_floats(values, dtypes.F32)


@dataclasses.dataclass(frozen=True)
class Policy:
    """The dtypes of parameters, computation and outputs. Immutable and hashable.

    >>> policy = gf.amp.Policy("float32", "bfloat16", "float32")
    >>> policy.cast_to_compute(jnp.ones(1)).dtype.name, str(policy)
    ('bfloat16', 'p=f32,c=bf16,o=f32')
    """

    param_dtype: DTypeLike
    compute_dtype: DTypeLike
    output_dtype: DTypeLike

    def __post_init__(self) -> None:
        for name in ("param_dtype", "compute_dtype", "output_dtype"):
            object.__setattr__(self, name, dtypes.dtype(getattr(self, name)))

    def cast_to_param(self, x: T) -> T:
        """Return the tree with its floating arrays in the dtype of parameters."""
        return _cast_floats(x, self.param_dtype)

    def cast_to_compute(self, x: T) -> T:
        """Return the tree with its floating arrays in the dtype of computation."""
        return _cast_floats(x, self.compute_dtype)

    def cast_to_output(self, x: T) -> T:
        """Return the tree with its floating arrays in the dtype of outputs."""
        return _cast_floats(x, self.output_dtype)

    def with_output_dtype(self, output_dtype: DTypeLike) -> Policy:
        """Return this policy with another dtype of outputs."""
        return dataclasses.replace(self, output_dtype=output_dtype)

    def __str__(self) -> str:
        of_roles = (self.param_dtype, self.compute_dtype, self.output_dtype)
        return ",".join(
            f"{k}={dtypes.SHORT[dtypes.dtype(d)]}" for k, d in zip("pco", of_roles, strict=True)
        )


def _parse_dtype(text: str) -> DType:
    named = {"half": half_dtype, "full": lambda: dtypes.F32, "float": lambda: dtypes.F32}
    return named[text]() if text in named else dtypes.dtype(text)


def get_policy(policy_name: str) -> Policy:
    """Parse a policy from text: "p=f32,c=bf16,o=f32", "params=float32,compute=half" or "bf16".

    Args:
        policy_name: comma-separated role=dtype. Roles are params, compute and output, or p, c and
            o. Parameters default to float32, computation to the parameters' dtype, outputs to the
            computation's. A single dtype is that of all three. "half" is `half_dtype()`, "full"
            float32.

    Returns:
        The Policy.

    Raises:
        ValueError: a role is unknown or repeated, or has no dtype.
        DTypeError: a dtype is unknown.

    >>> str(gf.amp.get_policy("params=float32,compute=half"))
    'p=f32,c=bf16,o=bf16'
    """
    if "=" not in policy_name:
        dtype = _parse_dtype(policy_name.strip())
        return Policy(dtype, dtype, dtype)
    found: dict[str, DType] = {}
    for part in policy_name.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        role = _ROLES.get(key)
        if role is None or role in found or not value:
            raise ValueError(
                f"policy {policy_name!r}: {part.strip()!r} is not understood; write "
                '"params=float32,compute=bfloat16,output=float32", each part once'
            )
        found[role] = _parse_dtype(value)
    param = found.get("param_dtype", dtypes.F32)
    compute = found.get("compute_dtype", param)
    return Policy(param, compute, found.get("output_dtype", compute))
