"""The optimizers of `optim.contrib` against optax's, step by step; dtypes, states and errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np
import optax
import optax.contrib
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import optim, tree
from tests.optim.compare import gap, ours, theirs

F64, F32 = np.dtype(np.float64), np.dtype(np.float32)
LIMIT = {F64: 1e-9, F32: 1e-5}


def _root(count: Any) -> Any:
    """A limit that is computed in float64 by both libraries, whose default is float32 here."""
    return count.astype("float64") ** 0.25


def _falling(step: Any) -> Any:
    return 0.5 / (step + 1.0)


# name, arguments; the same in both libraries. Losses go to those that take them.
CASES: list[tuple[str, tuple, dict[str, Any]]] = [
    ("acprop", (1e-2,), {}),
    ("acprop", (1e-2,), {"b1": 0.5, "b2": 0.9, "eps_root": 1e-4, "weight_decay": 0.1}),
    ("ademamix", (1e-2,), {}),
    ("ademamix", (1e-2,), {"b3": 0.99, "alpha": 2.0, "weight_decay": 0.1, "eps_root": 1e-6}),
    ("simplified_ademamix", (1e-3,), {}),
    ("simplified_ademamix", (1e-3,), {"alpha": 3.0, "weight_decay": 0.1, "b2": 0.9}),
    ("adopt", (1e-2,), {"clip_value_fn": _root}),
    ("adopt", (1e-2,), {"nesterov": True, "use_clipping": False}),
    ("cocob", (), {}),
    ("cocob", (0.5,), {"alpha": 2.0, "weight_decay": 0.1}),
    ("dadapt_adamw", (), {"estim_lr0": 1e-2}),
    ("dadapt_adamw", (0.5,), {"weight_decay": 0.1, "betas": (0.8, 0.9)}),
    ("dog", (), {"init_step": ("distance", 0.1)}),
    ("dog", (0.5,), {"init_step": ("learning_rate", 1e-2), "weight_decay": 0.1}),
    ("dog", (), {"init_step": ("heuristic", 1e-2), "eps": 1e-3}),
    ("dowg", (), {}),
    ("dowg", (0.5,), {"init_estim_sq_dist": 0.1, "weight_decay": 0.1}),
    ("madgrad", (1e-2,), {}),
    ("madgrad", (1e-2,), {"momentum": 0.0, "weight_decay": 0.1, "eps": 1e-3}),
    ("momo", (), {}),
    ("momo", (0.3,), {"beta": 0.5, "weight_decay": 0.1, "lower_bound": -1.0}),
    ("momo", (), {"adapt_lower_bound": True, "lower_bound": -3.0}),
    ("momo_adam", (), {}),
    ("momo_adam", (0.1,), {"weight_decay": 0.1, "lower_bound": -1.0}),
    ("momo_adam", (0.1,), {"adapt_lower_bound": True, "lower_bound": -3.0}),
]  # fmt: skip
# Learning rates that may be schedules, in the optimizer itself.
SCHEDULED: list[tuple[str, tuple, dict[str, Any]]] = [
    (name, (_falling,), {}) for name in ("madgrad", "momo", "momo_adam", "dadapt_adamw")
] + [
    ("ademamix", (1e-2,), {"b3": lambda step: 1 - 0.5 / (step + 1.0), "alpha": _falling}),
    ("simplified_ademamix", (1e-2,), {"alpha": _falling}),
]


def losses(i: int) -> dict[str, Any]:
    """Losses that fall, rise and turn negative."""
    return {"value": np.float64(3.0 * np.cos(i / 5))}


def _of(name: str) -> Callable[[int], dict[str, Any]]:
    return losses if name.startswith("momo") else lambda i: {}


def _id(case: tuple) -> str:
    return case[0] + "".join(f",{k}={v}" for k, v in case[2].items() if not callable(v))


# Optax takes the root of MADGRAD's step in float32: NumPy has it in float64 below.
COMPARED = [(c, d) for c in CASES for d in (F64, F32) if (c[0], d) != ("madgrad", F64)]


@pytest.mark.parametrize(
    "case, dtype", COMPARED, ids=lambda x: _id(x) if isinstance(x, tuple) else str(x)
)
def test_it_is_that_of_optax(case: tuple, dtype: np.dtype) -> None:
    name, args, kwargs = case
    with jax.enable_x64(True):
        peer = getattr(optax.contrib, name)(*args, **kwargs)
    mine = getattr(optim.contrib, name)(*args, **kwargs)
    assert gap(mine, peer, dtype, extra=_of(name)) < LIMIT[dtype]


@pytest.mark.parametrize("case", SCHEDULED, ids=lambda c: c[0])
def test_a_schedule_of_it_is_that_of_optax(case: tuple) -> None:
    name, args, kwargs = case
    mine = getattr(optim.contrib, name)(*args, **kwargs)
    peer = getattr(optax.contrib, name)(*args, **kwargs)
    assert gap(mine, peer, F32, steps=30, extra=_of(name)) < 1e-5


def test_madgrad_in_float64() -> None:
    rng = np.random.default_rng(0)
    start, momentum, eps = rng.normal(size=4), 0.8, 1e-3
    tx = optim.contrib.madgrad(0.1, momentum, weight_decay=0.1, eps=eps)
    x, sums, squares = start.copy(), np.zeros(4), np.zeros(4)
    w = jnp.asarray(start, dtype="float64")
    state = tx.init(w)
    for t in range(1, 21):
        g = rng.normal(size=4)
        updates, state = tx.update(jnp.asarray(g, dtype="float64"), state, w)
        w = optim.apply_updates(w, updates)
        g, weight = g + 0.1 * x, (0.1 + eps) * np.sqrt(t)
        sums, squares = sums + weight * g, squares + weight * g * g
        z = start - sums / (np.cbrt(squares) + eps)
        x = momentum * x + (1 - momentum) * z
    np.testing.assert_allclose(np.asarray(w), x, rtol=1e-12)


# ---- optimizers around others ----


def test_mechanize() -> None:
    for name, base, kwargs in [
        ("sgd", (1.0,), {"s_init": 0.1}),
        ("adam", (1e-1,), {"weight_decay": 0.1, "num_betas": 3, "s_init": 0.1}),
    ]:
        mine = optim.contrib.mechanize(getattr(optim, name)(*base), **kwargs)
        theirs = optax.contrib.mechanize(getattr(optax, name)(*base), **kwargs)
        for dtype in (F64, F32):
            assert gap(mine, theirs, dtype, steps=50) < LIMIT[dtype], (name, dtype)


def test_mechanize_begins_at_the_parameters_of_the_first_update() -> None:
    tx, w = optim.contrib.mechanize(optim.sgd(1.0)), jnp.array([1.0, 2.0])
    _, state = tx.update(w, tx.init(jnp.zeros(2)), w)
    assert state.x0.tolist() == [1.0, 2.0]


def test_complex_parameters_as_pairs() -> None:
    """The same steps as on the real and imaginary parts, and those of optax."""
    rng = np.random.default_rng(0)
    draw = lambda n: (rng.normal(size=n) + 1j * rng.normal(size=n)).astype(np.complex64)
    start = {"z": draw(4), "r": rng.normal(size=3).astype(np.float32)}
    grads = [{"z": draw(4), "r": rng.normal(size=3).astype(np.float32)} for _ in range(10)]
    mine = optim.contrib.split_real_and_imaginary(optim.adamw(1e-2, weight_decay=0.1))
    peer = optax.contrib.split_real_and_imaginary(optax.adamw(1e-2, weight_decay=0.1))
    pairs = optim.adamw(1e-2, weight_decay=0.1)
    split = lambda t: {"re": t["z"].real, "im": t["z"].imag, "r": t["r"]}
    p, q, s = ours(start), theirs(start), ours(split(start))
    a, b, c = mine.init(p), peer.init(q), pairs.init(s)
    for g in grads:
        u, a = gf.jit(mine.update)(ours(g), a, p)
        v, b = peer.update(theirs(g), b, q)
        w, c = pairs.update(ours(split(g)), c, s)
        p, q, s = (
            optim.apply_updates(p, u), optax.apply_updates(q, v), optim.apply_updates(s, w)
        )  # fmt: skip
    for name in ("z", "r"):
        np.testing.assert_allclose(np.asarray(p[name]), np.asarray(q[name]), rtol=1e-5)
        assert p[name].dtype == start[name].dtype
    np.testing.assert_allclose(np.asarray(p["z"]).real, np.asarray(s["re"]), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(p["z"]).imag, np.asarray(s["im"]), rtol=1e-6)
    frozen, _ = mine.update({"z": None, "r": p["r"]}, mine.init(p), p)
    assert frozen["z"] is None and frozen["r"].shape == (3,)
    assert mine.update(p, mine.init(p), p)[0]["z"].dtype == np.complex64


# ---- differential privacy ----


def test_private_gradients_without_noise_are_those_of_optax() -> None:
    rng = np.random.default_rng(0)
    start = {"w": rng.normal(size=(3, 2)).astype(np.float32), "b": np.zeros(2, np.float32)}
    mine = optim.dpsgd(0.1, 1.0, 0.0, seed=3, momentum=0.9, nesterov=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = optax.contrib.dpsgd(0.1, 1.0, 0.0, seed=3, momentum=0.9, nesterov=True)
    p, q = ours(start), theirs(start)
    a, b = mine.init(p), peer.init(q)
    for _ in range(5):
        grads = {"w": rng.normal(size=(7, 3, 2)), "b": rng.normal(size=(7, 2))}
        grads = {k: g.astype(np.float32) for k, g in grads.items()}
        u, a = gf.jit(mine.update)(ours(grads), a, p)
        v, b = peer.update(theirs(grads), b, q)
        p, q = optim.apply_updates(p, u), optax.apply_updates(q, v)
    for name in p:
        np.testing.assert_allclose(np.asarray(p[name]), np.asarray(q[name]), rtol=1e-5, atol=1e-7)


def test_private_noise() -> None:
    grads = {"w": jnp.zeros((4, 200, 50)), "b": jnp.zeros((4, 5000))}
    tx = optim.contrib.differentially_private_aggregate(2.0, 3.0, key=5)
    state = tx.init(grads)
    first, state = tx.update(grads, state)
    second, _ = gf.jit(tx.update)(grads, state)
    for updates in (first, second):
        flat = np.asarray(updates["w"]).ravel()
        assert abs(np.std(flat) - 2.0 * 3.0 / 4) < 0.05 and abs(np.mean(flat)) < 0.05
    flat = [np.asarray(x).ravel() for x in (first["w"][:100], first["b"], second["b"])]
    correlations = np.corrcoef(flat) - np.eye(3)
    assert np.abs(correlations).max() < 0.06
    again, _ = tx.update(grads, tx.init(grads))
    assert bool(jnp.all(again["w"] == first["w"]))


def test_private_arguments() -> None:
    aggregate = optim.contrib.differentially_private_aggregate
    with pytest.warns(UserWarning, match="which all know"):
        aggregate(1.0, 1.0)
    with pytest.raises(ValueError, match="key or seed, not both"):
        aggregate(1.0, 1.0, key=1, seed=1)
    with pytest.raises(ValueError, match="l2_norm_clip must be positive"):
        aggregate(0.0, 1.0, key=1)
    with pytest.raises(ValueError, match="noise_multiplier must not be negative"):
        aggregate(1.0, -1.0, key=1)
    tx = optim.dpsgd(0.1, 1.0, 0.0, seed=0)
    with pytest.raises(ValueError, match="leading batch dimension"):
        tx.update({"a": jnp.ones(3), "b": jnp.ones(4)}, tx.init(jnp.ones(3)))


# ---- GaLore ----


def _conditioned(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """A matrix whose singular values are 1, 1/2, 1/4, ...: its directions are well defined."""
    n = min(shape)
    q = [np.linalg.qr(rng.normal(size=(m, n)))[0] for m in shape]
    return (q[0] * 0.5 ** np.arange(n)) @ q[1].T


def _matrices(rng: np.random.Generator) -> dict[str, np.ndarray]:
    cube = np.moveaxis(_conditioned(rng, 6, 8).reshape(6, 4, 2), 0, 1)  # rows are axis 1
    tree = {"tall": _conditioned(rng, 7, 4), "wide": _conditioned(rng, 3, 8), "cube": cube,
            "b": rng.normal(size=5)}  # fmt: skip
    return {k: x.astype(np.float32) for k, x in tree.items()}


def _galore_steps(o: Any, convert: Callable, contrib: Any, steps: int, **kwargs: Any) -> Any:
    rng = np.random.default_rng(0)
    kind = contrib.GaLoreDimensionNumbers
    dims = {"tall": kind(), "wide": kind(0, -1), "cube": kind((1,), (0, 2)), "b": None}
    tx = contrib.galore(0.1, 2, weight_dimension_numbers=dims, **kwargs)
    params = convert(_matrices(rng))
    state = tx.init(params)
    for _ in range(steps):
        updates, state = tx.update(convert(_matrices(rng)), state, params)
        params = o.apply_updates(params, updates)
    return params, state


@pytest.mark.parametrize(
    "base, kwargs",
    [
        (None, {"update_proj_gap": 10, "scale": 0.5, "weight_decay": 0.1}),
        # Directions have either sign, which optimizers with a memory are told apart by.
        ("identity", {"update_proj_gap": 1}), ("scale_by_sign", {"update_proj_gap": 10}),
    ],
    ids=str,
)  # fmt: skip
def test_galore_is_that_of_optax(base: str | None, kwargs: dict) -> None:
    made = [None if base is None else getattr(o, base)() for o in (optim, optax)]
    mine, a = _galore_steps(optim, ours, optim.contrib, 4, base_optimizer=made[0], **kwargs)
    peer, b = _galore_steps(optax, theirs, optax.contrib, 4, base_optimizer=made[1], **kwargs)
    for name, x in mine.items():
        np.testing.assert_allclose(np.asarray(x), np.asarray(peer[name]), rtol=1e-4, atol=2e-5)
    for name, x in a[0].projector.items():
        p, q = np.asarray(x), np.asarray(b[0].projector[name])
        assert p.shape == q.shape
        np.testing.assert_allclose(p @ p.T, q @ q.T, atol=2e-5)


def test_galore_renews_its_projection_and_keeps_the_moments() -> None:
    rng = np.random.default_rng(0)
    tx = optim.contrib.scale_by_galore(2, update_proj_gap=2)
    w = jnp.asarray(np.zeros((5, 4), np.float32))
    state = tx.init(w)
    assert state.projector.shape == (5, 2) and state.base_optimizer_state.mu.shape == (2, 4)
    bases = []
    for i in range(4):
        g = _conditioned(rng, 5, 4).astype(np.float32)
        _, state = gf.jit(tx.update)(jnp.asarray(g), state)
        bases.append(np.asarray(state.projector))
        if i % 2 == 0:
            u = np.linalg.svd(g)[0][:, :2]
            np.testing.assert_allclose(bases[i] @ bases[i].T, u @ u.T, atol=1e-5)
    assert (bases[0] == bases[1]).all() and (bases[2] == bases[3]).all()
    assert np.abs(bases[1] - bases[2]).max() > 1e-2
    assert int(state.base_optimizer_state.count) == int(state.count) == 4


def test_galore_of_complex_matrices_and_whole_rank() -> None:
    """With all directions the projection changes nothing, also of complex gradients."""
    rng = np.random.default_rng(0)
    for shape in ((4, 3), (3, 4)):
        z = (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64)
        tx = optim.contrib.scale_by_galore(8, base_optimizer=optim.identity())
        updates, _ = tx.update(jnp.asarray(z), tx.init(jnp.asarray(z)))
        np.testing.assert_allclose(np.asarray(updates), z, atol=1e-5)


def test_galore_arguments() -> None:
    galore, kind = optim.contrib.scale_by_galore, optim.contrib.GaLoreDimensionNumbers
    for wrong in (0, 2.0):
        with pytest.raises(ValueError, match="rank must be a positive integer"):
            galore(wrong)
    with pytest.raises(ValueError, match="update_proj_gap must be a positive integer"):
        galore(2, update_proj_gap=0)
    for dims in (kind(0, 0), kind(0, 1)):
        with pytest.raises(ValueError, match=r"shape \(2, 3, 4\) is not a matrix"):
            galore(2, weight_dimension_numbers=dims).init(jnp.ones((2, 3, 4)))
    tx = galore(1, base_optimizer=optim.add_decayed_weights(0.1))
    with pytest.raises(ValueError, match="needs the current parameters"):
        tx.update(jnp.ones((2, 2)), tx.init(jnp.ones((2, 2))), jnp.ones((2, 2)))


# ---- dtypes, frozen leaves, compiled and batched ----

REAL = {
    "acprop": lambda c: c.acprop(1e-2, weight_decay=0.1),
    "ademamix": lambda c: c.ademamix(1e-2, b3=0.9),
    "simplified_ademamix": lambda c: c.simplified_ademamix(1e-3),
    "adopt": lambda c: c.adopt(1e-2),
    "cocob": lambda c: c.cocob(),
    "dadapt_adamw": lambda c: c.dadapt_adamw(estim_lr0=1e-2),
    "dog": lambda c: c.dog(init_step=("distance", 0.1)),
    "dowg": lambda c: c.dowg(),
    "madgrad": lambda c: c.madgrad(1e-2),
    "momo": lambda c: c.momo(0.1, adapt_lower_bound=True),
    "momo_adam": lambda c: c.momo_adam(1e-2),
    "mechanize": lambda c: c.mechanize((optim if c is optim.contrib else optax).sgd(1.0)),
    "galore": lambda c: c.galore(1e-2, 2),
}


@pytest.mark.parametrize("name", REAL)
def test_bfloat16_parameters(name: str) -> None:
    """Optax's float32 steps, of which the parameters are rounded; states are float32."""
    rng = np.random.default_rng(0)
    shapes = {"w": (4, 3), "b": (5,)}
    draw = lambda: {k: rng.normal(size=s).astype(ml_dtypes.bfloat16) for k, s in shapes.items()}
    mine, peer = REAL[name](optim.contrib), REAL[name](optax.contrib)
    single = lambda t: {k: jax.numpy.asarray(np.asarray(x, np.float32)) for k, x in t.items()}
    start = draw()
    p, q = ours(start), dict(start)
    a, b = mine.init(p), peer.init(single(q))
    for i in range(8):
        g = draw()
        u, a = gf.jit(mine.update)(ours(g), a, p, **_of(name)(i))
        v, b = peer.update(single(g), b, single(q), **_of(name)(i))
        p = optim.apply_updates(p, u)
        q = {k: np.asarray(q[k].astype(np.float32) + v[k]).astype(ml_dtypes.bfloat16) for k in q}
        for k, x in p.items():
            assert x.dtype == jnp.bfloat16 and u[k].dtype == jnp.float32
            got, want = np.asarray(x, np.float32), q[k].astype(np.float32)
            np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-2)
            assert np.mean(got == want) > 0.8, k  # others are rounded to the other side
        q = {k: np.asarray(x) for k, x in p.items()}
    state = tree.leaves(optim.tree.map_params(mine, lambda x: x.dtype, a, is_leaf=None))
    assert all(x != jnp.float64 for x in state)


