"""Entries of `optim.contrib`, `optim.microbatching`, `optim.transforms` and `optim.tree_utils`."""

from __future__ import annotations

from typing import Any

from genesis_fn import optim
from tests.public.agree import E, Entry, Operand
from tests.public.entries_more import MATRIX, OPTIM, OPTIM_TREE, transformation
from tests.public.entries_numpy import each
from tests.public.entries_optim import OPTIM_TREE_RANDOM
from tests.public.names import exported

_sgd = optim.sgd(0.1)
_loss = {"value": 0.3}
EXAMPLES, TARGETS, VECTOR = Operand((4, 3), "s"), Operand((4,), "s"), Operand((3,), "s")


def _aggregated(*args: Any) -> Entry:
    """An update by gradients of single examples, of a transformation that makes noise."""

    def call(f: Any, g: Any) -> Any:
        tx = f(*args)
        return tx.update({"w": g}, tx.init({"w": g[0]}))[0]

    return E(EXAMPLES, call=call, peer=False, numbers=False, grad=False)


PRIVATE: dict[str, list[Entry]] = {
    **each("differentially_private_aggregate", _aggregated(0.5, 0.1, 3)),
    **each("dpsgd", _aggregated(0.1, 0.5, 0.1, 3)),
}
CONTRIBUTED: dict[str, list[Entry]] = PRIVATE | {
    **each("acprop adopt ademamix simplified_ademamix galore", transformation(0.01)),
    **each("scale_by_acprop scale_by_adopt scale_by_ademamix scale_by_simplified_ademamix "
           "scale_by_galore scale_by_cocob cocob dadapt_adamw dog dowg", transformation()),
    **each("scale_by_madgrad madgrad", transformation(0.01)),
    **each("momo momo_adam", transformation(0.1, extra=_loss)),
    **each("mechanize split_real_and_imaginary", transformation(_sgd)),
}  # fmt: skip
# Those that `optim` has too, under the same names.
CONTRIB = {n: OPTIM[n] for n in sorted({*exported("optim.contrib")} & {*OPTIM})} | CONTRIBUTED
TRANSFORMS = {n: OPTIM[n] for n in sorted({*exported("optim.transforms")} & {*OPTIM})}
TREE_UTILS: dict[str, list[Entry]] = {
    f"tree_{name}": entries for name, entries in (OPTIM_TREE | OPTIM_TREE_RANDOM).items()
}  # fmt: skip

_rows = lambda x: (x * x).sum(axis=0)
MICROBATCHING: dict[str, list[Entry]] = {
    "reshape_batch_axis": [E(Operand((6, 4)), call=lambda f, x: f({"x": x}, 2))],
    "microbatch": [
        # Sums of 16 bits are wide here.
        E(Operand((6, 4), "s"), call=lambda f, x: f(_rows, 0, 2)(x)),
        E(Operand((6, 4)), call=lambda f, x: f(_rows, 0, 2)(x), peer=False),
    ],
    "micro_vmap": [E(EXAMPLES, TARGETS, call=lambda f, x, y: f(
        lambda x, y: (x * y).sum(), (0, 0), microbatch_size=2)(x, y))],
    "micro_grad": [E(VECTOR, EXAMPLES, TARGETS, call=lambda f, w, x, y: f(
        lambda w, x, y: ((x @ w - y) ** 2).sum(), batch_argnums=(1, 2), microbatch_size=2,
        metrics_fn=lambda g: g.sum())(w, x, y))],
}  # fmt: skip
# What `optim` has of these parts.
OPTIM_EXPORTS: dict[str, list[Entry]] = PRIVATE | {
    "microbatch": MICROBATCHING["microbatch"],
    **each("inject_stateful_hyperparams", E(
        MATRIX, MATRIX, peer=False, numbers=False, grad=False,
        call=lambda f, w, g: _injected(f, w, g))),
}  # fmt: skip


def _injected(f: Any, w: Any, g: Any) -> Any:
    tx = f(optim.adam)(learning_rate=0.1)
    return tx.update(g, tx.init(w), w)[0]
