"""The decoder as a layer, `Decoder`: its functions by the convention of `nn`."""

from __future__ import annotations

import dataclasses
from typing import Any

import genesis_fn.numpy as jnp
from genesis_fn import Array, ArrayLike, DTypeLike, Key, PyTree, errors
from genesis_fn.models import decoder
from genesis_fn.models.decoder_config import DecoderConfig
from genesis_fn.nn import Module


@dataclasses.dataclass(frozen=True)
class Decoder(Module):
    """The model as a layer: `Decoder(config)(params, tokens)` is `forward(params, tokens, config)`.

    The state is the cache of `extend`: `init_state(batch=, capacity=)` makes it, and a call with
    `state=` returns (logits, state).

    Args:
        config: the hyperparameters.
        dtype: of the parameters.

    >>> model = Decoder(DecoderConfig(64, 32, 64, 2, 4, 2, 8))
    >>> params = model.init(random.key(0))
    >>> model(params, jnp.array([[1, 2, 3]])).shape
    (1, 3, 64)
    >>> state = model.init_state(batch=1, capacity=16)
    >>> logits, state = model(params, jnp.array([[1, 2, 3]]), state=state)
    >>> logits.shape, state["lengths"].tolist()
    ((1, 3, 64), [3])
    """

    config: DecoderConfig
    dtype: DTypeLike = jnp.float32

    def init(self, key: Key) -> PyTree:
        return decoder.init(key, self.config, self.dtype)

    def init_state(
        self,
        batch: int | None = None,
        capacity: int | None = None,
        dtype: DTypeLike | None = None,
        **sizes: Any,
    ) -> PyTree:
        """An empty cache, as of `init_cache`, of the dtype of the parameters if `dtype` is None;
        None without sizes."""
        if batch is None or capacity is None:
            return None
        return decoder.init_cache(
            self.config, batch, capacity, self.dtype if dtype is None else dtype
        )

    def __call__(
        self,
        params: PyTree,
        x: ArrayLike,
        *,
        state: PyTree = None,
        key: Key | None = None,
        train: bool = False,
        counts: ArrayLike | None = None,
        positions: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        remat: bool = False,
    ) -> PyTree:
        """Logits of the tokens `x`, int [B, T] or [T]; (logits, state) where `state` is given.

        Args:
            params: from `init`, or `io.load_model`.
            x: int tokens [B, T], or [T] without a batch and state.
            state: a cache, from `init_state(batch=, capacity=)` or an earlier call.
            key, train: not used.
            counts: how many of the T tokens are real in each row, integers [B]; padding comes
                behind them, may hold anything and has logits that mean nothing. None means all.
            positions, mask, remat: as in `forward`, for calls without `state`.

        Raises:
            ArgumentError: `positions`, `mask` or `remat` together with `state`.
            ShapeError: the cache has fewer than T positions, or `counts` are not [B].
            AssertionFailed: a row has fewer than T positions left, when the program runs.
        """
        tokens: Array = jnp.asarray(x)
        if state is not None:
            if positions is not None or mask is not None or remat:
                raise errors.ArgumentError(
                    "Decoder: positions=, mask= and remat= are for calls without state=; with a "
                    "cache, each row goes on from its length"
                )
            return decoder.extend(params, tokens, state, self.config, counts)
        options: dict[str, Any] = {"positions": positions, "mask": mask, "remat": remat}
        return decoder.forward(params, tokens, self.config, counts=counts, **options)