@pytest.mark.parametrize("name", REAL)
def test_frozen_leaves_and_batches_of_parameters(name: str) -> None:
    tx = REAL[name](optim.contrib)
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=(2, 4, 3)).astype(np.float32))
    g = jnp.asarray(rng.normal(size=(3, 2, 4, 3)).astype(np.float32))
    values = [{} if not _of(name)(0) else {"value": jnp.asarray(1.0 + i)} for i in range(3)]

    def run(w: Any, g: Any) -> Any:
        params = {"w": w, "none": None, "n": jnp.array([1, 2])}
        state = tx.init(params)
        for i in range(3):
            grads = {"w": g[i], "none": None, "n": None}
            updates, state = tx.update(grads, state, params, **values[i])
            assert updates["none"] is None and updates["n"] is None
            params = optim.apply_updates(params, updates)
        assert params["n"].tolist() == [1, 2]
        return params["w"]

    alone = [np.asarray(run(w[k], g[:, k])) for k in range(2)]
    assert all(np.isfinite(x).all() and np.abs(x - np.asarray(w[k])).max() > 0
               for k, x in enumerate(alone))  # fmt: skip
    tx_only = lambda w, g: _plain_run(tx, w, g, values)
    batched = gf.jit(gf.vmap(tx_only, (0, 1)))(w, g)
    np.testing.assert_allclose(np.asarray(batched), np.stack(alone), rtol=2e-4, atol=2e-5)


