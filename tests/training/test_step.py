"""The training step: parts of a batch, mixed precision, averages, and what guards the state."""

from __future__ import annotations

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, optim, random
from genesis_fn.errors import ArgumentError
from genesis_fn.training import step as steps
from genesis_fn.training.step import StepGuard, StepRecipe

SIZES = (6, 5)  # of the model below: features and classes
RATE = 0.1


def init(dtype="float32"):
    layers = {"embed_tokens": nn.Embedding(11, SIZES[0], dtype=dtype)}
    layers["head"] = nn.Linear(*SIZES, dtype=dtype)
    return {name: x.init(random.key(i)) for i, (name, x) in enumerate(layers.items())}


def loss(trained, frozen, batch, key):
    """The cross-entropy of one linear layer over rows of a table, summed."""
    x = trained["embed_tokens"]["weight"][batch["tokens"]]
    if key is not None:
        x = x * random.bernoulli(key, 0.5, x.shape)
    y = nn.linear(x, trained["head"]["weight"]) + trained["head"]["bias"]
    y = y * frozen if frozen is not None else y
    return nn.cross_entropy(y, batch["labels"], ignore_index=-100, reduction="sum")


def batch_of(seed, rows=8, length=7):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 11, (rows, length)).astype(np.int32)
    labels = rng.integers(0, 5, (rows, length)).astype(np.int32)
    # Each row counts as many labels as it likes, one of them none.
    for row in range(rows):
        labels[row, : rng.integers(0, length)] = -100
    labels[3] = -100
    return {"tokens": tokens, "labels": labels}


def run(recipe, batches, params=None, optimizer=None, fun=loss, frozen=None):
    """(the last state, the metrics of each step)."""
    optimizer = optimizer or optim.adamw(RATE)
    state = steps.init_state(init() if params is None else params, optimizer, recipe)
    step = steps.make_step(fun, optimizer, lambda i: RATE / (1 + i), recipe)
    found = []
    for batch in batches:
        state, numbers = step(state, frozen, batch)
        found.append(steps.metrics_of(numbers))
    return state, found


def bits(tree):
    return [np.asarray(x).tobytes() for x in gf.tree.leaves(tree)]


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_parts_of_a_batch_are_the_batch(parts):
    batches = [batch_of(i) for i in range(5)]
    whole, wanted = run(StepRecipe(), batches, init("float64"))
    split, found = run(StepRecipe(parts=parts), batches, init("float64"))
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(b.loss, a.loss, rtol=1e-6)
        np.testing.assert_allclose(b.grad_norm, a.grad_norm, rtol=1e-6)
        assert a.tokens == b.tokens == (batches[wanted.index(a)]["labels"] != -100).sum()
    for x, y in zip(gf.tree.leaves(whole.params), gf.tree.leaves(split.params), strict=True):
        np.testing.assert_allclose(y, x, rtol=1e-6, atol=1e-7)
    with pytest.raises(ArgumentError, match="8 rows cannot be computed in 3 equal parts"):
        run(StepRecipe(parts=3), batches)


def test_the_first_step_is_the_gradient_of_the_mean():
    batch, params = batch_of(0), init()

    def mean(params):
        x = params["embed_tokens"]["weight"][batch["tokens"]]
        y = nn.linear(x, params["head"]["weight"]) + params["head"]["bias"]
        return nn.cross_entropy(y, batch["labels"], ignore_index=-100)

    value, grads = gf.value_and_grad(mean)(params)
    state, (m,) = run(StepRecipe(), [batch], params, optim.sgd(RATE))
    np.testing.assert_allclose(m.loss, value, rtol=1e-6)
    np.testing.assert_allclose(m.grad_norm, optim.global_norm(grads), rtol=1e-6)
    for p, g, new in zip(*map(gf.tree.leaves, (init(), grads, state.params)), strict=True):
        np.testing.assert_allclose(new, p - RATE * g, rtol=1e-5, atol=1e-7)
    assert (m.applied, m.finite, m.spike, m.loss_scale) == (True, True, False, 1.0)
    assert m.learning_rate == pytest.approx(RATE) and int(state.step) == 1
    names = steps.leaf_names(init())
    assert names == ["embed_tokens.weight", "head.bias", "head.weight"]
    groups = steps.norms_by_group(names, m.squares)
    wanted = {k: float(optim.global_norm(grads[k])) for k in ("embed_tokens", "head")}
    assert groups == pytest.approx(wanted, rel=1e-5)


def test_groups_of_a_decoder():
    names = [
        "embed_tokens.weight",
        "layers.0.input_layernorm.weight",
        "layers.11.mlp.up_proj.weight",
    ]
    names += ["layers.3.self_attn.q_proj.lora_A", "layers.0.self_attn.q_norm.weight", "norm.weight"]
    found = steps.norms_by_group(names, np.array([1.0, 4, 9, 16, 25, 36]))
    assert found == {
        "embed_tokens": 1, "norms": pytest.approx(65**0.5), "mlp": 3, "self_attn": 4,
    }  # fmt: skip


