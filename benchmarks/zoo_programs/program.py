"""What a program of the zoo is, and the names that it is written in."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

# Libraries of one set of names, and the packages that have them.
PACKAGES = {"genesis": "genesis_fn", "jax": "jax"}
# Modules that programs use: `np` is `jax.numpy` or `genesis_fn.numpy`, and so on.
MODULES = {
    "np": "numpy", "lax": "lax", "random": "random", "nn": "nn", "ops": "ops", "tree": "tree",
    "linalg": "scipy.linalg", "signal": "scipy.signal", "special": "scipy.special",
}  # fmt: skip
FUNCTIONS = ("checkpoint", "grad", "jit", "jvp", "value_and_grad", "vmap")

Size = SimpleNamespace
Function = Callable[..., Any]


@dataclass(frozen=True)
class Program:
    """One source for every library.

    `make(xp, size)` is a function of arrays, written in the names of `names`; `inputs(rng, size)`
    are its operands as (trees of) NumPy arrays. `bound` is how far results may be apart: the
    largest difference over the largest magnitude. `jitted` is whether callers compile it. A program
    that `scatters` adds to rows that may be the same: peers do it by atomics. `torch(t, size)` is
    the same function in torch's own words, where there is a natural form, `t` from `torch_names`.
    """

    name: str
    field: str
    about: str
    make: Callable[[Any, Any], Function]
    inputs: Callable[[np.random.Generator, Any], tuple[Any, ...]]
    full: dict[str, Any]
    tiny: dict[str, Any]
    bound: float = 1e-3
    jitted: bool = True
    precision: str = "tensorfloat32"
    scatters: bool = False
    torch: Callable[[Any, Any], Function] | None = None

    def size(self, tiny: bool) -> Size:
        """The sizes, as attributes."""
        return SimpleNamespace(**(self.full | self.tiny if tiny else self.full))

    def operands(self, tiny: bool) -> tuple[Any, ...]:
        """The operands, the same on every call."""
        return self.inputs(np.random.default_rng(0), self.size(tiny))


def names(library: str) -> SimpleNamespace:
    """What programs are written in, of a library."""
    package = importlib.import_module(PACKAGES[library])
    found = {k: importlib.import_module(f"{package.__name__}.{m}") for k, m in MODULES.items()}
    return SimpleNamespace(**found, **{f: getattr(package, f) for f in FUNCTIONS})


def torch_names(compiled: bool) -> SimpleNamespace:
    """What torch's twins are written in: `compile` does nothing if not `compiled`; `gradient` is
    `value_and_grad` of a function that stays as it is."""
    import torch

    compile = lambda f: torch.compile(f, dynamic=False) if compiled else f
    return SimpleNamespace(
        torch=torch,
        F=torch.nn.functional,
        compile=compile,
        gradient=lambda loss, argnums=0: torch_gradient(torch, loss, argnums),
        value_and_grad=lambda loss, argnums=0: torch_gradient(torch, compile(loss), argnums),
    )


def torch_gradient(torch: Any, loss: Function, argnums: Any = 0) -> Function:
    """The value of a function of trees of tensors and its gradients, in the order of JAX's."""
    places = (argnums,) if isinstance(argnums, int) else argnums

    def run(*args: Any) -> Any:
        given = list(args)
        for i in places:
            given[i] = mapped(lambda x: x.detach().requires_grad_(), args[i])
        value = loss(*given)
        flat = [x for i in places for x in leaves(given[i])]
        return value.detach(), torch.autograd.grad(value, flat)

    return run


# ---- trees ----


def leaves(tree: Any) -> list[Any]:
    """The arrays of dicts, by their keys in order, lists and tuples."""
    if isinstance(tree, dict):
        return [x for key in sorted(tree) for x in leaves(tree[key])]
    if isinstance(tree, (list, tuple)):
        return [x for part in tree for x in leaves(part)]
    return [] if tree is None else [tree]


def mapped(f: Callable[[Any], Any], tree: Any) -> Any:
    """The tree of f(array)."""
    if isinstance(tree, dict):
        return {key: mapped(f, tree[key]) for key in sorted(tree)}
    if isinstance(tree, (list, tuple)):
        return type(tree)([mapped(f, part) for part in tree])
    return None if tree is None else f(tree)


# ---- operands ----


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Float32 numbers of a normal distribution."""
    return rng.standard_normal(shape, np.float32) * np.float32(scale)


def uniform(
    rng: np.random.Generator, *shape: int, low: float = 0.0, high: float = 1.0
) -> np.ndarray:
    """Float32 numbers from low to high."""
    return rng.random(shape, np.float32) * np.float32(high - low) + np.float32(low)


def integers(rng: np.random.Generator, end: int, *shape: int) -> np.ndarray:
    """Int32 numbers below `end`."""
    return rng.integers(0, end, shape, np.int32)


def dense(rng: np.random.Generator, inputs: int, outputs: int) -> dict[str, np.ndarray]:
    """Weights of a linear layer, its bias zero."""
    weights = normal(rng, inputs, outputs, scale=inputs**-0.5)
    return {"b": np.zeros(outputs, np.float32), "w": weights}


def layers(rng: np.random.Generator, *widths: int) -> list[dict[str, np.ndarray]]:
    """Weights of the linear layers of a network."""
    return [dense(rng, a, b) for a, b in zip(widths, widths[1:])]


def seed() -> np.ndarray:
    """What random keys of programs are made of: an operand, so that nothing is a constant."""
    return np.asarray(7, np.int32)


# ---- parts of programs ----


def key(xp: Any, seed: Any) -> Any:
    """A key of the generator that all libraries have."""
    return xp.random.key(seed, impl="threefry2x32")


def network(act: Function, params: Any, x: Any) -> Any:
    """Linear layers with an activation between them."""
    for p in params[:-1]:
        x = act(x @ p["w"] + p["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def cross_entropy(xp: Any, logits: Any, labels: Any) -> Any:
    """The mean of -log softmax at the labels."""
    logs = xp.nn.log_softmax(logits, axis=-1)
    return -xp.np.mean(xp.np.take_along_axis(logs, labels[..., None], axis=-1))


def halved(xp: Any, params: Any) -> Any:
    """The parameters in bfloat16."""
    return xp.tree.map(lambda x: x.astype(xp.np.bfloat16), params)


def conv(xp: Any, x: Any, w: Any, stride: int = 1, padding: Any = "SAME") -> Any:
    """A convolution of images [N, H, W, C] with a kernel [H, W, I, O]."""
    return xp.lax.conv_general_dilated(
        x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