def _plain_run(tx: Any, w: Any, g: Any, values: list[dict]) -> Any:
    state = tx.init(w)
    for i in range(3):
        updates, state = tx.update(g[i], state, w, **values[i])
        w = optim.apply_updates(w, updates)
    return w


@pytest.mark.parametrize("name", REAL)
def test_the_state_keeps_its_dtypes_and_serves_a_scan(name: str) -> None:
    tx = REAL[name](optim.contrib)
    w = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))
    extra = {"value": jnp.asarray(1.0)} if _of(name)(0) else {}

    def step(carry: Any, _: Any) -> Any:
        w, state = carry
        updates, state = tx.update(w, state, w, **extra)
        return (optim.apply_updates(w, updates), state), None

    (last, _), _ = gf.lax.scan(step, (w, tx.init(w)), None, length=4)
    assert np.isfinite(np.asarray(last)).all()


@pytest.mark.parametrize("name", sorted({*REAL} - {"galore"}))
def test_derivatives_through_steps_are_those_of_optax(name: str) -> None:
    rng = np.random.default_rng(0)
    w, g = rng.normal(size=(4, 3)), rng.normal(size=(3, 4, 3))
    weights = np.cos(np.arange(12.0)).reshape(4, 3)

    def loss(tx: Any, apply: Callable) -> Callable:
        def of(w: Any, g: Any) -> Any:
            state = tx.init(w)
            for i in range(3):
                updates, state = tx.update(g[i], state, w, **_of(name)(i))
                w = apply(w, updates)
            return (w * weights).sum()

        return of

    single = lambda x: x.astype(np.float32)
    f = gf.jit(gf.value_and_grad(loss(REAL[name](optim.contrib), optim.apply_updates), (0, 1)))
    value, grads = f(single(w), single(g))
    peer = jax.value_and_grad(loss(REAL[name](optax.contrib), optax.apply_updates), (0, 1))
    want, wanted = peer(single(w), single(g))
    np.testing.assert_allclose(float(value), float(want), rtol=1e-5)
    wanted = [np.asarray(y) for y in wanted]
    # Roots at 0 have no derivative there, at the first steps of these.
    assert name in ("dog", "mechanize") or all(np.isfinite(y).all() for y in wanted)
    for x, y in zip(grads, wanted):
        x, known = np.asarray(x), np.isfinite(y)
        assert np.isfinite(x).all()
        x, y = x[known], y[known]
        scale = np.abs(y).max(initial=0.0)
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize(
    "name", ["cocob", "dadapt_adamw", "madgrad", "momo", "momo_adam", "mechanize"]
)
def test_complex_parameters_are_refused_by_name(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name} takes real parameters.*\['z'\] is c64"):
        REAL[name](optim.contrib).init({"z": jnp.ones(2, "complex64")})


