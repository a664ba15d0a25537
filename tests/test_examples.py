"""Every example runs, in small, and reaches what it should; what is computed in one is right."""

from __future__ import annotations

import functools
import importlib.util
import math
import pathlib
import sys

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch

import genesis_fn as gf

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
CASES = {
    "mlp_digits": ({"steps": 120}, lambda accuracy: accuracy > 0.9),
    "cnn_digits": ({"steps": 40}, lambda accuracy: accuracy > 0.85),
    "rnn_scan": ({"steps": 60, "length": 6}, lambda error: error < 0.1),
    "vit_digits": ({"steps": 200, "batch": 32}, lambda accuracy: accuracy > 0.85),
    "custom_primitive": ({}, lambda error: error < 1e-4),
    "higher_order": ({}, lambda error: error < 2e-3),
    # The nats per byte that are gained over single bytes.
    "gpt": ({"steps": 80, "batch": 4, "length": 64}, lambda gain: gain > 0.2),
    # Chance is a tenth.
    "diffusion_digits": ({"steps": 400, "batch": 64}, lambda share: share > 0.4),
    # Mean returns, before and after.
    "ppo_cartpole": ({"steps": 15}, lambda returns: returns[0] < 40 and returns[1] > 80),
    # A network that learned nothing errs by 0.5.
    "neural_ode": ({"steps": 200, "batch": 16}, lambda error: error < 0.2),
    # Nats per image that are gained over independent pixels, of 255.
    "vae_digits": ({"steps": 200}, lambda gain: gain > 60),
    # Without adapters the error is 1.
    "lora_by_hand": ({"steps": 300}, lambda error: error < 0.02),
    # The share of capitals that the model knows.
    "finetune_chat": ({}, lambda share: share > 0.9),
    # Losses, the last that of a run that was stopped and one that was not.
    "training_loop": ({}, lambda losses: losses[1] < losses[0] / 2 and losses[1] == losses[2]),
}


