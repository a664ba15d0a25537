"""Pipeline parallelism: the layers of a model are divided into stages, one for each device along an
axis, and the micro-batches of a batch pass through them one after the other.

The schedule is 1F1B: a stage runs the backward pass of a micro-batch as soon as its cotangent is
there, so that the number of micro-batches in flight, and with it memory, depends on the number of
stages alone. Of a micro-batch in flight a stage keeps its input, and computes the rest again. With
S stages, at tick t stage s runs the forward pass of micro-batch t - s and the backward pass of
micro-batch t - (2S - 2 - s); between ticks activations go to the next stage, and cotangents to the
one before. Source: Narayanan et al., "Memory-efficient pipeline-parallel DNN training"
(PipeDream-Flush), 2021; Narayanan et al., "Efficient large-scale language model training on GPU
clusters using Megatron-LM", 2021.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import genesis_fn.numpy as jnp
from genesis_fn import Array, P, PyTree, custom_vjp, eval_shape, lax, shard_map, tree, vjp
from genesis_fn.core import dtypes
from genesis_fn.core.errors import ArgumentError, NotDifferentiableError, ShapeError, ShardingError
from genesis_fn.core.sharding.mesh import Mesh

Stage = Callable[[Any, Any, Any], Any]


def pipeline(
    first: Callable[[Any, Any], Any],
    stage: Stage,
    last: Callable[[Any, Any, Any], Any],
    mesh: Mesh,
    *,
    axis: Hashable = "stage",
    microbatches: int,
) -> Callable[[PyTree, PyTree, PyTree], Array]:
    """A loss whose model is divided into stages along an axis of the mesh, by the 1F1B schedule.

    Differentiated, it computes loss and gradients in one pass over the micro-batches, and adds up
    gradients in float32; else it runs the forward passes alone. Other axes of the mesh divide rows
    and parameters as outside. Custom derivatives keep their dtypes within `gf.amp`: for mixed
    precision give functions that it is applied to.

    Args:
        first: function of (its parameters, the inputs of a micro-batch) that gives the activations
            which the first stage takes, as an embedding.
        stage: function of (the parameters of a stage, activations, the inputs of the micro-batch)
            that gives activations of the same shapes and dtypes.
        last: function of (its parameters, the activations of the last stage, the targets of a
            micro-batch) that gives the mean loss of the micro-batch, or a pair: the sum of its
            losses, and their number, which does not depend on parameters. By pairs the mean over
            the batch is exact where numbers differ.
        mesh: the devices.
        axis: name of the axis along which stages follow each other.
        microbatches: how many micro-batches a batch is divided into; row i is in micro-batch
            i % microbatches, so that each device along another axis has its rows of each.

    Returns:
        A function of (params, inputs, targets) to the mean loss of the batch. `params` is {"first",
        "stages", "last"}, with those of the stages stacked along a first dimension; inputs and
        targets are pytrees of arrays [rows, ...]. Weights that `first` and `last` share are given
        to both. It is differentiable in reverse mode, once, with respect to `params`.

    Raises:
        ArgumentError: `microbatches` is less than 1.
        ShardingError: the mesh has no such axis.
        ShapeError: when it is called: `microbatches` does not divide the rows, there are other
            stages than devices along the axis, or a stage changes the shape of activations.

    >>> mesh = gf.make_mesh((1,), ("stage",))
    >>> loss = pipeline(
    ...     lambda p, x: x @ p,
    ...     lambda p, x, inputs: jnp.tanh(x @ p),
    ...     lambda p, x, y: jnp.mean((x @ p - y) ** 2),
    ...     mesh,
    ...     microbatches=2,
    ... )
    >>> params = {"first": jnp.ones((3, 2)), "stages": jnp.ones((1, 2, 2)), "last": jnp.ones(2)}
    >>> value, grads = gf.value_and_grad(loss)(params, jnp.ones((4, 3)), jnp.ones(4))
    >>> grads["stages"].shape
    (1, 2, 2)
    """
    if not isinstance(microbatches, int) or microbatches < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"pipeline: microbatches={microbatches!r} must be a positive integer")
    if axis not in mesh.axis_names:
        known = ", ".join(map(repr, mesh.axis_names))
        raise ShardingError(f"pipeline: axis {axis!r} is not in the mesh, whose axes are {known}")
    schedule = _Schedule(first, stage, last, mesh, axis, microbatches)

    def mean(params: PyTree, inputs: PyTree, targets: PyTree) -> Array:
        return schedule.loss(params, inputs, targets)

    def forward(params: PyTree, inputs: PyTree, targets: PyTree) -> Any:
        if any(x.perturbed for x in tree.leaves((inputs, targets))):
            raise NotDifferentiableError(
                "pipeline: its loss is differentiable with respect to params alone, not to inputs "
                "and targets\n  wrap them in stop_gradient"
            )
        params, inputs, targets = tree.map(lambda x: x.value, (params, inputs, targets))
        loss, grads = schedule.loss_and_grads(params, inputs, targets)
        return loss, (params, grads)

    def backward(saved: Any, ct: Any) -> Any:
        params, grads = saved
        return tree.map(lambda p, g: jnp.astype(g * ct, p.dtype), params, grads), None, None

    differentiable = custom_vjp(mean)
    differentiable.defvjp(forward, backward, symbolic_zeros=True)

    def loss(params: PyTree, inputs: PyTree, targets: PyTree) -> Array:
        schedule.check_stages(params)
        return differentiable(params, *schedule.divided((inputs, targets)))

    return loss


class _Sums(NamedTuple):
    """What a device adds up: losses and their number, and gradients in float32."""

    loss: Any
    count: Any
    first: Any
    stage: Any
    last: Any


class _Schedule:
    """Which micro-batch each stage computes with at each tick. Arrays of micro-batches are stacked
    along their first dimension."""

    def __init__(
        self,
        first: Callable[[Any, Any], Any],
        stage: Stage,
        last: Callable[[Any, Any, Any], Any],
        mesh: Mesh,
        axis: Hashable,
        count: int,
    ) -> None:
        self.first, self.stage, self.last = first, stage, last
        self.mesh, self.axis, self.count = mesh, axis, count
        self.stages = mesh.shape[axis]
        # The first stage has the input of a micro-batch for 2S - 2 ticks, longer than the others.
        self.in_flight = 2 * self.stages - 1

    # ---- what it takes ----

    def check_stages(self, params: PyTree) -> None:
        """Raise ShapeError unless the parameters are those of as many stages as there are
        devices."""
        if not isinstance(params, dict) or params.keys() != {"first", "stages", "last"}:
            found = f"keys {[*params]}" if isinstance(params, dict) else type(params).__name__
            raise ShapeError(
                f'pipeline: params must be a dict of "first", "stages" and "last", got {found}'
            )
        for path, x in zip(tree.paths(params["stages"]), tree.leaves(params["stages"])):
            if x.shape[:1] != (self.stages,):
                raise ShapeError(
                    f"pipeline: stages{path} {list(x.shape)} must have a first dimension of "
                    f"{self.stages}, an entry for each device along {self.axis!r}"
                )

    def divided(self, batch: PyTree) -> PyTree:
        """The batch as micro-batches [microbatches, rows, ...]."""
        leaves = [jnp.asarray(x) for x in tree.leaves(batch)]
        sizes = {x.shape[:1] for x in leaves}
        if len(sizes) != 1 or () in sizes:
            shapes = ", ".join(str(list(x.shape)) for x in leaves)
            raise ShapeError(f"pipeline: inputs and targets must have equal rows, got {shapes}")
        ((rows,),) = sizes
        if rows % self.count:
            raise ShapeError(
                f"pipeline: a batch of {rows} rows cannot be divided into {self.count} "
                "micro-batches"
            )
        # Rows that are near each other are on one device: it has its share of every micro-batch.
        split = lambda x: jnp.swapaxes(
            jnp.reshape(x, (rows // self.count, self.count, *x.shape[1:])), 0, 1
        )
        return tree.unflatten(tree.structure(batch), [split(x) for x in leaves])

    # ---- the two programs ----

    def loss(self, params: PyTree, inputs: PyTree, targets: PyTree) -> Array:
        """The mean loss, by forward passes alone."""

        def of_device(stage: Any, first: Any, last: Any, inputs: Any, targets: Any) -> Any:
            part = _Part(self, stage, first, last, inputs, targets)
            ticks = jnp.arange(self.count + self.stages - 1)
            (_, sums), _ = lax.scan(part.forward_tick, part.forward_begin(), ticks)
            return lax.psum(sums, self.axis)

        total, count = self._on_devices(of_device, (P(), P()))(params, inputs, targets)
        return total / _at_least_one(count)

    def loss_and_grads(self, params: PyTree, inputs: PyTree, targets: PyTree) -> tuple[Array, Any]:
        """(the mean loss, its gradients in float32), by 1F1B."""

        def of_device(stage: Any, first: Any, last: Any, inputs: Any, targets: Any) -> Any:
            part = _Part(self, stage, first, last, inputs, targets)
            ticks = jnp.arange(self.count + 2 * self.stages - 2)
            (*_, sums), _ = lax.scan(part.tick, part.begin(), ticks)
            stacked = tree.map(lambda g: jnp.expand_dims(g, 0), sums.stage)
            return stacked, lax.psum((sums.loss, sums.count, sums.first, sums.last), self.axis)

        run = self._on_devices(of_device, (P(self.axis), P()))
        stages, (total, count, first, last) = run(params, inputs, targets)
        count = _at_least_one(count)
        grads = {"first": first, "stages": stages, "last": last}
        return total / count, tree.map(lambda g: g / count, grads)

    def _on_devices(self, f: Callable[..., Any], out_specs: Any) -> Callable[..., Any]:
        run = shard_map(
            f,
            mesh=self.mesh,
            in_specs=(P(self.axis), P(), P(), P(), P()),
            out_specs=out_specs,
            axis_names={self.axis},
        )
        return lambda params, inputs, targets: run(
            params["stages"], params["first"], params["last"], inputs, targets
        )


class _Part:
    """What one device does: a stage, what comes before the first one, and after the last."""

    def __init__(
        self, of: _Schedule, stage: Any, first: Any, last: Any, inputs: Any, targets: Any
    ) -> None:
        self.of = of
        self.place = lax.axis_index(of.axis)
        self.is_first, self.is_last = self.place == 0, self.place == of.stages - 1
        self.stage = tree.map(lambda p: jnp.squeeze(p, 0), stage)
        # Stages take different branches, in which no device waits for another one: the gradient of
        # what they share is a device's own until the end, and is summed over them once.
        self.first, self.last = lax.pvary((first, last), of.axis)
        self.inputs, self.targets = inputs, targets
        self.kind = self._kind()

    def _kind(self) -> Any:
        """Shapes and dtypes of the activations. Raises ShapeError if a stage changes them."""
        inputs = _one_of(self.inputs, 0)
        taken = eval_shape(self.of.first, self.first, inputs)
        given = eval_shape(self.of.stage, self.stage, taken, inputs)
        shapes = lambda kind: [(x.shape, x.dtype) for x in tree.leaves(kind)]
        if tree.structure(taken) != tree.structure(given) or shapes(taken) != shapes(given):
            raise ShapeError(
                f"pipeline: a stage takes activations {taken} and gives {given}; they must be of "
                "one shape and dtype"
            )
        return taken

    def _nothing(self, *lead: int) -> Any:
        """Zeros in place of activations, or of several along a leading dimension."""
        zeros = tree.map(lambda x: jnp.zeros((*lead, *x.shape), x.dtype), self.kind)
        return lax.pvary(zeros, self.of.axis)

    def _sent(self, x: Any, by: int) -> Any:
        """What the stage `by` places before this one has."""
        n = self.of.stages
        pairs = [(i, i + by) for i in range(n) if 0 <= i + by < n]
        return lax.ppermute(x, self.of.axis, pairs)

    # ---- forward alone ----

    def forward_begin(self) -> tuple[Any, Any]:
        """(activations that the stage before sent, losses and their number)."""
        return self._nothing(), lax.pvary((jnp.float32(0), jnp.float32(0)), self.of.axis)

    def forward_tick(self, carry: tuple[Any, Any], t: Array) -> tuple[Any, None]:
        x, sums = carry
        x = self._entered(x, t)
        x = lax.cond(self._runs(t - self.place), self._stepped, lambda x, at: x, x, t - self.place)
        at = t - (self.of.stages - 1)
        ends = self.is_last & self._runs(at)
        with_loss = lambda: tree.map(jnp.add, sums, self._loss(self.last, x, at))
        return (self._sent(x, 1), lax.cond(ends, with_loss, lambda: sums)), None

    # ---- one forward, one backward ----

    def begin(self) -> tuple[Any, Any, Any, _Sums]:
        """(activations that the stage before sent, cotangents that the one behind sent, the inputs
        of the stage for the micro-batches in flight, sums)."""
        return self._nothing(), self._nothing(), self._nothing(self.of.in_flight), self._no_sums()

    def _no_sums(self) -> _Sums:
        none = lax.pvary(jnp.float32(0), self.of.axis)
        parameters = self.first, self.stage, self.last
        return _Sums(none, none, *[tree.map(_no_gradient, p) for p in parameters])

    def tick(self, carry: tuple[Any, Any, Any, _Sums], t: Array) -> tuple[Any, None]:
        x, ct, kept, sums = carry
        x = self._entered(x, t)
        kept = tree.map(lambda k, v: _put(k, v, t % self.of.in_flight), kept, x)
        # The last stage has nothing to send: its forward pass is a part of its backward pass.
        sends = self._runs(t - self.place) & ~self.is_last
        sent = lax.cond(sends, self._stepped, lambda x, at: x, x, t - self.place)

        ticks_ago = 2 * (self.of.stages - 1 - self.place)
        at = t - (2 * self.of.stages - 2 - self.place)
        x = _one_of(kept, (t - ticks_ago) % self.of.in_flight)
        does = jnp.where(self._runs(at), 1 + self.is_last.astype(jnp.int32), 0)
        sums, ct = lax.switch(does, [self._idle, self._pulled, self._ended], sums, x, ct, at)
        starts = self.is_first & self._runs(at)
        sums = lax.cond(starts, self._started, lambda sums, ct, at: sums, sums, ct, at)
        return (self._sent(sent, 1), self._sent(ct, -1), kept, sums), None

    def _idle(self, sums: _Sums, x: Any, ct: Any, at: Array) -> tuple[_Sums, Any]:
        return sums, ct

    def _pulled(self, sums: _Sums, x: Any, ct: Any, at: Array) -> tuple[_Sums, Any]:
        """The backward pass of a stage, which computes its forward pass again."""
        inputs = self._inputs(at)
        _, pull = vjp(lambda p, x: self.of.stage(p, x, inputs), self.stage, x)
        g, ct = pull(ct)
        return sums._replace(stage=_added(sums.stage, g)), ct

    def _ended(self, sums: _Sums, x: Any, ct: Any, at: Array) -> tuple[_Sums, Any]:
        """Both passes of the last stage, with the loss behind it."""
        inputs = self._inputs(at)

        def loss(stage: Any, last: Any, x: Any) -> Any:
            return self._loss(last, self.of.stage(stage, x, inputs), at)

        value, pull, count = vjp(loss, self.stage, self.last, x, has_aux=True)
        g_stage, g_last, ct = pull(jnp.ones_like(value))
        return sums._replace(
            loss=sums.loss + value,
            count=sums.count + count,
            stage=_added(sums.stage, g_stage),
            last=_added(sums.last, g_last),
        ), ct

    def _started(self, sums: _Sums, ct: Any, at: Array) -> _Sums:
        """The gradient of what comes before the first stage."""
        inputs = self._inputs(at)
        _, pull = vjp(lambda p: self.of.first(p, inputs), self.first)
        return sums._replace(first=_added(sums.first, pull(ct)[0]))

    # ---- a micro-batch ----

    def _runs(self, at: Array) -> Array:
        """Whether there is a micro-batch `at`."""
        return (at >= 0) & (at < self.of.count)

    def _inputs(self, at: Array) -> Any:
        return _one_of(self.inputs, at)

    def _entered(self, x: Any, t: Array) -> Any:
        """What the stage takes: of the first one the activations of a new micro-batch."""
        enters = self.is_first & (t < self.of.count)
        return lax.cond(enters, lambda: self.of.first(self.first, self._inputs(t)), lambda: x)

    def _stepped(self, x: Any, at: Array) -> Any:
        return self.of.stage(self.stage, x, self._inputs(at))

    def _loss(self, last: Any, x: Any, at: Array) -> tuple[Array, Array]:
        """(the sum of the losses, their number)."""
        loss = self.of.last(last, x, _one_of(self.targets, at))
        total, count = loss if isinstance(loss, tuple) else (loss, 1)
        return jnp.astype(total, jnp.float32), jnp.astype(count, jnp.float32)


def _one_of(stacked: Any, at: Any) -> Any:
    """The entry at a position, or at the nearest one that there is."""
    one = functools.partial(lax.dynamic_index_in_dim, keepdims=False, allow_negative_indices=False)
    return tree.map(lambda x: one(x, at), stacked)


def _put(stacked: Array, x: Array, at: Array) -> Array:
    return lax.dynamic_update_index_in_dim(stacked, x, at, 0, allow_negative_indices=False)


def _no_gradient(p: Array) -> Array:
    """Zeros of float32 at least, laid out over the mesh as the parameter is."""
    return jnp.astype(p, dtypes.widened(p.dtype)) * 0


def _added(sums: Any, gradients: Any) -> Any:
    return tree.map(lambda s, g: s + jnp.astype(g, s.dtype), sums, gradients)


def _at_least_one(count: Array) -> Array:
    """What the sum of losses is divided by: where no label counts, the mean is 0."""
    return jnp.where(count > 0, count, 1)
