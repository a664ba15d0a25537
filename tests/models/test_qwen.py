"""Qwen against transformers and against the same model trained in PyTorch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import scipy.stats as stats
import torch

import genesis_fn.numpy as jnp
from genesis_fn import io, models, optim, random
from genesis_fn.core import tree
from genesis_fn.models import generate, qwen, sample
from genesis_fn.models.generation.sampling import nucleus
from genesis_fn.transforms.autodiff.derivatives import grad, value_and_grad
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.precision.autocast import amp

# Each case traces the decoding loop anew, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::genesis_fn.errors.RecompilationWarning")

SIZES = dict(
    vocab_size=61, hidden_size=32, intermediate_size=56, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, rope_theta=1e4,
)  # fmt: skip
KINDS = {
    "qwen3": dict(head_dim=16, tie_word_embeddings=True),
    "qwen3-untied-mha": dict(head_dim=8, tie_word_embeddings=False, num_key_value_heads=4),
    "qwen2": dict(tie_word_embeddings=False),
    "qwen2-tied": dict(tie_word_embeddings=True, num_key_value_heads=1),
}


def reference(kind, seed=0):
    """A random transformers model with weights large enough to tell tokens apart."""
    import transformers

    version = "Qwen3" if kind.startswith("qwen3") else "Qwen2"
    config = getattr(transformers, f"{version}Config")(**{**SIZES, **KINDS[kind]})
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = getattr(transformers, f"{version}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            scale = 0.3 if "norm" not in name else 0.1
            p.add_(torch.randn_like(p) * scale)
    return model


@pytest.fixture(params=KINDS, scope="module")
def pair(request, tmp_path_factory):
    """(transformers' model, our parameters, our config) of one folder."""
    model = reference(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    params, config = io.load_qwen(folder)
    return model, params, config


TOKENS = np.random.default_rng(0).integers(0, 61, (2, 12)).astype(np.int32)


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.from_numpy(np.asarray(tokens, np.int64))).logits.numpy()


def test_logits(pair):
    model, params, config = pair
    expected = logits_of(model, TOKENS)
    ours = np.asarray(qwen.forward(params, jnp.asarray(TOKENS), config))
    assert np.abs(ours - expected).max() <= 1e-4 * max(1, np.abs(expected).max())
    one = np.asarray(jit(qwen.forward, static_argnames="config")(params, TOKENS[0], config=config))
    assert np.abs(one - expected[0]).max() <= 1e-4 * max(1, np.abs(expected).max())
    assert sum(x.size for x in tree.leaves(params)) == config.size


def test_greedy_generation(pair):
    model, params, config = pair
    expected = model.generate(
        torch.from_numpy(TOKENS.astype(np.int64)),
        max_new_tokens=16,
        do_sample=False,
        attention_mask=torch.ones(TOKENS.shape, dtype=torch.long),
        pad_token_id=0,
        eos_token_id=None,
    ).numpy()
    out, lengths = generate(params, jnp.asarray(TOKENS), config, max_new_tokens=16)
    np.testing.assert_array_equal(out, expected)
    assert np.asarray(lengths).tolist() == [28, 28]


def test_cache_is_the_same_as_no_cache(pair):
    _, params, config = pair
    tokens = jnp.asarray(TOKENS)
    whole = np.asarray(qwen.forward(params, tokens, config))
    cache = qwen.init_cache(config, 2, 20)
    logits, cache = qwen.prefill(params, tokens[:, :5], cache, config)
    steps = [logits]
    for i in range(5, 8):
        logits, cache = qwen.decode_step(params, tokens[:, i], cache, config)
        steps.append(logits[:, None])
    logits, cache = qwen.extend(params, tokens[:, 8:], cache, config)  # several at once, later
    steps.append(logits)
    scale = np.abs(whole).max()
    assert np.abs(np.concatenate(steps, 1) - whole).max() < 2e-5 * scale
    assert np.asarray(cache["lengths"]).tolist() == [12, 12]


def test_ragged_prompts(pair):
    _, params, config = pair
    lengths = [12, 7]
    out, ends = generate(
        params, jnp.asarray(TOKENS), config, max_new_tokens=8, lengths=jnp.asarray(lengths)
    )
    assert np.asarray(ends).tolist() == [20, 15]
    for row, n in enumerate(lengths):
        alone, _ = generate(
            params, jnp.asarray(TOKENS[row : row + 1, :n]), config, max_new_tokens=8
        )
        np.testing.assert_array_equal(np.asarray(out)[row, : n + 8], np.asarray(alone)[0])
        assert not np.asarray(out)[row, n + 8 :].any()


def test_end_of_text(pair):
    _, params, config = pair
    free, _ = generate(params, jnp.asarray(TOKENS), config, max_new_tokens=10)
    eos = int(np.asarray(free)[0, 15])
    out, ends = generate(params, jnp.asarray(TOKENS), config, max_new_tokens=10, eos=eos)
    for row, end in zip(range(2), np.asarray(ends)):
        new = np.asarray(free)[row, 12:].tolist()
        expected = 12 + (new.index(eos) + 1 if eos in new else 10)
        assert end == expected
        np.testing.assert_array_equal(np.asarray(out)[row, :end], np.asarray(free)[row, :end])
        assert not np.asarray(out)[row, end:].any()


def test_folders_both_ways(pair, tmp_path):
    import transformers

    model, params, config = pair
    io.save_qwen(tmp_path, params, config)
    # The same code in float64: where a float32 sum is rounded differs between processors.
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager"
    )
    loaded, wide = loaded.double().eval(), copy.deepcopy(model).double()
    np.testing.assert_allclose(logits_of(loaded, TOKENS), logits_of(wide, TOKENS), atol=1e-6)
    again, same = io.load_qwen(tmp_path)
    assert same == config
    for a, b in zip(tree.leaves(again), tree.leaves(params)):
        np.testing.assert_array_equal(a, b)
    half, _ = io.load_qwen(tmp_path, dtype="bfloat16")
    assert {str(x.dtype) for x in tree.leaves(half)} == {"bfloat16"}


