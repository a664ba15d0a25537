"""Entries of `nn`, `scipy.special`, `random`, `optim`, `image` and `ops`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import genesis_fn.numpy as jnp
from genesis_fn import nn, optim, random, tree
from tests.public.agree import E, Entry, Operand
from tests.public.entries_numpy import DEFINITE, INDEX, SORTED, P, U, V, X, each

UNIT = Operand(low=0.1, high=0.9)
LABELS = Operand((3,), "i", 0, 3)
HEADS = Operand((2, 5, 2, 8), "s")
PIXELS = Operand((1, 5, 6, 4), "s")
_experts = nn.MoE(4, 5, experts=3, top_k=2).init(random.key(0))["experts"]
LOG = Operand(low=-3.0, high=-0.5)
SIGNS = Operand(values=lambda rng: rng.choice([-1.0, 1.0], (3, 4)))

NN: dict[str, list[Entry]] = {
    **each("celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu "
           "log_sigmoid log_softmax logsumexp mish relu relu6 selu sigmoid silu soft_sign softmax "
           "softplus sparse_plus sparse_sigmoid squareplus standardize swish tanh glu", E(X)),
    **each("scaled_matmul", E(
        Operand((2, 3, 4), "s"), Operand((2, 5, 4), "s"), Operand((2, 3, 2), "s"),
        Operand((2, 5, 1), "s"), peer=False)),
    **each("log1mexp", E(P)), **each("logmeanexp", E(X)),
    **each("one_hot", E(INDEX, call=lambda f, i: f(i, 4))),
    **each("linear", E(X, Operand((2, 4)))), **each("plain_weight", E(Operand((2, 4)))),
    **each("linear_cross_entropy", E(
        Operand((3, 4), "s"), Operand((5, 4), "s"), LABELS, same=False)),
    **each("max_pool avg_pool", E(PIXELS, call=lambda f, x: f(x, (2, 3), (1, 2)))),
    **each("top_k_routing", E(X, call=lambda f, x: f(x, 2))),
    **each("expert_load", E(INDEX, call=lambda f, i: f(i[:, None], 4))),
    **each("load_balancing_loss", E(X, call=lambda f, x: f(
        nn.softmax(x, -1), np.array([[0, 1], [2, 1], [3, 1]]), 4))),
    **each("router_z_loss", E(X)), **each("router_logits", E(X, Operand((2, 4)))),
    **each("write_cache", E(X, Operand((3, 2)), call=lambda f, x, y: f(
        x, y, np.array([0, 2, 1])))),
    **each("expert_mlp", E(X, Operand((3, 2)), call=lambda f, x, w: f(
        x, w, np.array([[0, 1], [2, 1], [0, 2]]), _experts))),
    **each("dot_product_attention", E(HEADS, HEADS, HEADS, call=lambda f, q, k, v: f(
        q, k, v, is_causal=True))),
    **each("l1_loss mse_loss huber_loss smooth_l1_loss poisson_nll_loss", E(X, X)),
    **each("binary_cross_entropy", E(UNIT, UNIT)),
    **each("binary_cross_entropy_with_logits", E(X, UNIT)),
    **each("gaussian_nll_loss", E(X, X, P)), **each("kl_div", E(LOG, UNIT)),
    **each("cross_entropy nll_loss", E(X, LABELS, same=False)),
    **each("margin_ranking_loss", E(X, X, SIGNS)),
    **each("cosine_embedding_loss", E(X, X, Operand(values=lambda rng: rng.choice([-1, 1], 3)))),
    **each("triplet_margin_loss", E(X, X, X)), **each("info_nce", E(X, X)),
    **each("ctc_loss", E(Operand((6, 2, 4), "s"), call=lambda f, x: f(
        x, np.array([[1, 2], [2, 3]], np.int32), np.array([6, 5], np.int32),
        np.array([2, 1], np.int32)))),
    **each("apply_rotary", E(HEADS, call=lambda f, x: f(
        x, *nn.RotaryEmbedding(8).angles(np.arange(5))))),
    # A count of operations: of no values, so that nothing is differentiated.
    **each("summary", E(X, call=lambda f, x: jnp.float32(f(
        lambda p, v: v * p["scale"], {"scale": x}, x).flops), peer=False, grad=False)),
}  # fmt: skip


def layer(
    make: Callable[[], Any], shape: tuple[int, ...], kinds: str = "s", passes: bool = False
) -> Entry:
    """A layer on drawn input, its parameters from one key; `passes`: it hands its input on."""

    def call(kind: Any, x: Any) -> Any:
        module = make()
        params = module.init(random.key(0))
        result = (
            module(params, x, state=module.init_state())
            if hasattr(module, "init_state") and module.init_state()
            else module(params, x)
        )
        return tree.leaves(result)

    return E(
        Operand(shape, kinds, 0, 3), call=call, peer=False, grad=kinds == "s", numbers=not passes
    )


LAYERS: dict[str, list[Entry]] = {
    "Activation": [layer(lambda: nn.Activation(nn.relu), (3, 4))],
    "AdaptiveAvgPool": [layer(lambda: nn.AdaptiveAvgPool(2), (1, 5, 6, 2))],
    "AdaptiveMaxPool": [layer(lambda: nn.AdaptiveMaxPool(2), (1, 5, 6, 2))],
    "AlphaDropout": [layer(lambda: nn.AlphaDropout(0.5), (3, 4), passes=True)],
    "AvgPool": [layer(lambda: nn.AvgPool(2), (1, 6, 6, 2))],
    "BatchNorm": [layer(lambda: nn.BatchNorm(4), (3, 4))],
    "ChannelDropout": [layer(lambda: nn.ChannelDropout(0.5), (3, 4), passes=True)],
    "Conv": [layer(lambda: nn.Conv(2, 3), (1, 6, 6, 2))],
    "Conv1d": [layer(lambda: nn.Conv1d(2, 3), (1, 6, 2))],
    "Conv2d": [layer(lambda: nn.Conv2d(2, 3), (1, 6, 6, 2))],
    "Conv3d": [layer(lambda: nn.Conv3d(2, 3), (1, 3, 4, 5, 2))],
    "ConvTranspose": [layer(lambda: nn.ConvTranspose(2, 3), (1, 6, 6, 2))],
    "ConvTranspose1d": [layer(lambda: nn.ConvTranspose1d(2, 3), (1, 6, 2))],
    "ConvTranspose2d": [layer(lambda: nn.ConvTranspose2d(2, 3), (1, 6, 6, 2))],
    "ConvTranspose3d": [layer(lambda: nn.ConvTranspose3d(2, 3), (1, 3, 4, 5, 2))],
    "DropPath": [layer(lambda: nn.DropPath(0.5), (3, 4), passes=True)],
    "Dropout": [layer(lambda: nn.Dropout(0.5), (3, 4), passes=True)],
    "Embedding": [layer(lambda: nn.Embedding(5, 4), (3,), "i")],
    "FeatureAlphaDropout": [layer(lambda: nn.FeatureAlphaDropout(0.5), (3, 4), passes=True)],
    "Flatten": [layer(lambda: nn.Flatten(), (2, 3, 4))],
    "GroupNorm": [layer(lambda: nn.GroupNorm(2, 4), (3, 5, 4))],
    "InstanceNorm": [layer(lambda: nn.InstanceNorm(4), (3, 5, 4))],
    "GRU": [layer(lambda: nn.GRU(4, 3), (3, 4))],
    "GRUCell": [layer(lambda: nn.GRUCell(4, 3), (4,))],
    "LSTM": [layer(lambda: nn.LSTM(4, 3), (3, 4))],
    "LSTMCell": [layer(lambda: nn.LSTMCell(4, 3), (4,))],
    "LayerNorm": [layer(lambda: nn.LayerNorm(4), (3, 4))],
    "Linear": [layer(lambda: nn.Linear(4, 2), (3, 4))],
    "MaxPool": [layer(lambda: nn.MaxPool(2), (1, 6, 6, 2))],
    "MultiHeadAttention": [layer(lambda: nn.MultiHeadAttention(4, 2, causal=True), (2, 3, 4))],
    "PatchEmbedding": [layer(lambda: nn.PatchEmbedding(3, 2, 4), (1, 6, 6, 2))],
    "GatedMLP": [layer(lambda: nn.GatedMLP(4, 5), (3, 4))],
    "MLP": [layer(lambda: nn.MLP(4, 5), (3, 4))],
    "MoE": [layer(lambda: nn.MoE(4, 5, experts=3, top_k=2, shared_hidden=2), (3, 4))],
    "RMSNorm": [layer(lambda: nn.RMSNorm(4), (3, 4))],
    "RNN": [layer(lambda: nn.RNN(nn.GRUCell(4, 3), reverse=True), (3, 4))],
    "RNNCell": [layer(lambda: nn.RNNCell(4, 3), (4,))],
    "Residual": [layer(lambda: nn.Residual(nn.Linear(4, 4)), (3, 4))],
    "RotaryEmbedding": [layer(lambda: nn.RotaryEmbedding(4), (3, 2, 4))],
    "SelectiveSSM": [layer(lambda: nn.SelectiveSSM(4, state_size=2), (3, 4))],
    "Sequential": [layer(lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), (3, 4))],
    "SpectralNorm": [layer(lambda: nn.SpectralNorm(nn.Linear(4, 3)), (3, 4))],
    "Tied": [
        layer(
            lambda: nn.Tied(
                nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), {"1.weight": "0.weight"}
            ),
            (3, 4),
        )
    ],
    "WeightNorm": [layer(lambda: nn.WeightNorm(nn.Linear(4, 3)), (3, 4))],
    "SwiGLU": [layer(lambda: nn.SwiGLU(4, 5), (3, 4))],
}

SPECIAL: dict[str, list[Entry]] = {
    **each("erf erfc expit i0 i0e i1 i1e log_softmax softmax logsumexp", E(X)),
    # JAX's refuse 16-bit floats.
    **each("log_ndtr ndtr", E(Operand(kinds="s"))),
    **each("erfinv", E(U)), **each("logit", E(UNIT)), 
    **each("ndtri", E(Operand(kinds="s", low=0.1, high=0.9))),
    **each("digamma psi gammaln gamma factorial entr", E(P)),
    **each("beta betaln xlogy xlog1py kl_div rel_entr", E(P, P)),
    **each("gammainc gammaincc", E(P, P, grad=False)), **each("betainc", E(P, P, UNIT, grad=False)),
    **each("polygamma", E(P, call=lambda f, x: f(1, x))),
    **each("zeta", E(Operand(low=1.5, high=4.0), P, grad=False)),
}  # fmt: skip

WORDS = Operand((2,), "u", 0, 99)


def draw(*operands: Operand, call: Callable = lambda f, key, *xs: f(key, *xs), **options) -> Entry:
    """A sampler under a key made of drawn words, compared with itself."""
    options = {"peer": False, "numbers": False, "grad": False, **options}
    return E(
        Operand((), "i", 0, 99),
        *operands,
        same=False,
        call=lambda f, seed, *xs: call(f, random.key(seed), *xs),
        **options,
    )


def eager(call: Callable) -> Entry:
    """A function of the generator that scripts have: what it returns has a shape."""
    return E(call=lambda f: np.shape(call(f)), peer=False)


_shaped = lambda f, key, *xs: f(key, *xs, shape=(3, 4))
KEYED = lambda f, key: f(key, (5,))
MAKE = draw(call=lambda f, key: f()(key, (4, 6)))
RANDOM: dict[str, list[Entry]] = {
    **each("normal uniform bits cauchy exponential gumbel laplace logistic maxwell rademacher",
           draw(call=KEYED)),
    **each("lognormal", draw(call=lambda f, key: f(key, 0.5, (5,)))),
    **each("double_sided_maxwell", draw(call=lambda f, key: f(key, 1.0, 2.0, (5,)))),
    **each("bernoulli", draw(UNIT)), **each("geometric", draw(UNIT)),
    **each("gamma loggamma chisquare dirichlet poisson t pareto", draw(P)),
    **each("beta f", draw(P, P)), **each("rayleigh wald", draw(P)),
    **each("weibull_min", draw(P, P)),
    **each("generalized_normal", draw(call=lambda f, key: f(key, 2.0, (5,)))),
    **each("ball", draw(call=lambda f, key: f(key, 3, shape=(5,)))),
    **each("triangular", draw(call=lambda f, key: f(key, 0.0, 0.5, 1.0, (5,)))),
    **each("truncated_normal", draw(call=lambda f, key: f(key, -1.0, 1.0, (5,)))),
    **each("binomial", draw(UNIT, call=lambda f, key, p: f(key, 10, p))),
    **each("multinomial", draw(call=lambda f, key: f(key, 10, jnp.array([0.2, 0.3, 0.5])))),
    **each("categorical", draw(X)), **each("randint", draw(call=lambda f, key: f(key, (5,), 0, 9))),
    **each("choice", draw(V, call=lambda f, key, x: f(key, x, (3,)))),
    **each("permutation", draw(X)), **each("orthogonal", draw(call=lambda f, key: f(key, 3))),
    **each("multivariate_normal", draw(Operand((3,), "s"), DEFINITE)),
    **each("split", draw(call=lambda f, key: random.key_data(f(key, 3)))),
    **each("fold_in", draw(Operand((), "i", 0, 9), call=lambda f, key, i: random.key_data(
        f(key, i)))),
    **each("key PRNGKey", E(Operand((), "i", 0, 9), peer=False, numbers=False,
                           call=lambda f, seed: random.key_data(f(seed)))),
    **each("clone", draw(call=lambda f, key: random.key_data(f(key)))),
    **each("key_data", draw()),
    **each("wrap_key_data", E(WORDS, peer=False, numbers=False, call=lambda f, w: random.normal(
        f(w.astype("uint32"))))),
    **each("key_impl", draw(call=lambda f, key: str(f(key)), jit=False)),
    **each("key_dtype", E(call=lambda f: str(f("philox")), peer=False)),
    **each("rand randn", eager(lambda f: f(2, 3))), **each("randperm", eager(lambda f: f(5))),
    **each("manual_seed", E(call=lambda f: [random.default_generator.manual_seed(3).initial_seed(
        )], peer=False)),
    **each("initial_seed", E(call=lambda f: f() >= 0, peer=False)),
    **each("seed", E(call=lambda f: f() >= 0, peer=False)),
    **each("get_rng_state", eager(lambda f: f())),
    **each("set_rng_state", E(call=lambda f: f(random.get_rng_state()), peer=False)),
    **each("fork_rng", E(call=lambda f: f().__class__.__name__ != "", peer=False)),
}  # fmt: skip

INITIALIZERS: dict[str, list[Entry]] = {
    **each("glorot_normal glorot_uniform he_normal he_uniform kaiming_normal kaiming_uniform "
           "lecun_normal lecun_uniform normal orthogonal truncated_normal uniform xavier_normal "
           "xavier_uniform", MAKE),
    **each("constant", draw(call=lambda f, key: f(2.0)(key, (4, 6)))),
    **each("zeros ones", draw(call=lambda f, key: f(key, (4, 6)))),
    **each("delta_orthogonal", draw(call=lambda f, key: f()(key, (3, 2, 4)))),
    **each("variance_scaling", draw(call=lambda f, key: f(1.0, "fan_in", "normal")(key, (4, 6)))),
}  # fmt: skip

LOSSES: dict[str, list[Entry]] = {
    **each("l2_loss squared_error huber_loss log_cosh cosine_similarity cosine_distance",
           E(X, X)),
    **each("sigmoid_binary_cross_entropy sigmoid_focal_loss", E(X, UNIT)),
    **each("softmax_cross_entropy safe_softmax_cross_entropy poly_loss_cross_entropy",
           E(X, UNIT)),
    **each("softmax_cross_entropy_with_integer_labels", E(X, LABELS, same=False)),
    **each("hinge_loss perceptron_loss", E(X, SIGNS)),
    **each("sparsemax_loss", E(V, Operand((5,), "i", 0, 1), same=False)),
    **each("multiclass_hinge_loss multiclass_perceptron_loss multiclass_sparsemax_loss",
           E(Operand(values=lambda rng: rng.permutation(12).reshape(3, 4) / 8), LABELS,
             same=False)),
    **each("smooth_labels", E(UNIT, call=lambda f, y: f(y, 0.1))),
    **each("kl_divergence", E(LOG, UNIT)), **each("kl_divergence_with_log_targets", E(LOG, LOG)),
    **each("convex_kl_divergence generalized_kl_divergence", E(LOG, UNIT)),
    **each("ranking_softmax_loss", E(X, UNIT)),
    **each("triplet_margin_loss", E(X, X, X)),
    **each("dice_loss binary_dice_loss multiclass_generalized_dice_loss", E(X, UNIT)),
    **each("ntxent", E(X, Operand((3,), "i", values=lambda rng: np.array([0, 0, 1])), same=False)),
    **each("make_fenchel_young_loss", E(X, X, call=lambda f, x, y: f(
        lambda v: (v * v).sum() / 2)(x, y))),
    **each("ctc_loss ctc_loss_with_forward_probs", E(
        Operand((2, 6, 4), "s"), call=lambda f, x: f(
            x, np.zeros((2, 6), np.float32), np.array([[1, 2], [2, 3]], np.int32),
            np.zeros((2, 2), np.float32)))),
}  # fmt: skip


def schedule(*args: Any, **kwargs: Any) -> Entry:
    """A schedule at a drawn step."""
    return E(
        Operand((), "i", 0, 20), call=lambda f, i: f(*args, **kwargs)(i), grad=False, numbers=False
    )


SCHEDULES: dict[str, list[Entry]] = {
    "constant_schedule": [E(call=lambda f: f(0.1)(3))],
    "cosine_annealing_schedule": [E(Operand((), "i", 0, 20), call=lambda f, i: f(0.1, 10)(i),
                                    peer=False, numbers=False)],
    "cosine_decay_schedule": [schedule(0.1, 10)],
    "cosine_onecycle_schedule": [schedule(10, 0.1)],
    "exponential_decay": [schedule(0.1, 5, 0.9)],
    "exponential_schedule": [E(Operand((), "i", 0, 20), call=lambda f, i: f(0.1, 0.9)(i),
                               peer=False, numbers=False)],
    "join_schedules": [E(Operand((), "i", 0, 20), call=lambda f, i: f(
        [lambda c: c * 0.1, lambda c: c * 0.0 + 0.5], [10])(i), numbers=False)],
    "lambda_schedule": [E(Operand((), "i", 0, 20), call=lambda f, i: f(0.1, lambda c: 0.9**c)(i),
                          peer=False, numbers=False)],
    "linear_onecycle_schedule": [schedule(10, 0.1)],
    "linear_schedule": [schedule(0.1, 0.0, 10)],
    "piecewise_constant_schedule": [schedule(0.1, {5: 0.5})],
    "piecewise_interpolate_schedule": [schedule("linear", 0.1, {5: 0.5})],
    "polynomial_schedule": [schedule(0.1, 0.0, 2, 10)],
    "sgdr_schedule": [schedule([dict(init_value=0.0, peak_value=0.1, warmup_steps=2,
                                     decay_steps=8)])],
    "step_schedule": [E(Operand((), "i", 0, 20), call=lambda f, i: f(0.1, 5)(i), peer=False,
                        numbers=False)],
    "warmup_constant_schedule": [schedule(0.0, 0.1, 5)],
    "warmup_cosine_decay_schedule": [schedule(0.0, 0.1, 5, 15)],
    "warmup_exponential_decay_schedule": [schedule(0.0, 0.1, 5, 5, 0.9)],
}  # fmt: skip

TENSOR, MATRIX = Operand((4,), "s"), Operand((3, 4), "s")


def transformation(*args: Any, **kwargs: Any) -> Entry:
    """Two updates of a transformation on drawn parameters and gradients."""
    extra = kwargs.pop("extra", {})

    def call(f: Any, w: Any, b: Any, g: Any, h: Any) -> Any:
        tx = f(*args, **kwargs)
        tx = getattr(tx, "gradient_transformation", lambda: tx)()
        params, grads = {"w": w, "b": b}, {"w": g, "b": h}
        state = tx.init(params)
        for _ in range(2):
            updates, state = tx.update(grads, state, params, **extra)
            params = optim.apply_updates(params, updates)
        return [params["b"], params["w"]]

    return E(MATRIX, TENSOR, MATRIX, TENSOR, call=call, peer=False, numbers=False, grad=False)


_sgd = optim.sgd(0.1)
_objective = lambda params: tree.reduce(lambda total, x: total + (x**2).sum(), params, 0.0)
_always = lambda step: True
TRANSFORMATIONS: dict[str, list[Entry]] = {
    **each("adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad fromage "
           "lamb lars lion nadam nadamw novograd optimistic_adam optimistic_gradient_descent radam "
           "rmsprop rprop sgd sign_sgd signum sm3 yogi muon schedule_free_sgd "
           "schedule_free_adamw prodigy", transformation(0.01)),
    **each("optimistic_adam_v2", transformation(0.01)),
    **each("noisy_sgd", transformation(0.01, key=0)),
    **each("scale_by_adadelta scale_by_adam scale_by_adamax scale_by_adan scale_by_amsgrad "
           "scale_by_belief scale_by_distance_over_gradients scale_by_factored_rms scale_by_lion "
           "scale_by_novograd scale_by_optimistic_gradient scale_by_param_block_norm "
           "scale_by_param_block_rms scale_by_radam scale_by_rms scale_by_rss scale_by_sign "
           "scale_by_sm3 scale_by_stddev scale_by_trust_ratio scale_by_yogi centralize "
           "normalize_by_update_norm identity set_to_zero zero_nans apply_every "
           "add_decayed_weights keep_params_nonnegative "
           "stochastic_round warn_of_lost_steps", transformation()),
    **each("scale_by_rprop", transformation(0.01)),
    **each("sophia", transformation(0.01, extra={"obj_fn": _objective})),
    **each("scale_by_sophia", transformation(extra={"obj_fn": _objective})),
    **each("scale_by_shape", E(
        MATRIX, MATRIX, peer=False, numbers=False, grad=False,
        call=lambda f, w, g: _once(f(), w, g))),
    **each("scale_by_muon", E(MATRIX, MATRIX, peer=False, numbers=False, grad=False,
                              call=lambda f, w, g: _once(f(), w, g))),
    **each("scale_by_learning_rate scale clip clip_by_global_norm clip_by_block_rms "
           "adaptive_grad_clip ema trace", transformation(0.5)),
    **each("scale_by_schedule", transformation(lambda step: 0.1)),
    **each("polyak_sgd", transformation(extra={"value": 0.3})),
    **each("scale_by_polyak", transformation(extra={"value": 0.3})),
    **each("reduce_on_plateau", transformation(extra={"value": 0.3})),
    **each("add_noise", transformation(0.1, 0.5, key=0)),
    **each("chain", transformation(optim.clip(0.5), _sgd)),
    **each("named_chain", transformation(("clip", optim.clip(0.5)), ("sgd", _sgd))),
    **each("masked", transformation(_sgd, {"w": True, "b": False})),
    **each("freeze", transformation({"w": True, "b": False})),
    **each("selective_transform", transformation(_sgd, freeze_mask={"w": True, "b": False})),
    **each("partition multi_transform", transformation(
        {"a": _sgd, "z": optim.set_to_zero()}, {"w": "a", "b": "z"})),
    **each("apply_if_finite", transformation(_sgd, 3)),
    **each("conditionally_mask conditionally_transform maybe_update", transformation(
        _sgd, _always)),
    **each("flatten with_extra_args_support", transformation(_sgd)),
    **each("with_master with_update_dtype", transformation(_sgd)),
    **each("inject_hyperparams", E(
        MATRIX, MATRIX, peer=False, numbers=False, grad=False,
        call=lambda f, w, g: _once(f(optim.adam)(learning_rate=0.1), w, g))),
    **each("lookahead", E(MATRIX, MATRIX, peer=False, numbers=False, grad=False,
                          call=lambda f, w, g: _synced(f(_sgd, 2, 0.5), w, g))),
    **each("sam", transformation(_sgd, optim.sgd(0.05), opaque_mode=False)),
    **each("schedule_free", transformation(_sgd, 0.1)),
    **each("stateless", transformation(lambda updates, params: tree.map(
        lambda u: -0.1 * u, updates))),
    **each("stateless_with_tree_map", transformation(lambda u, p: -0.1 * u)),
    **each("measure_with_ema", E(
        MATRIX, MATRIX, peer=False, numbers=False, grad=False, call=lambda f, w, g: _once(
            optim.chain(optim.monitor({"norm": f(optim.global_norm, 0.9)}), _sgd), w, g))),
    **each("monitor", transformation({"norm": optim.global_norm})),
    **each("snapshot", transformation("norm", optim.global_norm)),
    **each("normalize", transformation()),
    **each("hutchinson_estimator_diag_hessian", E(
        MATRIX, peer=False, numbers=False, grad=False, call=lambda f, w: f(0).update(
            w, f(0).init(w), w, obj_fn=lambda p: (p**3).sum())[0])),
}  # fmt: skip


def _once(tx: Any, w: Any, g: Any) -> Any:
    return tx.update(g, tx.init(w), w)[0]


def _synced(tx: Any, w: Any, g: Any) -> Any:
    params = optim.LookaheadParams.init_synced(w)
    updates, _ = tx.update(g, tx.init(params), params)
    return tree.leaves(updates)


def wide(*operands: Operand, call: Callable) -> tuple[Entry, Entry]:
    """What is summed in float32 of 16-bit floats too, where optax keeps their dtype."""
    single = [dataclasses.replace(o, kinds="s") for o in operands]
    return E(*single, call=call, numbers=False), E(*operands, call=call, peer=False, numbers=False)


_two = lambda f, x, y: f({"w": x}, {"w": y})
_one = lambda f, x: f({"w": x})
OPTIM: dict[str, list[Entry]] = LOSSES | SCHEDULES | TRANSFORMATIONS | {
    **each("apply_updates", E(X, X, call=_two)),
    **each("incremental_update", E(X, X, call=lambda f, x, y: f({"w": x}, {"w": y}, 0.1))),
    **each("periodic_update", E(X, X, call=lambda f, x, y: f({"w": x}, {"w": y}, jnp.array(4), 2),
                               peer=False)),
    **each("global_norm", *wide(X, call=_one)), **each("abs_sq", E(Operand(kinds="fc"))),
    **each("safe_norm", *wide(X, call=lambda f, x: f(x, 0.1))),
    **each("safe_root_mean_squares", *wide(X, call=lambda f, x: f(x, 0.1))),
    **each("safe_increment safe_int32_increment", E(Operand((), "i", 0, 9), grad=False)),
    **each("bias_correction", E(X, call=lambda f, x: f({"w": x}, 0.9, 3), numbers=False)),
    **each("update_moment update_moment_per_elem_norm", *wide(X, X, call=lambda f, x, y: f(
        {"w": x}, {"w": y}, 0.9, 2))),
    **each("update_infinity_moment", *wide(X, P, call=lambda f, x, y: f(
        {"w": x}, {"w": y}, 0.9, 1e-8))),
    **each("unitwise_norm", E(X)),
    **each("unitwise_clip", E(P, P, X, peer=False)),
    **each("per_example_global_norm_clip", *wide(X, call=lambda f, x: f([x], 0.5))),
    **each("per_example_layer_norm_clip", *wide(X, call=lambda f, x: f([x], 0.5))),
    **each("skip_not_finite", E(X, call=lambda f, x: f({"w": x}, jnp.array(1), None)[0])),
    **each("skip_large_updates", E(X, call=lambda f, x: f({"w": x}, jnp.array(1), None, 9.0)[0])),
    **each("tree_map_params", E(X, call=lambda f, x: _mapped(f, x), peer=False)),
    **each("schedule_free_eval_params", E(X, call=lambda f, x: f(
        optim.schedule_free(_sgd, 0.1).init({"w": x}), {"w": x}), peer=False, numbers=False)),
    **each("orthogonalize_via_newton_schulz", E(
        Operand((3, 4), "s"), grad=False, peer=False,
        call=lambda f, x: f(x, (3.4445, -4.7750, 2.0315), 5))),
    **each("describe", E(X, jit=False, peer=False, numbers=False, call=lambda f, x: sorted(f(
        optim.adam(0.1).init({"w": x}))))),
}  # fmt: skip


def _mapped(f: Any, x: Any) -> Any:
    tx = optim.adam(0.1)
    return tree.leaves(f(tx, lambda p: p + 1, tx.init({"w": x})))


OPTIM_TREE: dict[str, list[Entry]] = {
    **each("add sub mul div", E(X, P, call=_two)),
    **each("add_scale", E(X, X, call=lambda f, x, y: f({"w": x}, 0.5, {"w": y}))),
    **each("scale", E(X, call=lambda f, x: f(0.5, {"w": x}))),
    **each("vdot", *wide(X, X, call=_two)), **each("allclose", E(X, X, call=_two)),
    **each("norm", *wide(X, call=_one)),
    **each("sum max min conj real ones_like zeros_like", E(X, call=_one)),
    **each("full_like", E(X, call=lambda f, x: f({"w": x}, 2.0))),
    **each("cast", E(X, call=lambda f, x: f({"w": x}, "float32"))),
    **each("cast_like", E(X, Operand(kinds="s"), call=_two)),
    **each("clip", E(X, call=lambda f, x: f({"w": x}, -1.0, 1.0))),
    **each("where", E(X, X, call=lambda f, x, y: f(jnp.array(True), {"w": x}, {"w": y}),
                      peer=False)),
    **each("size", E(X, call=_one, vmap=False)),
    **each("dtype", E(X, call=lambda f, x: str(f({"w": x})), jit=False, numbers=False)),
    **each("batch_shape", E(X, call=lambda f, x: f({"w": x}, (2,)))),
    **each("bias_correction", E(X, call=lambda f, x: f({"w": x}, 0.9, 3), numbers=False)),
    **each("update_moment update_moment_per_elem_norm", *wide(X, X, call=lambda f, x, y: f(
        {"w": x}, {"w": y}, 0.9, 2))),
    **each("update_infinity_moment", *wide(X, P, call=lambda f, x, y: f(
        {"w": x}, {"w": y}, 0.9, 1e-8))),
    **each("get", E(X, call=lambda f, x: f(optim.adam(0.1).init({"w": x}), "mu"), peer=False)),
    **each("set", E(X, call=lambda f, x: tree.leaves(f(
        optim.adam(0.1).init({"w": x}), count=jnp.array(3))), peer=False)),
    **each("get_all_with_path", E(X, call=lambda f, x: [v for _, v in f(
        optim.adam(0.1).init({"w": x}), "mu")], peer=False)),
    **each("map_params", E(X, call=lambda f, x: _mapped(f, x), peer=False)),
}  # fmt: skip

# Leaves are added and multiplied as they are: those of torch stay torch's.
OPTIM_TREE = {
    name: [dataclasses.replace(e, numbers=False) for e in entries]
    for name, entries in OPTIM_TREE.items()
}

IMAGE: dict[str, list[Entry]] = {
    "resize": [E(Operand((4, 6), "s"), call=lambda f, x: f(x, (3, 9), "linear"))],
    "scale_and_translate": [
        E(Operand((4, 6), "s"), call=lambda f, x: f(
            x, (5, 6), (0,), np.float32([1.2]), np.float32([0.3]), "linear"))
    ],
}  # fmt: skip

OPS: dict[str, list[Entry]] = each(
    "segment_max segment_min segment_prod segment_sum",
    E(SORTED, Operand((6,), "i", 0, 2), same=False, call=lambda f, x, i: f(x, i, 3)),
)
