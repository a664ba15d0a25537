"""L-BFGS and the line searches against optax, step by step, and what is only here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import optax
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import optim, tree
from genesis_fn.errors import ArgumentError

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)


@contextlib.contextmanager
def wide(dtype: np.dtype) -> Iterator[None]:
    """JAX has float64 only where it is told so."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", dtype == F64)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def quadratic(w: Any, np_: Any) -> Any:
    scales = np_.asarray([1.0, 3.0, 2.0, 0.5]).astype(w.dtype)
    return np_.sum(scales * (w - 1.0) ** 2) / 2


def rosenbrock(w: Any, np_: Any) -> Any:
    return np_.sum(100.0 * (w[1:] - w[:-1] ** 2) ** 2 + (1.0 - w[:-1]) ** 2)


def of_a_tree(p: Any, np_: Any) -> Any:
    hidden = np_.tanh(p["layer"]["w"] @ np_.ones((3,), p["b"].dtype) + p["b"])
    return np_.sum((hidden - 0.5) ** 2) + 0.1 * np_.sum(p["layer"]["w"] ** 2)


def starts(dtype: np.dtype) -> dict[str, tuple[Callable, Any]]:
    rng = np.random.default_rng(3)
    draw = lambda *shape: rng.normal(size=shape).astype(dtype)
    return {
        "quadratic": (quadratic, draw(4)),
        "rosenbrock": (rosenbrock, np.asarray([-1.2, 1.0, 0.7, 1.5], dtype)),
        "tree": (of_a_tree, {"layer": {"w": draw(2, 3)}, "b": draw(2)}),
    }


def zoom(lib: Any, **options: Any) -> Any:
    return lib.chain(lib.sgd(1.0), lib.scale_by_zoom_linesearch(15, **options))


def backtracking(lib: Any, **options: Any) -> Any:
    search = lib.scale_by_backtracking_linesearch(20, store_grad=True, **options)
    return lib.chain(lib.sgd(1.0), search)


SEARCHES: dict[str, Callable[[Any], Any]] = {
    "lbfgs": lambda lib: lib.lbfgs(),
    "lbfgs,memory": lambda lib: lib.lbfgs(memory_size=2, scale_init_precond=False),
    "lbfgs,backtracking": lambda lib: lib.lbfgs(
        learning_rate=0.5,
        linesearch=lib.scale_by_backtracking_linesearch(15, store_grad=True, slope_rtol=0.1),
    ),
    "zoom": zoom,
    "zoom,one": lambda lib: zoom(lib, initial_guess_strategy="one", approx_dec_rtol=None),
    "zoom,largest": lambda lib: zoom(lib, max_learning_rate=0.01, curv_rtol=0.1),
    "zoom,precise": lambda lib: zoom(
        lib, curv_rtol=0.01, increase_factor=1.3, tol=1e-3, stepsize_precision=0.2
    ),
    "zoom,few": lambda lib: lib.chain(lib.sgd(10.0), lib.scale_by_zoom_linesearch(3)),
    "backtracking": backtracking,
    "backtracking,inf": lambda lib: backtracking(
        lib, increase_factor=float("inf"), decrease_factor=0.5, max_learning_rate=2.0
    ),
    "backtracking,tolerant": lambda lib: backtracking(lib, atol=1e-3, rtol=1e-2, slope_rtol=0.3),
}  # fmt: skip


def _stepper(lib: Any, transform: Any, tx: Any, f: Callable) -> Callable:
    value_and_grad = lib.value_and_grad_from_state(f)

    def step(w: Any, state: Any) -> Any:
        value, g = value_and_grad(w, state=state)
        updates, state = tx.update(g, state, w, value=value, grad=g, value_fn=f)
        return lib.apply_updates(w, updates), state

    return transform(step)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("problem", ["quadratic", "rosenbrock", "tree"])
@pytest.mark.parametrize("name", SEARCHES)
def test_steps_are_those_of_optax(name: str, problem: str, dtype: np.dtype) -> None:
    if problem == "quadratic" and name in ("zoom,few", "zoom,precise"):
        pytest.skip("the cubic through a quadratic's points has rounding for a coefficient")
    f, start = starts(dtype)[problem]
    steps, limit = (12, 1e-9) if dtype == F64 else (5, 2e-3)
    with wide(dtype):
        tx, other = SEARCHES[name](optim), SEARCHES[name](optax)
        w, v = tree.map(lambda x: jnp.asarray(x, x.dtype), start), jax.tree.map(np.asarray, start)
        state, theirs = tx.init(w), other.init(jax.tree.map(jax.numpy.asarray, v))
        step = _stepper(optim, gf.jit, tx, lambda w: f(w, jnp))
        their_step = _stepper(optax, jax.jit, other, lambda w: f(w, jax.numpy))
        for _ in range(steps):
            w, state = step(w, state)
            v, theirs = their_step(v, theirs)
            mine, search = state[-1], theirs[-1]
            if dtype == F64:
                count = int(mine.info.num_linesearch_steps)
                assert count == int(search.info.num_linesearch_steps)
            for x, y in zip(tree.leaves((w, mine.grad)), jax.tree.leaves((v, search.grad))):
                assert np.asarray(x).dtype == dtype
                scale = max(1.0, float(np.abs(y).max()))
                np.testing.assert_allclose(np.asarray(x), y, rtol=limit, atol=limit * scale)
            for field in ("learning_rate", "value"):
                got, want = float(getattr(mine, field)), float(getattr(search, field))
                assert got == pytest.approx(want, rel=10 * limit, abs=10 * limit)


