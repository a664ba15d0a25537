"""What optim's signatures say: `Params`, `Updates`, `OptState`, `Number`, `Schedule`, `Mask`.

The protocols `TransformInitFn` and `TransformUpdateFn` are the two functions of a
`GradientTransformation`; the others are functions and schedules that users hand to transformations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

from genesis_fn import Array, ArrayLike, PyTree

ArrayTree: TypeAlias = PyTree  # of arrays
Params: TypeAlias = PyTree  # of arrays; None where a leaf is frozen
Updates: TypeAlias = PyTree  # the parameters' structure
OptState: TypeAlias = PyTree  # mostly a named tuple
# A hyperparameter: a Python number, or a scalar array where it is injected or traced.
Number: TypeAlias = float | Array
# From the number of steps taken: an int32 scalar, or the int that a user passes.
Schedule: TypeAlias = Callable[[Any], Number]
ScalarOrSchedule: TypeAlias = Number | Schedule
# A tree of bools, or a function that gives one, of (path, leaf) or of the parameters.
Mask: TypeAlias = PyTree | Callable[..., PyTree]
MaskOrFn: TypeAlias = Mask | None  # optax's name, where None is a mask too


class TransformInitFn(Protocol):
    """`init` of a transformation: the state before the first step."""

    def __call__(self, params: Params) -> OptState:
        """The state for parameters of this structure, these shapes and dtypes."""
        ...


class TransformUpdateFn(Protocol):
    """`update` of a transformation: one step."""

    def __call__(
        self, updates: Updates, state: OptState, params: Params | None = None
    ) -> tuple[Updates, OptState]:
        """(transformed updates, the next state)."""
        ...


class TransformUpdateExtraArgsFn(Protocol):
    """`update` of a transformation that takes further keyword arguments, as `value=`."""

    def __call__(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, OptState]:
        """(transformed updates, the next state)."""
        ...


class ShouldSkipUpdateFunction(Protocol):
    """What decides for `MultiSteps` to ignore gradients, as `skip_not_finite` does."""

    def __call__(
        self, updates: Updates, gradient_step: ArrayLike, params: Params | None
    ) -> tuple[Array, PyTree]:
        """(whether to skip these gradients, a boolean scalar; what the state keeps of it)."""
        ...


ScheduleState: TypeAlias = PyTree


@runtime_checkable
class StatefulSchedule(Protocol):
    """A schedule with a state of its own, which `inject_hyperparams` keeps and renews."""

    def init(self) -> ScheduleState:
        """The state before the first step."""
        ...

    def update(self, state: ScheduleState, **extra_args: Any) -> ScheduleState:
        """The state of the next step, of this one and the extra arguments of `update`."""
        ...

    def __call__(self, state: ScheduleState, **extra_args: Any) -> Number:
        """The schedule's value."""
        ...


class ConditionFn(Protocol):
    """What decides at which steps `conditionally_transform` and `conditionally_mask` transform."""

    def __call__(self, step: Any, **extra_args: Any) -> Any:
        """Whether to transform at `step`, an int32 scalar: a boolean scalar."""
        ...
