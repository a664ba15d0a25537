"""Low-rank adapters of linear layers: LoRA and DoRA over any pytree of parameters.

Adapters are a pytree of their own, so that they alone are differentiated, optimized and saved:

    adapters = lora.init(key, params, config)
    loss = lambda adapters: model_loss(lora.apply(params, adapters, config), batch)
    grads = gf.grad(loss)(adapters)

A linear layer is a dict with a "weight" [out, in]. Names and numbers are those of PEFT.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import genesis_fn.numpy as jnp
import genesis_fn.random as random
from genesis_fn import Array, DTypeLike, Key, PyTree
from genesis_fn.errors import ArgumentError
from genesis_fn.extend import brief
from genesis_fn.nn.low_rank import LoraWeight

ALL_LINEAR = "all-linear"
# Dicts with a matrix that are no linear layer, or that no adapter of all layers is for.
_TABLES = ("embed_tokens",)
_ROUTERS = ("gate",)
_OUTPUT = "lm_head"


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """What adapters are like, under PEFT's names.

    Args:
        r: rank, positive.
        lora_alpha: the adapters' output is multiplied by lora_alpha / r.
        target_modules: which layers are adapted: names, which a layer's path ends with; a regular
            expression for whole paths; or "all-linear", all but the output layer.
        exclude_modules: names or a regular expression of layers that are not.
        lora_dropout: share of the adapters' inputs that is dropped where `apply` is given a key.
        use_rslora: multiply by lora_alpha / sqrt(r) instead.
        use_dora: adapters have magnitudes too.
        init_lora_weights: True draws `lora_A` uniformly in +-1 / sqrt(in) and has `lora_B` zero, so
            that nothing changes at first; "gaussian" draws `lora_A` with standard deviation 1 / r;
            False draws both.
        layers_to_transform: numbers of the layers of a model that are adapted; None: all.
        rank_pattern, alpha_pattern: other ranks and alphas of the layers whose paths end with what
            a regular expression matches.

    Raises:
        ArgumentError: a number is out of range.

    >>> nn.lora.LoraConfig(r=4, target_modules=("q_proj", "v_proj")).scaling("q_proj")
    2.0
    """

    r: int = 8
    lora_alpha: float = 8
    target_modules: tuple[str, ...] | str = ALL_LINEAR
    exclude_modules: tuple[str, ...] | str | None = None
    lora_dropout: float = 0.0
    use_rslora: bool = False
    use_dora: bool = False
    init_lora_weights: bool | str = True
    layers_to_transform: tuple[int, ...] | None = None
    rank_pattern: Mapping[str, int] = dataclasses.field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("target_modules", "exclude_modules", "layers_to_transform"):
            value = getattr(self, name)
            if isinstance(value, list | set):
                object.__setattr__(self, name, tuple(value))
        for rank in (self.r, *self.rank_pattern.values()):
            if type(rank) is not int or rank < 1:
                raise ArgumentError(f"LoraConfig: a rank is a positive integer, not {brief(rank)}")
        if not 0 <= self.lora_dropout < 1:
            raise ArgumentError(f"LoraConfig: lora_dropout is in [0, 1), not {self.lora_dropout}")
        if self.init_lora_weights not in (True, False, "gaussian"):
            raise ArgumentError(
                f'LoraConfig: init_lora_weights is True, False or "gaussian", not '
                f"{brief(self.init_lora_weights)}"
            )
        for name in ("target_modules", "exclude_modules"):
            _check_pattern(name, getattr(self, name))
        for pattern in (*self.rank_pattern, *self.alpha_pattern):
            _check_pattern("rank_pattern or alpha_pattern", pattern)
        if not self.target_modules:
            raise ArgumentError("LoraConfig: target_modules names no layer")

    def rank(self, path: str) -> int:
        """The rank of the adapter of a layer."""
        return _of_pattern(self.rank_pattern, path, self.r)

    def scaling(self, path: str) -> float:
        """What the output of the adapter of a layer is multiplied by."""
        alpha, rank = _of_pattern(self.alpha_pattern, path, self.lora_alpha), self.rank(path)
        return alpha / math.sqrt(rank) if self.use_rslora else alpha / rank

    def targets(self, path: str) -> bool:
        """Whether the linear layer at a dotted path is adapted."""
        if self.exclude_modules and _named(self.exclude_modules, path):
            return False
        name = path.rpartition(".")[2]
        if self.target_modules == ALL_LINEAR:
            found = name not in (_OUTPUT, *_TABLES, *_ROUTERS)
        else:
            found = _named(self.target_modules, path)
        if not found or self.layers_to_transform is None or isinstance(self.target_modules, str):
            return found
        number = re.search(r"\.(\d+)\.", "." + path)
        return number is not None and int(number.group(1)) in self.layers_to_transform


def _check_pattern(name: str, value: object) -> None:
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error as error:
            text = f"LoraConfig: {name} is no regular expression: {brief(value)}: {error}"
            raise ArgumentError(text) from None


def _named(names: tuple[str, ...] | str, path: str) -> bool:
    """Whether names, or a regular expression, are of a path; Hugging Face's begins with `model`."""
    paths = (path, f"model.{path}")
    if isinstance(names, str):
        return any(re.fullmatch(names, p) for p in paths)
    return any(p == name or p.endswith(f".{name}") for name in names for p in paths)


