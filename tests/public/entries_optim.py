"""Entries of what `optim` has beside transformations of gradients: line searches, projections,
perturbations, assignments, second derivatives, and iterations of linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np

from genesis_fn import optim, random
from tests.public.agree import E, Entry, Operand
from tests.public.entries_numpy import P, X, each

VECTOR = Operand((4,), "s")
SQUARE = Operand((3, 3), "s")
# Eigenvalues well apart, so that iterations converge.
POSITIVE = Operand((3, 3), "s", values=lambda rng: np.diag([5.0, 2.0, 1.0]) + 0.1 * rng.random())
_tree = lambda f, x, *rest: f({"w": x}, *rest)


def _searched(*args: Any, **kwargs: Any) -> Entry:
    """Two steps of gradient descent with a line search, along a quartic."""

    def call(f: Any, w: Any, target: Any) -> Any:
        objective = lambda w: ((w - target) ** 2).sum() + (w**4).sum() / 8
        tx = f(*args, **kwargs)
        state = tx.init(w)
        for _ in range(2):
            g = 2 * (w - target) + w**3 / 2
            updates, state = tx.update(-g, state, w, value=objective(w), grad=g, value_fn=objective)
            w = optim.apply_updates(w, updates)
        return w

    return E(VECTOR, VECTOR, call=call, peer=False, numbers=False, grad=False)


def _quasi_newton(f: Any, w: Any, target: Any) -> Any:
    objective = lambda w: ((w - target) ** 2).sum() + (w**4).sum() / 8
    tx = f()
    state = tx.init(w)
    for _ in range(2):
        g = 2 * (w - target) + w**3 / 2
        extra = {"value": objective(w), "grad": g, "value_fn": objective}
        updates, state = tx.update(g, state, w, **(extra if f is optim.lbfgs else {}))
        w = optim.apply_updates(w, updates if f is optim.lbfgs else -0.1 * updates)
    return w


def _inner(f: Any, A: Any, b: Any) -> Any:
    return f(A, b, 20)


def _loss(w: Any, x: Any, y: Any) -> Any:
    return ((w["a"] * x) ** 3).sum() + (w["a"].sum() * y).sum()


def _cost(f: Any, x: Any) -> Any:
    i, j = f(x)
    return x[i, j].sum()


SEARCHES: dict[str, list[Entry]] = {
    **each("scale_by_backtracking_linesearch", _searched(15, store_grad=True)),
    **each("scale_by_zoom_linesearch", _searched(15)),
    **each("lbfgs scale_by_lbfgs", E(VECTOR, VECTOR, call=_quasi_newton, peer=False,
                                     numbers=False, grad=False)),
}  # fmt: skip

OPTIM_PARTS: dict[str, list[Entry]] = SEARCHES | {
    **each("value_and_grad_from_state", E(
        VECTOR, peer=False, numbers=False,
        call=lambda f, w: f(lambda w: (w**2).sum())(w, state=optim.lbfgs().init(w)))),
    **each("init_empty_state", E(X, call=lambda f, x: [*f({"w": x})])),
    **each("inject_stateful_hyperparams", E(
        VECTOR, peer=False, numbers=False, grad=False, call=lambda f, w: f(optim.adam)(0.1).update(
            w, f(optim.adam)(0.1).init(w))[0])),
    **each("scale_gradient", E(X, call=lambda f, x: f({"w": x}, 0.5), numbers=False, peer=False)),
    **each("multi_normal", E(VECTOR, VECTOR, VECTOR, call=lambda f, m, s, x: f(m, s).log_prob(x))),
    **each("nnls", E(Operand((5, 3), "s"), Operand((5,), "s"), call=_inner),
           E(Operand((5, 3), "s"), Operand((5, 2), "s"), call=_inner)),
    **each("power_iteration", E(POSITIVE, grad=False, call=lambda f, x: f(
        x, v0=np.float32([1.0, 0.5, 0.25]))[0], numbers=False)),
    **each("matrix_inverse_pth_root", E(POSITIVE, grad=False, call=lambda f, x: f(x, 4)[0],
                                        numbers=False)),
}  # fmt: skip

OPTIM_PROJECTIONS: dict[str, list[Entry]] = {
    **each("projection_non_negative", E(X), E(X, call=_tree)),
    **each("projection_simplex projection_l1_sphere projection_l1_ball projection_l2_sphere "
           "projection_l2_ball projection_linf_ball projection_hypercube", E(X),
           E(X, call=lambda f, x: f(x, 0.5)), E(X, call=lambda f, x: f({"w": x}, 3.0), peer=False)),
    **each("projection_box", E(X, call=lambda f, x: f(x, -0.5, 1.0)), E(X, X, P, call=lambda f, x,
           low, width: f({"w": x}, {"w": low}, {"w": low + width}))),
    **each("projection_vector", E(X, P), E(X, P, call=lambda f, x, a: f({"w": x}, {"w": a}))),
    **each("projection_hyperplane projection_halfspace", E(X, P, call=lambda f, x, a: f(x, a, 0.5)),
           E(X, P, call=lambda f, x, a: f({"w": x}, {"w": a}, -0.5))),
}  # fmt: skip

OPTIM_PERTURBATIONS: dict[str, list[Entry]] = {
    "make_perturbed_fun": [E(VECTOR, peer=False, numbers=False, call=lambda f, x: f(
        lambda v: (v["w"] > 0).astype("float32") + v["w"] ** 2, 5, 0.5)(
            random.key(0), {"w": x}))],
}  # fmt: skip

OPTIM_ASSIGNMENT: dict[str, list[Entry]] = {
    **each("base_hungarian_algorithm hungarian_algorithm", E(X), E(Operand((4, 4), "f")),
           E(Operand((5, 3), "s")),
           E(Operand((4, 6), "i", -9, 9), call=_cost, grad=False, numbers=False)),
}  # fmt: skip

OPTIM_SECOND_ORDER: dict[str, list[Entry]] = {
    **each("hvp", E(VECTOR, VECTOR, VECTOR, VECTOR, call=lambda f, w, v, x, y: f(
        _loss, v, {"a": w}, x, y), numbers=False)),
    **each("hessian_diag fisher_diag", E(VECTOR, VECTOR, VECTOR, call=lambda f, w, x, y: f(
        _loss, {"a": w}, x, y), numbers=False)),
}  # fmt: skip

OPTIM_TREE_RANDOM: dict[str, list[Entry]] = {
    **each("random_like", E(X, call=lambda f, x: f(random.key(0), {"w": x}), peer=False,
                            vmap=False, grad=False, numbers=False)),
    **each("split_key_like", E(X, call=lambda f, x: random.key_data(
        f(random.key(0), {"w": x})["w"]), peer=False, vmap=False, grad=False, numbers=False)),
    **each("unwrap_random_key_data", E(X, call=lambda f, x: f({"w": x, "key": random.key(0)}),
                                       peer=False, vmap=False, numbers=False)),
}  # fmt: skip
