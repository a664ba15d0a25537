"""Placements in the types of arrays and in arguments, as programs for JAX write them.

The library's types carry no placement and its functions take none: arrays are laid out by
`with_sharding_constraint`, `reshard`, `jit` and `shard_map`. Under JAX's names the functions of
`TAKES` have `out_sharding=` as well, which lays the result out, and `jax.typeof(x).sharding` is the
sharding over no axes, as in JAX outside meshes whose axes are explicit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from genesis_fn.core.aval import Aval
from genesis_fn.core.sharding.layout import PartitionSpec
from genesis_fn.transforms.sharding.constraint import with_sharding_constraint

# {module: (argument, names)}
TAKES: dict[str, dict[str, str]] = {
    "jax.numpy": dict.fromkeys(
        (
            "arange", "array", "asarray", "bincount", "broadcast_to", "dot", "einsum", "empty",
            "full", "full_like", "matmul", "ones", "ones_like", "percentile", "ravel", "repeat",
            "reshape", "tensordot", "zeros", "zeros_like",
        ),
        "out_sharding",
    ),
    "jax.random": dict.fromkeys(
        (
            "ball", "bernoulli", "beta", "bits", "categorical", "cauchy", "chisquare", "dirichlet",
            "exponential", "f", "gamma", "generalized_normal", "geometric", "gumbel", "laplace",
            "loggamma", "logistic", "lognormal", "maxwell", "multivariate_normal", "normal",
            "orthogonal", "pareto", "permutation", "poisson", "rademacher", "randint", "rayleigh",
            "t", "triangular", "truncated_normal", "uniform", "wald",
        ),
        "out_sharding",
    ),
    "jax.lax": {
        "full": "sharding", "full_like": "sharding",
        **dict.fromkeys(
            (
                "broadcast", "broadcast_in_dim", "broadcasted_iota", "conv_general_dilated", "dot",
                "dot_general", "empty", "ragged_dot", "ragged_dot_general", "reduce", "reduce_sum",
                "reshape", "rng_bit_generator",
            ),
            "out_sharding",
        ),
    },
}  # fmt: skip


class AbstractMesh:
    """A mesh without devices: the one without axes is what `jax.sharding.get_abstract_mesh` gives.

    >>> AbstractMesh((2, 4), ("data", "model")).shape
    {'data': 2, 'model': 4}
    """

    def __init__(
        self, axis_sizes: tuple[int, ...] = (), axis_names: tuple[str, ...] = (), **_: Any
    ) -> None:
        self.axis_sizes, self.axis_names = tuple(axis_sizes), tuple(axis_names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbstractMesh) and self.shape == other.shape

    def __hash__(self) -> int:
        return hash((self.axis_sizes, self.axis_names))

    @property
    def empty(self) -> bool:
        """Whether it has no axes."""
        return not self.axis_names

    @property
    def shape(self) -> dict[str, int]:
        """{axis: size}."""
        return dict(zip(self.axis_names, self.axis_sizes))

    @property
    def are_all_axes_explicit(self) -> bool:
        """Whether types say how values are placed: never here."""
        return False

    @property
    def are_all_axes_auto(self) -> bool:
        """Whether the partitioner places values: always here."""
        return True


class TypeSharding:
    """The sharding that a type has: over a mesh without axes."""

    mesh = AbstractMesh()

    def __init__(self, ndim: int) -> None:
        self.spec = PartitionSpec(*[None] * ndim)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeSharding) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        return f"NamedSharding(mesh=AbstractMesh(()), spec={self.spec})"

    def update(self, *, spec: PartitionSpec) -> TypeSharding:
        """The sharding of a type with these dimensions; raises ValueError for one that names an
        axis, of which there are none."""
        if any(axis is not None for axis in spec):
            raise ValueError(f"{spec} names axes of a mesh; types carry no placement here")
        return TypeSharding(len(spec))

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape itself: no axis divides it."""
        return tuple(global_shape)


def types_have_shardings() -> None:
    """Give types the attribute that JAX's have."""
    Aval.sharding = property(lambda aval: TypeSharding(len(aval.shape)))  # type: ignore[attr-defined]


def laid_out(f: Callable[..., Any], argument: str) -> Callable[..., Any]:
    """`f` with an argument that says how its result is laid out."""

    @functools.wraps(f)
    def with_placement(*args: Any, **kwargs: Any) -> Any:
        given = kwargs.pop(argument, None)
        result = f(*args, **kwargs)
        if given is None or isinstance(given, TypeSharding):
            return result
        return with_sharding_constraint(result, given)

    return with_placement