def _of_pattern(patterns: Mapping[str, Any], path: str, default: Any) -> Any:
    found = [v for p, v in patterns.items() if re.match(rf"(.*\.)?({p})$", f"model.{path}")]
    return found[0] if found else default


# ---- trees of adapters ----


def init(key: Key, params: PyTree, config: LoraConfig, *, dtype: DTypeLike = jnp.float32) -> PyTree:
    """Adapters of the layers that a config names, which change nothing at first.

    Args:
        key: random key, of which each layer derives its own.
        params: parameters: dicts and lists, whose linear layers are dicts with "weight" [out, in].
        config: what the adapters are like.
        dtype: floating dtype of the adapters.

    Returns:
        A tree like the parameters', with {"lora_A": [r, in], "lora_B": [out, r]} in the place of
        each adapted layer, and with DoRA "lora_magnitude_vector" [out].

    Raises:
        ArgumentError: the config names no linear layer, or one that cannot be adapted.

    >>> params = {"up": nn.Linear(3, 5).init(random.key(0))}
    >>> adapters = nn.lora.init(random.key(1), params, nn.lora.LoraConfig(r=2))
    >>> gf.tree.map(jnp.shape, adapters)
    {'up': {'lora_A': (2, 3), 'lora_B': (5, 2)}}
    """
    chosen = set(_adapted(params, config))

    def fresh(path: str, layer: dict[str, Any]) -> Any:
        return _fresh(key, layer["weight"], config, path, dtype) if path in chosen else None

    return _mapped(params, fresh)


def shapes(params: PyTree, config: LoraConfig) -> dict[str, dict[str, tuple[int, ...]]]:
    """The shapes of the adapters that a config asks for.

    Args:
        params: parameters.
        config: what the adapters are like.

    Returns:
        {path of a layer: {"lora_A": shape, ...}}.

    Raises:
        ArgumentError: as `init` does.

    >>> params = {"up": {"weight": jnp.zeros((5, 3))}}
    >>> nn.lora.shapes(params, nn.lora.LoraConfig(r=2))
    {'up': {'lora_A': (2, 3), 'lora_B': (5, 2)}}
    """
    chosen = set(_adapted(params, config))
    found = {}
    for path, layer in _linear_layers(params, ""):
        if path in chosen:
            (out, features), r = layer["weight"].shape, config.rank(path)
            found[path] = {"lora_A": (r, features), "lora_B": (out, r)}
            if config.use_dora:
                found[path]["lora_magnitude_vector"] = (out,)
    return found


def _adapted(params: PyTree, config: LoraConfig) -> list[str]:
    """The paths of the layers that a config names. Raises ArgumentError."""
    paths = [path for path, _ in _linear_layers(params, "") if config.targets(path)]
    if not paths:
        known = sorted({path.rpartition(".")[2] for path, _ in _linear_layers(params, "")})
        raise ArgumentError(
            f"lora: target_modules {brief(config.target_modules)} name no linear layer; there are "
            f"{', '.join(known[:20])}"
        )
    for path in paths:
        if path.rpartition(".")[2] in (*_TABLES, *_ROUTERS):
            raise ArgumentError(
                f"lora: {path} is no linear layer: tables of tokens and routers are not adapted; "
                "leave it out of target_modules"
            )
    return paths


