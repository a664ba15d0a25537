"""`split_real_and_imaginary`: complex parameters as pairs of real ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, PyTree, dtypes, tree
from genesis_fn.errors import DTypeError
from genesis_fn.extend import as_array
from genesis_fn.optim import base
from genesis_fn.optim.annotations import OptState, Params, Updates
from genesis_fn.optim.tree_map_updates import is_none


class SplitRealAndImaginaryArrays(NamedTuple):
    """The parts of a complex array; None where an update is frozen."""

    real: Array | None
    imaginary: Array | None


class SplitRealAndImaginaryState(NamedTuple):
    """The inner state, for the real arrays."""

    inner_state: OptState


def _split(x: Any) -> Any:
    if x is None or not dtypes.is_complex(as_array(x).dtype):
        return x
    return SplitRealAndImaginaryArrays(jnp.real(x), jnp.imag(x))


def _is_pair(x: Any) -> bool:
    return x is None or isinstance(x, SplitRealAndImaginaryArrays)


def _joined(x: Any) -> Any:
    if not isinstance(x, SplitRealAndImaginaryArrays):
        return x
    return None if x.real is None or x.imaginary is None else x.real + 1j * x.imaginary


def split_real_and_imaginary(
    inner: base.GradientTransformation,
) -> base.GradientTransformationExtraArgs:
    """Applies `inner` to the real and imaginary parts of complex leaves, as to parameters.

        update = a + i b,  a and b the updates of `inner` for Re g and Im g

    Real leaves are given to `inner` as they are. Gradients that descend are the conjugates of those
    that `grad` gives: call `update` with `optim.tree.conj(grads)`.

    Source: Sorber, Van Barel & De Lathauwer, "Unconstrained optimization of real functions in
    complex variables", 2012.

    Args:
        inner: transformation of real parameters.

    Returns:
        The transformation, whose states are SplitRealAndImaginaryState(inner_state).

    >>> w, g = jnp.array([1.0 + 2.0j]), jnp.array([3.0 - 4.0j])
    >>> tx = optim.contrib.split_real_and_imaginary(optim.sign_sgd(0.5))
    >>> updates, state = tx.update(g, tx.init(w), w)
    >>> updates
    Array([-0.5+0.5j], dtype=complex64)
    """
    inner = base.with_extra_args_support(inner)

    def split(values: PyTree) -> PyTree:
        return tree.map(_split, values, is_leaf=is_none)

    def init(params: Params) -> SplitRealAndImaginaryState:
        return SplitRealAndImaginaryState(inner.init(split(params)))

    def update(
        updates: Updates,
        state: SplitRealAndImaginaryState,
        params: Params | None = None,
        **extra: Any,
    ) -> tuple[Updates, SplitRealAndImaginaryState]:
        parts = None if params is None else split(params)
        new, inner_state = inner.update(split(updates), state.inner_state, parts, **extra)
        joined = tree.map(_joined, new, is_leaf=_is_pair)
        return joined, SplitRealAndImaginaryState(inner_state)

    return base.GradientTransformationExtraArgs(init, update, state=SplitRealAndImaginaryState)


def require_real(params: Params, name: str) -> None:
    """Raises DTypeError where a parameter is complex, which `name` has no meaning for."""
    for path, p in tree.leaves_with_path(params):
        if dtypes.is_complex(as_array(p).dtype):
            raise DTypeError(
                f"{name} takes real parameters, but params{tree.keystr(path)} is "
                f"{as_array(p).aval}\n"
                f"  wrap it: optim.contrib.split_real_and_imaginary(optim.contrib.{name}(...))"
            )