def test_extra_arguments_reach_the_objective() -> None:
    def f(w: Any, x: Any, y: Any) -> Any:
        return ((x * w).sum() - y) ** 2 / 2

    x, y = np.float32([3.0, 2.0, 1.0]), np.float32(0.5)
    w = np.float32([1.0, 2.0, 3.0])
    for lib_search in (backtracking, zoom):
        got, want = (
            lib_search(lib).update(
                g, lib_search(lib).init(w), w, value=f(w, x, y), grad=g, value_fn=f, x=x, y=y
            )[0]
            for lib, w, g in (
                (optim, jnp.asarray(w), jnp.asarray((x @ w - y) * x)),
                (optax, jax.numpy.asarray(w), jax.numpy.asarray((x @ w - y) * x)),
            )
        )
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5)
        tx, w_ = lib_search(optim), jnp.asarray(w)
        latest = tx.init(w_)
        put = (latest[0], latest[1]._replace(learning_rate=0.25))  # a number in an array's place
        took = tx.update(w_, put, w_, value=1.0, grad=w_, value_fn=f, x=x, y=y)[1]
        assert took[1].learning_rate.dtype == np.float32
        with pytest.raises(ArgumentError, match="update got z, which value_fn does not take"):
            tx.update(w_, tx.init(w_), w_, value=1.0, grad=w_, value_fn=f, x=x, y=y, z=1)
        with pytest.raises(ArgumentError, match="needs the current parameters"):
            tx.update(w_, tx.init(w_), value=1.0, grad=w_, value_fn=f)


def test_in_a_loop_of_many_at_once() -> None:
    f = lambda w: rosenbrock(w, jnp)
    tx, value_and_grad = optim.lbfgs(), optim.value_and_grad_from_state(f)

    def solve(w: Any) -> Any:
        def goes_on(carry: Any) -> Any:
            _, state = carry
            norm = optim.tree.norm(optim.tree.get(state, "grad"))
            return (state.lbfgs.count == 0) | (state.lbfgs.count < 60) & (norm > 1e-2)

        def step(carry: Any) -> Any:
            w, state = carry
            value, g = value_and_grad(w, state=state)
            updates, state = tx.update(g, state, w, value=value, grad=g, value_fn=f)
            return optim.apply_updates(w, updates), state

        w, state = gf.lax.while_loop(goes_on, step, (w, tx.init(w)))
        return w, state.lbfgs.count

    ws = jnp.asarray(np.random.default_rng(5).uniform(0.5, 1.5, (3, 3)), "float64")
    found, counts = gf.jit(gf.vmap(solve))(ws)
    alone = [gf.jit(solve)(w) for w in ws]
    np.testing.assert_allclose(np.asarray(found), np.ones((3, 3)), atol=0.05)
    assert counts.tolist() == [int(c) for _, c in alone] and len({*counts.tolist()}) > 1
    np.testing.assert_allclose(
        np.asarray(found), np.stack([np.asarray(w) for w, _ in alone]), rtol=1e-6
    )