def apply(
    params: PyTree, adapters: PyTree, config: LoraConfig, *, key: Key | None = None
) -> PyTree:
    """The parameters with their adapters, which every function of the model takes.

    The weight of an adapted layer becomes an `nn.LoraWeight`: the product with it is that with the
    weight and, beside it, two thin ones; the gradient by adapters never makes one of [out, in].

    Args:
        params: parameters.
        adapters: their adapters, from `init` or `io.load_adapter`.
        config: what the adapters are like.
        key: random key of the dropout; None drops nothing.

    Returns:
        Parameters.

    Raises:
        ArgumentError: the adapters are not of these parameters.

    >>> layer, config = nn.Linear(3, 5), nn.lora.LoraConfig(r=2)
    >>> params = {"up": layer.init(random.key(0))}
    >>> adapters = nn.lora.init(random.key(1), params, config)
    >>> x = jnp.ones((1, 3))
    >>> adapted = nn.lora.apply(params, adapters, config)
    >>> bool(jnp.allclose(layer(adapted["up"], x), layer(params["up"], x)))
    True
    """

    def adapted(weight: Array, own: dict[str, Array], path: str) -> LoraWeight:
        return LoraWeight(
            weight,
            own["lora_A"],
            own["lora_B"],
            own.get("lora_magnitude_vector"),
            None if key is None or not config.lora_dropout else random.fold_in(key, path),
            scaling=config.scaling(path),
            dropout=config.lora_dropout,
        )

    return _joined(params, adapters, "", adapted)


def merge(params: PyTree, adapters: PyTree, config: LoraConfig) -> PyTree:
    """The parameters with the adapters added to the weights, which compute the same without them.

    Args:
        params: parameters.
        adapters: their adapters.
        config: what the adapters are like.

    Returns:
        Parameters; sums are taken in float32 at least, and cast to the dtype of the weights.

    Raises:
        ArgumentError: the adapters are not of these parameters.

    >>> params, config = {"up": {"weight": jnp.zeros((1, 2))}}, nn.lora.LoraConfig(r=1)
    >>> adapters = {"up": {"lora_A": jnp.ones((1, 2)), "lora_B": jnp.ones((1, 1))}}
    >>> nn.lora.merge(params, adapters, config)
    {'up': {'weight': Array([[8., 8.]], dtype=float32)}}
    """

    def merged(weight: Array, own: dict[str, Array], path: str) -> Array:
        magnitude = own.get("lora_magnitude_vector")
        scaling = config.scaling(path)
        return LoraWeight(weight, own["lora_A"], own["lora_B"], magnitude, scaling=scaling).merged()

    return _joined(params, adapters, "", merged)


def layers(adapters: PyTree) -> Iterator[tuple[str, dict[str, Array]]]:
    """The adapters of each layer, by its dotted path.

    Args:
        adapters: from `init` or `io.load_adapter`.

    Returns:
        An iterator over (path, {"lora_A", "lora_B", ...}).

    >>> adapters = {"up": {"lora_A": jnp.ones((1, 2)), "lora_B": jnp.ones((1, 1))}}
    >>> [path for path, _ in nn.lora.layers(adapters)]
    ['up']
    """
    yield from _dicts_with(adapters, "lora_A", "")


def from_layers(params: PyTree, found: Mapping[str, dict[str, Array]]) -> PyTree:
    """The tree of adapters whose layers are given.

    Args:
        params: the parameters that they are of.
        found: {path: {"lora_A", "lora_B", ...}}.

    Returns:
        Adapters, as of `init`.

    Raises:
        ArgumentError: a path is of no linear layer.

    >>> params = {"up": {"weight": jnp.zeros((1, 2))}, "norm": {"weight": jnp.ones(2)}}
    >>> own = {"lora_A": jnp.ones((1, 2)), "lora_B": jnp.ones((1, 1))}
    >>> list(nn.lora.from_layers(params, {"up": own}))
    ['up']
    """
    known = {path for path, _ in _linear_layers(params, "")}
    unknown = [path for path in found if path not in known]
    if unknown:
        raise ArgumentError(f"lora: the parameters have no linear layer {unknown[0]}")
    return _mapped(params, lambda path, layer: found.get(path))


