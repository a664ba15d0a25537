"""Mistakes with optimizers and losses: each message names the argument, the leaf, the user's line
and the remedy, in at most six lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import nn, optim
from genesis_fn.optim import losses

P = {"w": jnp.ones(3), "b": jnp.ones(2)}
G = {"w": jnp.full(3, 0.5), "b": jnp.full(2, 0.5)}


def _message(call: Callable[[], Any]) -> str:
    with pytest.raises((TypeError, ValueError, KeyError)) as error:
        call()
    text = str(error.value)
    assert isinstance(error.value, gf.errors.GenesisError | KeyError), repr(error.value)
    assert len(text.splitlines()) <= 6 and "test_messages.py:" in text, text
    return text


def test_m03_apply_updates_given_the_pair() -> None:
    tx = optim.adam(0.1)
    pair = tx.update(G, tx.init(P), P)
    text = _message(lambda: optim.apply_updates(P, pair))
    assert "updates is the pair (updates, state)" in text
    assert "updates, state = tx.update(grads, state, params)" in text
    # Parameters that are a pair themselves are no mistake.
    both = optim.apply_updates((P, P), (G, G))
    assert float(both[1]["w"][0]) == 1.5
    text = _message(lambda: optim.apply_updates(P, {"w": G["w"]}))
    assert "the updates lack ['b'] that the parameters have" in text
    text = _message(lambda: optim.apply_updates(P, None))
    assert "updates is None, where the parameters are a tree" in text


def test_m04_a_leaf_of_another_shape() -> None:
    wrong = {"w": jnp.ones(2), "b": jnp.ones(2)}
    text = _message(lambda: optim.apply_updates(P, wrong))
    assert "params['w'] is f32[3], but updates['w'] is f32[2]" in text
    text = _message(lambda: optim.apply_updates({"s": jnp.ones(())}, {"s": jnp.ones(3)}))
    assert "params['s'] is f32[], but updates['s'] is f32[3]" in text
    for name in ("adam", "sgd", "lion", "adafactor", "novograd", "muon", "lamb", "adagrad"):
        tx = getattr(optim, name)(0.1, **({"momentum": 0.9} if name == "sgd" else {}))
        state = tx.init(P)
        text = _message(lambda tx=tx, state=state: tx.update(wrong, state, P))
        assert "gradient at ['w'] is f32[2]" in text and "f32[3] there" in text
    # An update that broadcasts to its parameter is none.
    assert optim.apply_updates(P, {"w": 1.0, "b": jnp.ones(1)})["w"].tolist() == [2.0] * 3


def test_m05_gradients_that_lack_a_leaf() -> None:
    tx = optim.adam(0.1)
    state = tx.init(P)
    text = _message(lambda: tx.update({"w": G["w"]}, state, P))
    assert "the gradients lack ['b'] that the state has" in text
    text = _message(lambda: tx.update({**G, "c": G["w"]}, state, P))
    assert "the gradients have ['c'] that the state lacks" in text
    text = _message(lambda: tx.update({"w": G["w"], "v": G["b"]}, state, P))
    assert "lack ['b'] that the state has; the gradients have ['v'] that the state lacks" in text
    text = _message(lambda: tx.update([G["w"], G["b"]], state, P))
    assert "the gradients and the state differ in structure: at the top: expected a dict" in text
    decay = optim.add_decayed_weights(0.1)
    text = _message(lambda: decay.update(G, decay.init(P), {"w": P["w"]}))
    assert "the gradients have ['b'] that the parameters lack" in text
    text = _message(lambda: tx.update({**G, "n": jnp.ones(1)}, tx.init({**P, "n": None}), P))
    assert "the gradient of params['n'] is f32[1], but the state has nothing for it" in text


def test_m06_the_state_of_another_optimizer() -> None:
    sgd, adam = optim.sgd(0.1), optim.adam(0.1)
    text = _message(lambda: adam.update(G, sgd.init(P)))
    assert "the state is of sgd (EmptyState, ScaleByLearningRateState)" in text
    assert "this adam needs (ScaleByAdamState, ScaleByLearningRateState)" in text
    assert "make it by init of this adam" in text
    text = _message(lambda: optim.scale_by_adam().update(G, optim.EmptyState()))
    assert "the state is EmptyState; this scale_by_adam needs ScaleByAdamState" in text
    text = _message(lambda: optim.chain(optim.clip(1.0), adam).update(G, adam.init(P)))
    assert "the state is of adam" in text and "this chain needs (EmptyState, ChainState)" in text
    text = _message(lambda: adam.update(G, None))
    assert "the state is None; this adam needs" in text
    named = optim.named_chain(("a", optim.scale(1.0)))
    text = _message(lambda: named.update(G, adam.init(P)))
    assert "this named_chain needs a dict of ['a']" in text
    steps = optim.MultiSteps(adam, 2)
    text = _message(lambda: steps.update(G, adam.init(P)))
    assert "this MultiSteps needs MultiStepsState" in text


STATEFUL = [
    "scale_by_adam", "scale_by_adamax", "scale_by_adan", "scale_by_amsgrad", "scale_by_belief",
    "scale_by_yogi", "scale_by_radam", "scale_by_novograd", "scale_by_lion", "scale_by_adadelta",
    "scale_by_rms", "scale_by_stddev", "scale_by_rss", "scale_by_factored_rms", "scale_by_sm3",
    "scale_by_optimistic_gradient", "scale_by_distance_over_gradients", "apply_every",
    "scale_by_sophia", "stochastic_round", "reduce_on_plateau", "scale_by_muon",
]  # fmt: skip
OPTIMIZERS = [
    "adabelief", "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan",
    "amsgrad", "fromage", "lamb", "lars", "lion", "muon", "nadam", "nadamw", "noisy_sgd",
    "novograd", "optimistic_adam_v2", "optimistic_gradient_descent", "prodigy", "radam", "rmsprop",
    "rprop", "schedule_free_adamw", "schedule_free_sgd", "sgd", "sign_sgd", "signum", "sm3",
    "sophia", "yogi",
]  # fmt: skip


@pytest.mark.parametrize("name", STATEFUL + OPTIMIZERS)
def test_m06_every_transformation_refuses_a_foreign_state(name: str) -> None:
    tx = getattr(optim, name)(*([0.1] if name in OPTIMIZERS else []))
    params = {"w": jnp.ones((2, 2))}
    for state in (None, optim.EmptyState(), optim.ema(0.9).init(params), {}, 3):
        text = _message(lambda state=state: tx.update(params, state, params))
        assert "the state is" in text and "make it by init of" in text


def test_m07_parameters_that_are_missing() -> None:
    for name in ("adamw", "lamb", "lars", "novograd", "fromage", "adamaxw"):
        tx = getattr(optim, name)(0.1)
        state = tx.init(P)
        text = _message(lambda tx=tx, state=state: tx.update(G, state))
        assert "needs the current parameters: call update(grads, state, params)" in text
    tx = optim.with_master(optim.sgd(0.1))
    assert "with_master needs the current" in _message(lambda: tx.update(G, tx.init(P)))


def test_m08_cross_entropy_of_unlike_shapes() -> None:
    text = _message(lambda: losses.softmax_cross_entropy(jnp.ones((2, 3)), jnp.ones((2, 4))))
    assert "softmax_cross_entropy: the shapes of logits f32[2,3], labels f32[2,4]" in text
    assert "give labels the shape of logits" in text
    step = gf.jit(gf.grad(lambda x: losses.softmax_cross_entropy(x, jnp.ones((2, 4))).sum()))
    assert "logits f32[2,3], labels f32[2,4]" in _message(lambda: step(jnp.ones((2, 3))))


X, Y, I3 = jnp.ones((2, 3)), jnp.ones((2, 4)), jnp.zeros(3, "int32")
LOSSES = {
    "squared_error": ((X, Y), ["predictions f32[2,3]", "targets f32[2,4]"]),
    "l2_loss": ((X, Y), ["predictions", "targets"]),
    "huber_loss": ((X, Y), ["predictions", "targets"]),
    "log_cosh": ((X, Y), ["predictions", "targets"]),
    "cosine_similarity": ((X, Y), ["predictions", "targets"]),
    "cosine_distance": ((X, Y), ["predictions", "targets"]),
    "softmax_cross_entropy": ((X, Y), ["logits", "labels"]),
    "safe_softmax_cross_entropy": ((X, Y), ["logits", "labels"]),
    "softmax_cross_entropy_with_integer_labels": ((X, I3), ["logits f32[2,3]", "i32[3]"]),
    "sigmoid_binary_cross_entropy": ((X, Y), ["logits", "labels"]),
    "sigmoid_focal_loss": ((X, Y), ["logits", "labels"]),
    "hinge_loss": ((X, Y), ["predictor_outputs", "targets"]),
    "perceptron_loss": ((X, Y), ["predictor_outputs", "targets"]),
    "multiclass_hinge_loss": ((X, I3), ["scores f32[2,3]", "i32[3]"]),
    "multiclass_perceptron_loss": ((X, I3), ["scores", "labels"]),
    "multiclass_sparsemax_loss": ((X, I3), ["scores", "labels"]),
    "sparsemax_loss": ((X, Y), ["logits", "labels"]),
    "poly_loss_cross_entropy": ((X, Y), ["logits", "labels"]),
    "kl_divergence": ((X, Y), ["log_predictions", "targets"]),
    "kl_divergence_with_log_targets": ((X, Y), ["log_predictions", "log_targets"]),
    "generalized_kl_divergence": ((X, Y), ["log_predictions", "targets"]),
    "convex_kl_divergence": ((X, Y), ["log_predictions", "targets"]),
    "smooth_labels": ((jnp.zeros(3, "int32"), 0.1), ["smooth_labels", "i32[3]"]),
    "ntxent": ((X, I3), ["embeddings f32[2,3]", "labels i32[3]"]),
    "triplet_margin_loss": ((X, X, Y), ["anchors", "positives", "negatives f32[2,4]"]),
    "ranking_softmax_loss": ((X, Y), ["logits", "labels"]),
    "dice_loss": ((X, Y), ["predictions f32[2,3]", "targets f32[2,4]"]),
    "binary_dice_loss": ((X, Y), ["predictions", "targets"]),
    "multiclass_generalized_dice_loss": ((X, Y), ["predictions", "targets"]),
    "make_fenchel_young_loss": ((X, Y), ["scores f32[2,3]", "targets f32[2,4]"]),
    "ctc_loss": ((X, Y, X, Y), ["logits [B, T, K]", "labels [B, N]"]),
    "ctc_loss_with_forward_probs": ((X, Y, X, Y), ["logits [B, T, K]", "labels [B, N]"]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_m08_every_loss_names_its_arguments(name: str) -> None:
    args, words = LOSSES[name]
    f = getattr(losses, name)
    f = f(jnp.max) if name == "make_fenchel_young_loss" else f
    text = _message(lambda: f(*args))
    assert all(word in text for word in words), text


def test_m08_every_loss_has_a_mistake() -> None:
    public = {
        n
        for n in dir(losses)
        if getattr(getattr(losses, n), "__module__", "").startswith(losses.__name__)
    }
    public = {n for n in public if not n.startswith("_") and n in dir(optim)}
    assert public <= {*LOSSES}


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: optim.chain(optim.sgd(0.1), 0.1), "chain: 1 is a float, not a transformation"),
    (lambda: optim.cosine_decay_schedule(0.1, 0), "decay_steps must be positive"),
    (lambda: optim.cosine_annealing_schedule(0.1, 0), "period must be positive"),
    (lambda: optim.step_schedule(0.1, 0), "step_size must be positive"),
    (lambda: optim.piecewise_constant_schedule(1.0, {3: -1.0}), "the scale at step 3 is negative"),
    (lambda: optim.piecewise_interpolate_schedule("cubic", 1.0), '"linear" or "cosine"'),
    (lambda: optim.join_schedules([optim.constant_schedule(1.0)], [3]), "1 schedules need 0"),
    (lambda: optim.linear_onecycle_schedule(0, 1.0), "transition_steps is 0"),
    (lambda: optim.masked(optim.sgd(0.1), {"w": 1, "b": True}).init(P),
     "a mask holds bools, got 1"),
    (lambda: gf.jit(lambda t: optim.freeze(t).update(G, optim.MaskedState(())))(True),
     "a mask holds bools whose value is known"),
    (lambda: optim.masked(optim.sgd(0.1), {"w": True}).init(P), "not a prefix of the tree"),
    (lambda: optim.partition({"a": optim.sgd(0.1)}, {"w": "a", "b": "c"}).init(P),
     "['b'] is labelled 'c'"),
    (lambda: optim.global_norm(P, 3), "ord is None, 1, 2 or inf"),
    (lambda: optim.lookahead(optim.sgd(0.1), 2, 0.5).update(G, optim.lookahead(
        optim.sgd(0.1), 2, 0.5).init(P), P), "must be LookaheadParams"),
    (lambda: optim.schedule_free_eval_params((), P), "takes the state of schedule_free"),
    (lambda: optim.scale_by_lion(mode="soft"), "mode is one of"),
    (lambda: optim.inject_hyperparams(optim.sgd, static_args="rate"), "'rate'"),
    (lambda: optim.sophia(0.1).update(G, optim.sophia(0.1).init(P), P), "obj_fn=the loss"),
    (lambda: optim.MultiSteps(optim.sgd(0.1), 0), "every_k_schedule must be positive"),
]  # fmt: skip


@pytest.mark.parametrize("call, words", MISTAKES, ids=[w for _, w in MISTAKES])
def test_m07_other_mistakes_name_the_users_line(call: Callable[[], Any], words: str) -> None:
    assert words in _message(call)


KEY = gf.random.key(0)
LAYERS: list[tuple[Callable[[], Any], str]] = [
    (lambda: nn.Linear(3, 4)(nn.Linear(3, 4).init(KEY.copy()), jnp.ones((2, 5))), "f32[2,5]"),
    (lambda: nn.Dropout(0.5)(None, X, train=True), "Dropout in training needs key="),
    (lambda: nn.softmax(X, axis=5), "softmax: axis 5 does not exist"),
    (lambda: nn.glu(X), "f32[2,3] does not divide into 2"),
    (lambda: nn.dot_product_attention(X, X, X), "query f32[2,3]"),
    (lambda: nn.initializers.variance_scaling(1.0, "fan", "normal")(KEY.copy(), (2, 3)),
     "got 'fan'"),
    (lambda: nn.initializers.variance_scaling(1.0, "fan_in", "cauchy")(KEY.copy(), (2, 3)),
     "unknown distribution 'cauchy'"),
    (lambda: nn.initializers.orthogonal()(KEY.copy(), (3,)), "at least two dimensions"),
]  # fmt: skip


@pytest.mark.parametrize("call, words", LAYERS, ids=[w for _, w in LAYERS])
def test_m07_mistakes_with_layers_name_the_users_line(call: Callable[[], Any], words: str) -> None:
    assert words in _message(call)