@functools.cache
def load(name: str):
    """The module of an example; examples import each other by name, as from their own folder."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(EXAMPLES))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(EXAMPLES))
    return module


@pytest.mark.parametrize("name", CASES)
def test_example(name):
    arguments, reached = CASES[name]
    result = load(name).main(**arguments)
    assert reached(result), result


def test_no_example_is_left_out():
    assert {p.stem for p in EXAMPLES.glob("*.py")} == set(CASES)


@pytest.mark.parametrize("name", ["diffusion_digits", "neural_ode", "vae_digits"])
def test_pictures_are_written(name, tmp_path):
    from matplotlib.image import imread

    load(name).main(steps=1, plot=str(tmp_path / "picture.png"))
    picture = imread(tmp_path / "picture.png")
    assert picture.shape[0] > 200 and picture.std() > 0.05


# ---- a GPT ----


def gpt_parts():
    gpt = load("gpt")
    tokens = np.random.default_rng(0).integers(0, gpt.BYTES, (2, 12)).astype(np.int32)
    return gpt, gpt.init(gf.random.key(0)), tokens


def test_gpt_sees_nothing_that_comes_later():
    gpt, params, tokens = gpt_parts()
    changed = tokens.copy()
    changed[:, 7] = (changed[:, 7] + 1) % gpt.BYTES
    before, after = [gpt.forward(params, t, gpt.empty_cache(2, 12))[0] for t in (tokens, changed)]
    np.testing.assert_allclose(before[:, :7], after[:, :7], rtol=1e-4, atol=1e-4)
    assert float(abs(before[:, 7:] - after[:, 7:]).max(-1).min()) > 1e-2


def test_gpt_goes_on_from_its_cache():
    gpt, params, tokens = gpt_parts()
    whole, _ = gpt.forward(params, tokens, gpt.empty_cache(2, 12))
    cache, pieces = gpt.empty_cache(2, 20), []
    for start, end in ((0, 5), (5, 11), (11, 12)):
        logits, cache = gpt.forward(params, tokens[:, start:end], cache, start)
        pieces.append(np.asarray(logits))
    np.testing.assert_allclose(np.concatenate(pieces, 1), whole, rtol=1e-3, atol=1e-3)


# ---- a diffusion model ----


def test_diffusing_is_all_steps_at_once():
    """Means and variances, against step after step as the forward process is defined."""
    diffusion = load("diffusion_digits")
    factor, variance = np.ones(1), np.zeros(1)
    at = np.array([0, 1, 50, diffusion.STEPS - 1])
    wanted = []
    for beta in diffusion.BETA.astype(np.float64):
        factor, variance = math.sqrt(1 - beta) * factor, (1 - beta) * variance + beta
        wanted.append((factor[0], math.sqrt(variance[0])))
    x, noise = np.eye(2, dtype=np.float32)
    mixed = diffusion.diffuse(x[None], noise[None], at)
    np.testing.assert_allclose(mixed, np.array(wanted)[at], rtol=1e-4)
    assert wanted[-1][0] < 0.01  # nothing is left of the image


def test_sampling_with_the_true_noise():
    """Of normal data, whose noise is known. Each step must give the mean of the image one step
    earlier, by the rule for jointly normal variables, and the variance for a known image."""
    diffusion = load("diffusion_digits")
    mean, variance = 0.5, 0.3**2

    def noise_of(x, step):
        left = gf.numpy.asarray(diffusion.ALPHA_BAR)[step]
        spread = left * variance + 1 - left
        return gf.numpy.sqrt(1 - left) * (x - gf.numpy.sqrt(left) * mean) / spread

    beta = diffusion.BETA.astype(np.float64)
    alpha_bar = np.concatenate([[1.0], np.cumprod(1 - beta)])
    m, v = 0.0, 1.0
    for b, now, before in zip(beta[::-1], alpha_bar[:0:-1], alpha_bar[-2::-1]):
        earlier, spread = math.sqrt(before) * mean, before * variance + 1 - before
        gain = math.sqrt(1 - b) * spread / ((1 - b) * spread + b)
        m = earlier + gain * (m - math.sqrt(1 - b) * earlier)
        v = gain**2 * v + b * (1 - before) / (1 - now)
    assert abs(m - mean) < 0.01 and abs(math.sqrt(v / variance) - 1) < 0.1

    drawn = np.asarray(diffusion.sample(noise_of, gf.random.key(0), (100_000,)))
    assert abs(drawn.mean() - m) < 0.005
    assert abs(drawn.std() / math.sqrt(v) - 1) < 0.015


# ---- proximal policy optimization ----


def test_advantages_are_sums_of_discounted_errors():
    ppo = load("ppo_cartpole")
    rng, length = np.random.default_rng(0), 40
    rewards, values, next_values = rng.normal(size=(3, length)).astype(np.float32)
    terminated = rng.random(length) < 0.1
    done = terminated | (rng.random(length) < 0.1)
    assert 0 < terminated.sum() < done.sum()
    wanted = np.zeros(length)
    for t in range(length):
        factor = 1.0
        for i in range(t, length):
            following = 0.0 if terminated[i] else ppo.DISCOUNT * next_values[i]
            wanted[t] += factor * (rewards[i] + following - values[i])
            factor *= ppo.DISCOUNT * ppo.LAMBDA
            if done[i]:
                break
    found = ppo.advantages(rewards, values, next_values, terminated, done)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_the_cart_moves_as_gymnasium_publishes():
    """Its equations: polemass_length = masspole * length, force and Euler steps of tau = 0.02."""
    ppo = load("ppo_cartpole")
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (50, 4)) * [2.4, 3.0, 0.2, 3.0]
    actions = rng.integers(0, 2, 50)
    x, x_dot, theta, theta_dot = states.T
    force = np.where(actions == 1, 10.0, -10.0)
    temp = (force + 0.05 * theta_dot**2 * np.sin(theta)) / 1.1
    theta_acc = (9.8 * np.sin(theta) - np.cos(theta) * temp) / (
        0.5 * (4.0 / 3.0 - 0.1 * np.cos(theta) ** 2 / 1.1)
    )
    x_acc = temp - 0.05 * theta_acc * np.cos(theta) / 1.1
    slopes = np.stack([x_dot, x_acc, theta_dot, theta_acc], 1)
    found = gf.vmap(ppo.dynamics)(states.astype(np.float32), actions)
    np.testing.assert_allclose(found, states + 0.02 * slopes, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "steps", "terminated", "done"),
    [
        ([0.0, 0.0, 0.0, 0.0], 7, False, False),
        ([2.39, 1.0, 0.0, 0.0], 7, True, True),
        ([-2.39, -1.0, 0.0, 0.0], 7, True, True),
        ([0.0, 0.0, 0.2090, 1.0], 7, True, True),
        ([0.0, 0.0, -0.2090, -1.0], 7, True, True),
        ([0.0, 0.0, 0.0, 0.0], 498, False, False),
        ([0.0, 0.0, 0.0, 0.0], 499, False, True),
    ],
)
def test_an_episode_ends_and_another_begins(x, steps, terminated, done):
    ppo = load("ppo_cartpole")
    params = {"policy": ppo.POLICY.init(gf.random.key(0))}
    state = {"x": gf.numpy.array(x), "steps": gf.numpy.int32(steps)}
    state, transition = ppo.step(params, state, gf.random.key(1))
    assert (bool(transition["terminated"]), bool(transition["done"])) == (terminated, done)
    np.testing.assert_allclose(transition["x"], x)
    assert int(transition["steps"]) == steps + 1
    assert int(state["steps"]) == (0 if done else steps + 1)
    if done:
        assert float(abs(state["x"]).max()) <= 0.05
    else:
        np.testing.assert_allclose(state["x"], transition["next_x"])


# ---- a neural differential equation ----


def driven(params, t, y):
    """A pendulum whose friction grows with time."""
    return gf.numpy.stack([y[1], -params["pull"] * gf.numpy.sin(y[0]) - params["drag"] * t * y[1]])


def by_scipy(params, start, times):
    slope = lambda t, y: [y[1], -params["pull"] * np.sin(y[0]) - params["drag"] * t * y[1]]
    solution = scipy.integrate.solve_ivp(
        slope, (times[0], times[-1]), start, "DOP853", times, rtol=1e-11, atol=1e-11
    )
    return solution.y.T


PARAMS, START, TIMES = {"pull": 4.0, "drag": 0.3}, np.array([2.0, 0.5]), np.array([0.0, 1.0, 4.0])


def double(values):
    """The same values as float64 arrays."""
    return gf.tree.map(lambda x: gf.numpy.asarray(x, "float64"), values)


def solved(solver, *options):
    """The path of `driven`, computed in float64."""
    return np.asarray(solver(driven, double(TIMES), *options)(double(PARAMS), double(START)))


def test_the_solver_finds_what_scipy_finds():
    ode, wanted = load("neural_ode"), by_scipy(PARAMS, START, TIMES)
    for tolerance in (1e-4, 1e-6, 1e-8):
        found = solved(ode.adaptive, tolerance)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=50 * tolerance)


def test_the_method_has_order_five():
    """And the error that a step estimates is that of order four: it goes with h to the fifth."""
    ode, wanted = load("neural_ode"), by_scipy(PARAMS, START, TIMES)
    coarse, fine = [abs(solved(ode.fixed, count) - wanted).max() for count in (40, 80)]
    assert 4.5 < math.log2(coarse / fine) < 6
    slope = functools.partial(driven, double(PARAMS))
    coarse, fine = [
        np.linalg.norm(ode.step(slope, double(1.0), double(START), h)[1]) for h in (0.02, 0.01)
    ]
    assert 4.8 < math.log2(coarse / fine) < 5.2


def test_the_adjoint_is_the_derivative():
    """Of a sum over all times, against differences of SciPy's paths; so is that through steps."""
    ode = load("neural_ode")
    weights = np.random.default_rng(0).normal(size=(3, 2))

    def total(solve, params, start):
        return gf.numpy.sum(double(weights) * solve(params, start))

    def gradient(solve):
        of = gf.grad(functools.partial(total, solve), (0, 1))
        return of(double(PARAMS), double(START))

    adjoint = gradient(ode.adaptive(driven, double(TIMES), 1e-8))
    through = gradient(ode.fixed(driven, double(TIMES), 100))

    def difference(name, i, h=1e-4):
        ends = []
        for sign in (1, -1):
            moved, y = dict(PARAMS), START.copy()
            if name is None:
                y[i] += sign * h
            else:
                moved[name] += sign * h
            ends.append((weights * by_scipy(moved, y, TIMES)).sum())
        return (ends[0] - ends[1]) / (2 * h)

    wanted = [difference("pull", None), difference("drag", None)]
    wanted += [difference(None, 0), difference(None, 1)]
    for p, y in (adjoint, through):
        found = [float(p["pull"]), float(p["drag"]), *np.asarray(y).tolist()]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