def test_bad_folders(tmp_path):
    config = qwen.QwenConfig(**SIZES, head_dim=8)
    params = qwen.init(random.key(0), config)
    io.save_qwen(tmp_path, params, config)
    arrays = io.load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    io.save_file({n: x for n, x in arrays.items() if n != name}, tmp_path / "model.safetensors")
    with pytest.raises(io.FileError, match=f"missing {name}"):
        io.load_qwen(tmp_path)
    io.save_file({**arrays, name: arrays[name][:3]}, tmp_path / "model.safetensors")
    with pytest.raises(io.FileError, match="up_proj.weight has shape"):
        io.load_qwen(tmp_path)
    with pytest.raises(ValueError, match="model_type is 'gpt2'"):
        qwen.QwenConfig.from_dict({"model_type": "gpt2"})
    with pytest.raises(ValueError, match="multiple"):
        qwen.QwenConfig(num_attention_heads=3, num_key_value_heads=2)


# ---- sampling ----


def test_sampling_distribution():
    p = np.float32([0.4, 0.3, 0.15, 0.1, 0.05])
    logits = jnp.broadcast_to(jnp.log(jnp.asarray(p)), (20_000, 5))

    def check(expected, **options):
        drawn = np.asarray(sample(random.key(3), logits, **options))
        counts = np.bincount(drawn, minlength=5)
        expected = np.float64(expected)
        assert not counts[expected == 0].any()
        kept = expected > 0
        share = expected[kept] / expected.sum()
        assert len(share) == 1 or stats.chisquare(counts[kept], share * 20_000).pvalue > 1e-3

    check(p)
    check(p**2, temperature=0.5)
    check([0.4, 0.3, 0, 0, 0], top_k=2)
    check([1, 0, 0, 0, 0], top_k=1)
    check([0.4, 0.3, 0.15, 0, 0], top_p=0.75)
    check([1, 0, 0, 0, 0], top_p=0.2)
    check([0.4, 0.3, 0, 0, 0], top_k=3, top_p=0.6)
    check(p, top_k=99, top_p=1.0)
    greedy = sample(random.key(0), logits[:3], temperature=0.0)
    assert np.asarray(greedy).tolist() == [0, 0, 0] and greedy.dtype == jnp.int32
    for bad in (dict(temperature=-1.0), dict(top_k=0), dict(top_p=0.0), dict(top_p=1.5)):
        with pytest.raises(ValueError, match="sample"):
            sample(random.key(0), logits, **bad)


@pytest.mark.parametrize("scale", [0.5, 3.0, 20.0])
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.999])
def test_nucleus_without_sorting(scale, top_p):
    x = (np.random.default_rng(0).standard_normal((3, 500)) * scale).astype(np.float32)
    x[0, 5], x[1, :4], x[2, 7] = -np.inf, x[1].max(), -0.0
    p = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    # Of equal logits the first are taken.
    order = np.argsort(-x, -1, kind="stable")
    sums = np.cumsum(np.take_along_axis(p, order, -1), -1)
    more_likely = np.empty_like(p)
    np.put_along_axis(more_likely, order, sums - np.take_along_axis(p, order, -1), -1)
    got = np.asarray(nucleus(jnp.asarray(x), top_p))
    other = got != (more_likely < top_p)
    assert np.all(np.abs(more_likely[other] - top_p) < 1e-5) and other.sum() <= 1