def test_float16_overflows_are_skipped_and_the_scale_adapts():
    # A factor that overflows float16 at the first scale, and not at a smaller one.
    recipe = StepRecipe(loss_scaling=True)
    half = gf.amp(lambda *a: loss(*a) * 64.0, "float16")
    start = init()
    state, found = run(recipe, [batch_of(i) for i in range(12)], start, fun=half)
    scales = [m.loss_scale for m in found]
    assert scales[0] == 2.0**15 and not found[0].finite and not found[0].applied
    assert any(m.applied for m in found) and min(scales) < 2.0**15
    for a, b in zip(found, found[1:]):
        assert b.loss_scale == (a.loss_scale if a.finite else a.loss_scale / 2)
    assert int(state.step) == 12 and not bool(state.health["halted"])
    # What is never finite stops when the scale cannot shrink any more.
    never = lambda *a: loss(*a) * jnp.nan
    state, found = run(recipe, [batch_of(i) for i in range(20)], init(), fun=never)
    assert [m.applied for m in found] == [False] * 20 and bool(state.health["halted"])
    assert int(state.step) == 15 and bits(state.params) == bits(init())


def test_what_is_not_finite_changes_nothing_and_halts():
    bad = batch_of(2)
    frozen = [None, None, jnp.asarray(jnp.inf), None]
    batches = [batch_of(0), batch_of(1), bad, batch_of(3)]
    recipe = StepRecipe(ema=0.9)
    optimizer = optim.adamw(RATE)
    state = steps.init_state(init(), optimizer, recipe)
    step = steps.make_step(loss, optimizer, lambda i: RATE, recipe)
    seen = []
    for batch, factor in zip(batches, frozen, strict=True):
        factor = jnp.asarray(1.0) if factor is None else factor
        state, numbers = step(state, factor, batch)
        seen.append((steps.metrics_of(numbers), bits(state.params), bits(state.opt_state)))
    metrics = [m for m, *_ in seen]
    assert [m.applied for m in metrics] == [True, True, False, False]
    assert [m.finite for m in metrics] == [True, True, False, True]
    assert seen[1][1:] == seen[2][1:] == seen[3][1:] and seen[0][1:] != seen[1][1:]
    assert int(state.step) == 2 and bool(state.health["halted"])
    said = steps.not_finite(steps.leaf_names(init()), metrics[2])
    assert "embed_tokens.weight is the first that is not finite, of 3 among 3" in said


def test_the_first_leaf_that_is_not_finite_is_named():
    @gf.custom_vjp
    def spoiled(x):
        return x

    spoiled.defvjp(lambda x: (x, None), lambda _, ct: (ct * jnp.nan,))
    broken = lambda t, *rest: loss(
        {**t, "head": {**t["head"], "bias": spoiled(t["head"]["bias"])}}, *rest
    )
    state, (m,) = run(StepRecipe(), [batch_of(0)], fun=broken)
    said = steps.not_finite(steps.leaf_names(init()), m)
    assert said.startswith(f"the loss is {m.loss}, and the gradient of head.bias is the first")
    assert np.isfinite(m.loss) and bits(state.params) == bits(init())


@pytest.mark.parametrize("skip", [False, True])
def test_spikes_are_reported_or_skipped(skip):
    rng = np.random.default_rng(0)
    factors = [jnp.asarray(1 + 0.01 * float(rng.normal())) for _ in range(40)]
    factors[30] = jnp.asarray(50.0)
    recipe = StepRecipe(guard=StepGuard(skip, deviations=6.0, window=20))
    optimizer = optim.sgd(1e-4)
    state = steps.init_state(init(), optimizer, recipe)
    step = steps.make_step(loss, optimizer, lambda i: 1e-4, recipe)
    found, before = [], []
    for factor in factors:
        before.append(bits(state.params))
        state, numbers = step(state, factor, batch_of(0))
        found.append(steps.metrics_of(numbers))
    assert [i for i, m in enumerate(found) if m.spike] == [30]
    assert [i for i, m in enumerate(found) if not m.applied] == ([30] if skip else [])
    assert (before[31] == before[30]) == skip and int(state.step) == 40
    # A loss that stays is none for ever.
    for _ in range(120):
        state, numbers = step(state, jnp.asarray(50.0), batch_of(0))
    assert not steps.metrics_of(numbers).spike


def test_the_average_of_the_parameters():
    recipe, batches = StepRecipe(ema=0.8), [batch_of(i) for i in range(6)]
    averages = gf.tree.map(np.asarray, init())
    optimizer = optim.adamw(RATE)
    state = steps.init_state(init(), optimizer, recipe)
    step = steps.make_step(loss, optimizer, lambda i: RATE, recipe)
    for batch in batches:
        state, _ = step(state, None, batch)
        now = gf.tree.map(np.asarray, state.params)
        averages = gf.tree.map(lambda a, p: 0.8 * a + 0.2 * p, averages, now)
    for a, b in zip(gf.tree.leaves(averages), gf.tree.leaves(state.ema), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def test_keys_are_of_the_step_and_of_the_part():
    batches = [batch_of(0)] * 3
    of = lambda **o: [m.loss for m in run(StepRecipe(**o), batches, None, optim.sgd(0.0))[1]]
    plain, one, other = of(), of(seed=1), of(seed=2)
    assert len(set(plain)) == 1 and len({*one, *other, plain[0]}) == 7
    assert one == of(seed=1) and of(seed=1, parts=2) != one