def test_the_first_gradient_may_be_zero() -> None:
    for name in ("dadapt_adamw", "prodigy", "momo", "momo_adam", "mechanize", "dog", "dowg"):
        make = REAL.get(name, lambda c: c.prodigy())
        tx, w = make(optim.contrib), jnp.array([1.0, -2.0])
        extra = {"value": jnp.asarray(1.0)} if _of(name)(0) else {}
        state = tx.init(w)
        for g in (jnp.zeros(2), w, w):
            updates, state = tx.update(g, state, w, **extra)
            w = optim.apply_updates(w, updates)
        assert np.isfinite(np.asarray(w)).all(), name


def test_arguments() -> None:
    c = optim.contrib
    with pytest.raises(ValueError, match='init_step is a pair of "distance"'):
        c.dog(init_step=("nothing", 1.0))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="num_betas must be positive"):
        c.mechanize(optim.sgd(1.0), num_betas=0)
    for name in [n for n in REAL if n not in ("adopt", "acprop", "galore")]:
        tx, w = REAL[name](c), jnp.ones(2)
        if "ademamix" in name:
            continue
        with pytest.raises(ValueError, match="needs the current parameters"):
            tx.update(w, tx.init(w), **({"value": 1.0} if _of(name)(0) else {}))


def test_states_have_the_fields_of_those_of_optax() -> None:
    for name in dir(optax.contrib):
        theirs = getattr(optax.contrib, name)
        if hasattr(theirs, "_fields") and name != "MuonState":
            assert getattr(optim.contrib, name)._fields == theirs._fields, name
    # Coefficients are numbers of the program here.
    assert optim.contrib.MuonState._fields == ("count", "mu")