def test_sixteen_bits_frozen_leaves_and_complex_numbers() -> None:
    # Values, step sizes and differences are float32; parameters and gradients keep their dtype.
    w = {"w": jnp.array([1.0, -2.0], "bfloat16"), "fixed": None}
    f = lambda p: jnp.sum(p["w"].astype("float32") ** 2)
    tx = optim.lbfgs()
    state = tx.init(w)
    for _ in range(3):
        value, g = optim.value_and_grad_from_state(f)(w, state=state)
        updates, state = tx.update(g, state, w, value=value, grad=g, value_fn=f)
        w = optim.apply_updates(w, updates)
    assert w["fixed"] is None and str(w["w"].dtype) == "bfloat16" and float(f(w)) < 1e-2
    assert str(state.linesearch.value.dtype) == "float32" == str(state.lbfgs.params["w"].dtype)
    assert str(state.linesearch.grad["w"].dtype) == "bfloat16"

    # The complex problem is the real one of twice the size.
    matrix = np.random.default_rng(0).normal(size=(4, 2, 2))
    m = jnp.asarray(matrix[..., 0] + 1j * matrix[..., 1], "complex128")
    of_complex = lambda z: jnp.sum(jnp.abs(m @ z - 1.0) ** 2) + jnp.sum(jnp.abs(z) ** 4)
    of_real = lambda x: of_complex(x[0] + 1j * x[1])
    for search in (
        optim.scale_by_zoom_linesearch(20, initial_guess_strategy="one"),
        optim.scale_by_backtracking_linesearch(20, slope_rtol=0.3),
    ):
        tx = optim.lbfgs(linesearch=search)
        z, x = jnp.array([1.0 - 1j, 0.5j], "complex128"), jnp.array([[1, 0], [-1, 0.5]], "float64")
        states = [tx.init(z), tx.init(x)]
        for _ in range(4):
            value, g = gf.value_and_grad(of_complex)(z)
            g = g.conj()
            updates, states[0] = tx.update(
                g, states[0], z, value=value, grad=g, value_fn=of_complex
            )
            z = z + updates
            value, g = gf.value_and_grad(of_real)(x)
            updates, states[1] = tx.update(g, states[1], x, value=value, grad=g, value_fn=of_real)
            x = x + updates
            np.testing.assert_allclose(np.asarray(z), np.asarray(x[0] + 1j * x[1]), rtol=1e-9)


@pytest.mark.parametrize("search", [zoom, backtracking])
def test_where_no_step_is_good(search: Callable, capfd: pytest.CaptureFixture) -> None:
    w = jnp.array([1.0, 2.0])
    args = {"value": jnp.array(5.0), "grad": w}
    nowhere = lambda w: jnp.sum(jnp.log(-1.0 - w**2))
    tx, quiet = search(optim, verbose=True), search(optim)
    update = gf.jit(lambda w: tx.update(w, tx.init(w), w, **args, value_fn=nowhere))
    updates, state = update(w)
    assert updates.tolist() == [0.0, 0.0] and float(state[1].learning_rate) == 0
    assert "not finite" in capfd.readouterr().out
    quiet.update(w, quiet.init(w), w, **args, value_fn=nowhere)
    assert capfd.readouterr().out == ""
    # Uphill nothing decreases the objective, which verbose searches say.
    uphill = lambda w: jnp.sum(w**2)
    updates, _ = tx.update(-w, tx.init(w), w, value=5.0, grad=-w, value_fn=uphill)
    assert "no step size" in capfd.readouterr().out
    other, v = search(optax), np.asarray(w)
    theirs, _ = other.update(
        -v, other.init(v), v, value=np.float32(5.0), grad=-v, value_fn=lambda w: (w**2).sum()
    )
    np.testing.assert_allclose(np.asarray(updates), np.asarray(theirs), rtol=1e-4, atol=1e-6)


def test_errors() -> None:
    with pytest.raises(ArgumentError, match="memory_size must be positive, got 0"):
        optim.lbfgs(memory_size=0)
    with pytest.raises(ArgumentError, match='"keep" or "one", got \'two\''):
        optim.scale_by_zoom_linesearch(3, initial_guess_strategy="two")
    with pytest.raises(ArgumentError, match="max_backtracking_steps is -1"):
        optim.scale_by_backtracking_linesearch(-1)
    w = jnp.ones(2)
    for tx, missing in ((optim.sgd(0.1), "value"), (backtracking(optim), None)):
        if missing is None:
            tx = optim.scale_by_backtracking_linesearch(3)
            missing = "gradient"
        with pytest.raises(ArgumentError, match=f"the state keeps no {missing}"):
            optim.value_and_grad_from_state(jnp.sum)(w, state=tx.init(w))
    twice = optim.chain(zoom(optim), zoom(optim)).init(w)
    with pytest.raises(KeyError, match="found 2 times"):
        optim.value_and_grad_from_state(jnp.sum)(w, state=twice)
    with pytest.raises(TypeError, match="value_fn"):
        optim.lbfgs().update(w, optim.lbfgs().init(w), w)


def test_the_default_search_takes_no_part_in_a_state() -> None:
    """One default transformation serves all optimizers: it keeps nothing itself."""
    w = jnp.ones(2)
    tx = optim.lbfgs(linesearch=None)
    updates, state = tx.update(2 * w, tx.init(w), w)
    np.testing.assert_allclose(np.asarray(updates), -np.ones(2) / 2**0.5, rtol=1e-6)
    assert state.linesearch == optim.EmptyState() and state.lbfgs.count == 1
    assert isinstance(optim.lbfgs().init(w)[2], optim.ScaleByZoomLinesearchState)
    assert isinstance(optim.lbfgs().init(w)[0], optim.ScaleByLBFGSState)
    assert isinstance(optim.lbfgs().init(w)[2].info, optim.ZoomLinesearchInfo)