def _fresh(
    key: Key, weight: Array, config: LoraConfig, path: str, dtype: DTypeLike
) -> dict[str, Array]:
    out, features = weight.shape
    r, kind = config.rank(path), config.init_lora_weights
    first, second = random.split(random.fold_in(key, path))
    if kind == "gaussian":
        a = random.normal(first, (r, features), dtype) / r
    else:
        a = _uniform(first, (r, features), dtype)
    b = _uniform(second, (out, r), dtype) if kind is False else jnp.zeros((out, r), dtype)
    own = {"lora_A": a, "lora_B": b}
    if config.use_dora:
        total = LoraWeight(weight, a, b, scaling=config.scaling(path)).merged()
        total = total.astype(jnp.promote_types(total.dtype, jnp.float32))
        own["lora_magnitude_vector"] = jnp.sqrt(jnp.sum(total * total, axis=1)).astype(dtype)
    return own


def _uniform(key: Key, shape: tuple[int, int], dtype: DTypeLike) -> Array:
    bound = 1 / math.sqrt(shape[1])
    return random.uniform(key, shape, dtype, -bound, bound)


# ---- walks ----


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        yield from ((str(name), child) for name, child in node.items())
    elif isinstance(node, list | tuple):
        yield from ((str(i), child) for i, child in enumerate(node))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _dicts_with(node: Any, name: str, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and name in node:
        yield path, node
        return
    for child_name, child in _children(node):
        yield from _dicts_with(child, name, _below(path, child_name))


def _is_linear(node: Any) -> bool:
    return isinstance(node, dict) and getattr(node.get("weight"), "ndim", 0) == 2


def _linear_layers(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if _is_linear(node):
        yield path, node
        return
    for name, child in _children(node):
        yield from _linear_layers(child, _below(path, name))


def _mapped(node: Any, own: Callable[[str, dict[str, Any]], Any], path: str = "") -> Any:
    """The tree of what `own` gives for linear layers: dicts without what has none, lists whole."""
    if _is_linear(node):
        return own(path, node)
    inner = {name: _mapped(child, own, _below(path, name)) for name, child in _children(node)}
    if isinstance(node, list | tuple):
        made = [{} if x is None else x for x in inner.values()]
        return made if any(made) else None
    kept = {name: x for name, x in inner.items() if x is not None}
    return kept or None


def _joined(
    node: Any, adapters: Any, path: str, combine: Callable[[Array, dict[str, Array], str], Any]
) -> Any:
    """The parameters with the weights of adapted layers combined with their adapters."""
    if not adapters:
        return node
    if isinstance(adapters, dict) and "lora_A" in adapters:
        if not _is_linear(node):
            raise ArgumentError(f"lora: there is an adapter of {path}, which is no linear layer")
        _check_shapes(node["weight"], adapters, path)
        return {**node, "weight": combine(node["weight"], adapters, path)}
    inner = dict(_children(adapters))
    known = dict(_children(node))
    strange = [name for name in inner if name not in known]
    if strange or not known:
        text = _below(path, strange[0] if strange else "")
        raise ArgumentError(f"lora: there is an adapter of {text}, and the parameters have none")
    made = {
        name: _joined(child, inner.get(name), _below(path, name), combine)
        for name, child in known.items()
    }
    if isinstance(node, dict):
        return dict(zip(node, made.values()))
    return type(node)(made.values())


def _check_shapes(weight: Any, own: dict[str, Any], path: str) -> None:
    out, features = weight.shape
    r = own["lora_A"].shape[0]
    wanted = {"lora_A": (r, features), "lora_B": (out, r), "lora_magnitude_vector": (out,)}
    for name, x in own.items():
        if tuple(x.shape) != wanted[name]:
            raise ArgumentError(
                f"lora: {name} of {path} has shape {list(x.shape)}, and a weight of "
                f"{list(weight.shape)} asks for {list(wanted[name])}"
            )