def test_everything_of_optax_is_there() -> None:
    spaces = ("contrib", "transforms", "tree_utils", "schedules", "losses", "microbatching")
    for space in spaces:
        mine, peer = getattr(optim, space), getattr(optax, space)
        public = [n for n in dir(peer) if n[0] != "_" and not hasattr(getattr(peer, n), "__path__")]
        modules = {n for n in public if type(getattr(peer, n)).__name__ == "module"}
        assert [n for n in public if n not in modules and not hasattr(mine, n)] == [], space


def test_sophia_prints_its_win_rate(capfd: pytest.CaptureFixture[str]) -> None:
    w, options = jnp.array([1.0, -2.0]), {"verbose": True, "print_win_rate_every_n_steps": 2}
    loss = lambda w: jnp.sum(w**4)
    tx = optim.scale_by_sophia(gamma=1000.0, **options)
    state = tx.init(w)
    for g in (w, w * jnp.array([1.0, 1e3])):
        _, state = gf.jit(lambda g, s: tx.update(g, s, w, obj_fn=loss))(g, state)
    gf.lax.stop_gradient(state.mu).block_until_ready()
    assert capfd.readouterr().out.strip() == "Sophia optimizer win rate: 0.5"
    with pytest.raises(ValueError, match="print_win_rate_every_n_steps must be positive"):
        optim.sophia(0.1, verbose=True)


def test_sam_averages_the_gradients_of_its_climb_over_an_axis() -> None:
    tx = optim.sam(optim.sgd(1.0), optim.sgd(0.5), opaque_mode=True, batch_axis_name="batch")
    w, targets = jnp.array([1.0, -1.0]), jnp.array([[0.0, 2.0], [4.0, 6.0]])

    def step(target: Any) -> Any:
        g = gf.lax.pmean(w - target, "batch")
        return tx.update(g, tx.init(w), w, grad_fn=lambda p, i: p - target)[0]

    updates = gf.vmap(step, axis_name="batch")(targets)
    g = np.asarray(w - targets.mean(0))
    climbed = np.asarray(w) + 0.5 * g
    want = -(climbed - np.asarray(targets.mean(0)))
    np.testing.assert_allclose(np.asarray(updates), np.stack([want, want]), rtol=1e-6)