def test_sampled_generation_depends_on_the_key_only():
    config = qwen.QwenConfig(**SIZES, head_dim=8)
    params = qwen.init(random.key(0), config)
    draw = lambda seed: np.asarray(
        generate(
            params,
            jnp.asarray(TOKENS),
            config,
            max_new_tokens=12,
            key=random.key(seed),
            temperature=1.0,
            top_k=20,
            top_p=0.9,
        )[0]
    )
    np.testing.assert_array_equal(draw(1), draw(1))
    assert not np.array_equal(draw(1), draw(2))


# ---- training ----


def torch_losses(kind, tokens, steps):
    """Losses of AdamW on transformers' model, its gradients clipped to norm 1."""
    model = reference(kind).train()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.mul_(0.3) if "norm" not in name else p.fill_(1.0)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, (0.9, 0.95), 1e-8, weight_decay=0.1)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    losses = []
    for i in range(steps):
        batch = torch.from_numpy(tokens[i].astype(np.int64))
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1)
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return start, np.array(losses)


def our_losses(params, config, tokens, steps, remat=False, dtype=None):
    optimizer = optim.chain(
        optim.clip_by_global_norm(1.0), optim.adamw(2e-3, 0.9, 0.95, 1e-8, weight_decay=0.1)
    )

    def step(params, state, batch):
        def loss(p, batch):
            return qwen.loss(p, batch[:, :-1], batch[:, 1:], config, remat=remat)

        f = loss if dtype is None else amp(loss, dtype)
        value, grads = value_and_grad(f)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optim.apply_updates(params, updates), state, value

    step = jit(step)
    state, losses = optimizer.init(params), []
    for i in range(steps):
        params, state, value = step(params, state, jnp.asarray(tokens[i]))
        losses.append(float(value))
    return np.array(losses), params


def learnable(steps):
    """Batches of a language: each token is, mostly, a function of the two before it."""
    rng = np.random.default_rng(1)
    table = rng.integers(0, 61, (61, 3))
    tokens = rng.integers(0, 61, (steps, 4, 17)).astype(np.int32)
    for t in range(2, 17):
        follow = table[tokens[..., t - 1], tokens[..., t - 2] % 3]
        tokens[..., t] = np.where(rng.random(follow.shape) < 0.9, follow, tokens[..., t])
    return tokens


@pytest.mark.parametrize("kind", ["qwen3", "qwen2"])
def test_two_hundred_steps_as_in_pytorch(kind):
    steps = 200 if kind == "qwen3" else 60
    tokens = learnable(steps)
    start, expected = torch_losses(kind, tokens, steps)
    config = qwen.QwenConfig.from_dict(reference(kind).config.to_dict())
    shapes = qwen.init(random.key(0), config)
    names = io.safetensors.flat_names(shapes)
    leaves = [jnp.asarray(start[io.huggingface.hf_name(n)].numpy()) for n in names]
    params = tree.unflatten(tree.structure(shapes), leaves)
    losses, final = our_losses(params, config, tokens, steps)
    assert losses[-10:].mean() < losses[:10].mean() - 0.3
    assert np.abs(losses - expected).max() < 1e-3, np.abs(losses - expected).max()
    if kind == "qwen2":
        again, same = our_losses(params, config, tokens, steps)
        np.testing.assert_array_equal(again, losses)
        for a, b in zip(tree.leaves(final), tree.leaves(same)):
            np.testing.assert_array_equal(a, b)


def test_remat_and_amp():
    config = qwen.QwenConfig(**SIZES, head_dim=8)
    params = qwen.init(random.key(0), config)
    tokens = learnable(30)
    plain, _ = our_losses(params, config, tokens, 30)
    remat, _ = our_losses(params, config, tokens, 30, remat=True)
    np.testing.assert_allclose(remat, plain, atol=1e-4)
    half, final = our_losses(params, config, tokens, 30, dtype="bfloat16")
    np.testing.assert_allclose(half, plain, atol=0.05)
    assert {str(x.dtype) for x in tree.leaves(final)} == {"float32"}


def test_loss_is_that_of_the_logits():
    config = qwen.QwenConfig(**SIZES, head_dim=8)
    params = models.Qwen(config).init(random.key(2))
    labels = np.where(np.arange(12) < 3, -100, TOKENS)
    ours = qwen.loss(params, jnp.asarray(TOKENS), jnp.asarray(labels), config, ignore_index=-100)
    logits = torch.from_numpy(np.array(models.Qwen(config)(params, jnp.asarray(TOKENS))))
    expected = torch.nn.functional.cross_entropy(
        logits.reshape(-1, 61), torch.from_numpy(labels.astype(np.int64)).reshape(-1)
    )
    assert abs(float(ours) - expected.item()) < 1e-5
    g = grad(lambda p: qwen.loss(p, jnp.asarray(TOKENS), jnp.asarray(TOKENS), config))(params)
    assert tree.structure(g) == tree.structure(params)