# ---- a variational autoencoder ----


def vae_parts():
    vae = load("vae_digits")
    rng = np.random.default_rng(0)
    images = rng.integers(0, vae.LEVELS + 1, (3, 8, 8, 1)).astype(np.float32)
    keys = gf.random.split(gf.random.key(0))
    params = {"encoder": vae.ENCODER.init(keys[0]), "decoder": vae.DECODER.init(keys[1])}
    return vae, params, images


def normals(vae, params, images):
    """torch's distributions of the codes, and their prior."""
    mean, log_variance = [
        torch.tensor(np.asarray(a, np.float64)) for a in vae.encode(params, images)
    ]
    posterior = torch.distributions.Normal(mean, torch.exp(log_variance / 2))
    return posterior, torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))


def binomial(vae, params, codes, images):
    """SciPy's log likelihood of images."""
    logits = np.asarray(vae.DECODER(params["decoder"], codes), np.float64)
    p = scipy.special.expit(logits)
    return scipy.stats.binom.logpmf(images, vae.LEVELS, p).sum((1, 2, 3))


def test_the_elbo_is_that_of_torch_and_scipy():
    vae, params, images = vae_parts()
    posterior, prior = normals(vae, params, images)
    divergence = torch.distributions.kl_divergence(posterior, prior).sum(-1).numpy()
    np.testing.assert_allclose(vae.kl(*vae.encode(params, images)), divergence, rtol=1e-4)
    key = gf.random.key(1)
    codes = np.asarray(posterior.mean) + np.asarray(posterior.stddev) * np.asarray(
        gf.random.normal(key.copy(), (3, vae.LATENT))
    )
    wanted = binomial(vae, params, codes.astype(np.float32), images) - divergence
    np.testing.assert_allclose(vae.elbo(params, key, images), wanted, rtol=1e-4)


def test_the_importance_bound_is_the_mean_of_ratios_of_densities():
    vae, params, images = vae_parts()
    posterior, prior = normals(vae, params, images)
    key, draws = gf.random.key(1), 5
    weights = []
    for k in gf.random.split(key.copy(), draws):
        noise = np.asarray(gf.random.normal(k, (3, vae.LATENT)), np.float64)
        codes = posterior.mean + posterior.stddev * torch.tensor(noise)
        ratio = (prior.log_prob(codes) - posterior.log_prob(codes)).sum(-1).numpy()
        weights.append(binomial(vae, params, codes.numpy().astype(np.float32), images) + ratio)
    wanted = scipy.special.logsumexp(weights, 0) - math.log(draws)
    found = vae.importance_bound(params, key, images, draws)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
