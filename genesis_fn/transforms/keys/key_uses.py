"""Which of its input keys a program uses, and which it returns unchanged: what its calls mark.

The analysis numbers the keys of the inputs and follows the numbers through operations that move
elements; a program inside (a call, a loop, a branch) is analysed once. Keys that move to positions
which depend on values are no longer followed. Equations of the backward pass compute again what the
forward pass drew, and use nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from genesis_fn.core.array import from_numpy
from genesis_fn.core.backend.lowering import View
from genesis_fn.core.device import cpu
from genesis_fn.core.diagnostics.source_info import where
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var, memoized
from genesis_fn.core.primitive import Primitive, bind, running
from genesis_fn.core.types.annotations import Array
from genesis_fn.core.types.extended import is_key
from genesis_fn.primitives.random_bits import SPLIT, key_hash_p, random_bits_p
from genesis_fn.primitives.shape import copy_p
from genesis_fn.transforms.keys.key_reuse import drawn_on_purpose, reused, same_keys, use


class Uses(NamedTuple):
    """What a program or an operation does with the keys among its inputs.

    * `used`: for each input the mask of the keys that are used, or None.
    * `same`: (output, input) pairs of keys that pass unchanged.
    * `each_iteration`: the carries of a loop that pass unchanged and are used at every iteration.
    """

    used: tuple[np.ndarray | None, ...] = ()
    same: tuple[tuple[int, int], ...] = ()
    each_iteration: tuple[int, ...] = ()


NOTHING = Uses()
UNCHANGED = Uses((None,), ((0, 0),))  # one operand, which is the result


@memoized
def uses(jaxpr: Jaxpr) -> Uses:
    """Analyse a program."""
    numbers: dict[Var, np.ndarray] = {}
    count = 0
    for v in jaxpr.invars:
        if is_key(v.aval.dtype):
            numbers[v] = np.arange(count, count + v.aval.size).reshape(v.aval.shape)
            count += v.aval.size
    if not numbers:
        return NOTHING
    of_input = {v: numbers[v] for v in jaxpr.invars if v in numbers}
    drawn = np.zeros(count + 1, bool)  # the last, number -1, is for all keys that are no inputs
    for e in jaxpr.eqns:
        numbers_in = [numbers.get(i) if type(i) is Var else None for i in e.ins]
        if not e.backward and any(f is not None for f in numbers_in):
            _follow(e, numbers_in, numbers, drawn)
    drawn[-1] = False
    used = [drawn[of_input[v]] if v in of_input else None for v in jaxpr.invars]
    same = [
        (o, i)
        for o, out in enumerate(jaxpr.outs)
        for i, v in enumerate(jaxpr.invars)
        if out in numbers and v in of_input and np.array_equal(numbers[out], of_input[v])
    ]
    return Uses(tuple([u if u is not None and u.any() else None for u in used]), tuple(same))


def _follow(
    e: Eqn, numbers_in: list[np.ndarray | None], numbers: dict[Var, np.ndarray], drawn: np.ndarray
) -> None:
    """Mark the keys that one equation uses in `drawn`, and number its results."""
    if e.prim is random_bits_p or (e.prim is key_hash_p and e.params["tag"] == SPLIT):
        drawn[numbers_in[0]] = True
    elif (
        type(e.prim.lowering) is View
        and e.prim.key_uses is None
        and e.prim is not copy_p  # copies may be drawn from again
    ):
        unknown = lambda i: np.full(i.aval.shape, -1)
        known = [unknown(i) if n is None else n for i, n in zip(e.ins, numbers_in)]
        # Views move numbers as they move keys: run the operation on the numbers, eagerly.
        with running(None):
            outs = bind(e.prim, *[from_numpy(k.astype(np.int32), cpu()) for k in known], **e.params)
        outs = outs if e.prim.multi else [outs]
        numbers.update(zip(e.outs, [o.device.backend.to_numpy(o) for o in outs]))
    else:
        inner = of_operation(e.prim, e.params)
        for n, used in zip(numbers_in, inner.used):
            if n is not None and used is not None:
                drawn[n[used]] = True
        for o, i in inner.same:
            if (n := numbers_in[i]) is not None:
                numbers[e.outs[o]] = n


def of_operation(prim: Primitive, params: dict[str, Any]) -> Uses:
    """What an operation does with the keys among its operands, by its rule or its program."""
    if prim.key_uses is not None:
        return prim.key_uses(**params)
    return NOTHING if prim.program is None else uses(params[prim.program])


def _or(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    return b if a is None else a if b is None else a | b


def _masks(found: Uses, count: int) -> list[np.ndarray | None]:
    """The masks of `count` inputs, also for NOTHING, which has none."""
    return list(found.used) or [None] * count


def of_scan(*, jaxpr: Jaxpr, consts: int, carry: int, length: int, **_: object) -> Uses:
    """The rule of `scan`."""
    body, start = uses(jaxpr), consts + carry
    same = [(o, i) for o, i in body.same if o < carry and i == consts + o]
    if not length:
        return Uses((), tuple([(i, consts + i) for i in range(carry)]))
    used = _masks(body, len(jaxpr.invars))
    rows = [None if u is None else np.broadcast_to(u, (length, *u.shape)) for u in used[start:]]
    again = [i for _, i in same if used[i] is not None and length > 1]
    return Uses((*used[:start], *rows), tuple(same), tuple(again))


def of_while(*, cond: Jaxpr, body: Jaxpr, cond_consts: int, body_consts: int) -> Uses:
    """The rule of `while`."""
    test = _masks(uses(cond), len(cond.invars))
    step = _masks(uses(body), len(body.invars))
    carry = [_or(a, b) for a, b in zip(test[cond_consts:], step[body_consts:])]
    used = (*test[:cond_consts], *step[:body_consts], *carry)
    same = [(o, cond_consts + i) for o, i in uses(body).same if i == body_consts + o]
    return Uses(used, tuple(same), tuple([i for _, i in same if used[i] is not None]))


def of_cond(*, branches: tuple[Jaxpr, ...]) -> Uses:
    """The rule of `cond`."""
    of_branches = [uses(b) for b in branches]
    used: list[np.ndarray | None] = [None] * len(branches[0].invars)
    for each in of_branches:
        used = [_or(a, b) for a, b in zip(used, _masks(each, len(used)))]
    same = set(of_branches[0].same).intersection(*[f.same for f in of_branches])
    return Uses((None, *used), tuple([(o, i + 1) for o, i in sorted(same)]))  # after the index


# ---- calls ----


def user_call(prim: Primitive, *operands: Array, **params: Any) -> Any:
    """Apply `prim` as `bind` does, and mark the keys among the operands that its programs use.

    It is for calls of users. Transforms, which apply the same operation again for derivatives and
    batches, call `bind` and mark nothing.
    """
    if not any([is_key(x.aval.dtype) for x in operands if hasattr(x, "aval")]):
        return bind(prim, *operands, **params)
    found = of_operation(prim, params)
    before_call(found, operands)
    if any(not drawn_on_purpose(operands[i]) for i in found.each_iteration):
        reused(
            "a random key goes through a loop unchanged and is used in its body: every turn draws "
            f"the same\n  at {where().describe()}\n"
            "  carry what split returns, derive from it (key[i]), or pass key.copy() on purpose"
        )
    outs = bind(prim, *operands, **params)
    after_call(found, operands, outs)
    return outs


def of_arguments(jaxpr: Jaxpr, captured: int) -> Uses | None:
    """What a jitted function does with its arguments; None if there is nothing to mark.

    Keys that it captured are part of the function, which draws the same at every call.
    """
    found = uses(jaxpr)
    same = tuple([(o, i - captured) for o, i in found.same if i >= captured])
    used = found.used[captured:]
    return Uses(used, same) if same or any(u is not None for u in used) else None


def before_call(found: Uses, operands: Sequence[Any]) -> None:
    """Mark the operands that a call uses."""
    for x, used in zip(operands, found.used):
        if used is not None:
            use(x, used)


def after_call(found: Uses, operands: Sequence[Any], outs: Sequence[Any]) -> None:
    """Let results that are operands unchanged share their marks."""
    for o, i in found.same:
        same_keys(operands[i], outs[o])
