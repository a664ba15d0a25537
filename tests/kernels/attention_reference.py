"""Attention by its formula in float64, with torch's automatic differentiation, for any spec."""

from __future__ import annotations

import numpy as np
import torch

from genesis_fn.kernels.attention_spec import AttentionSpec, option_inputs

TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def random_inputs(
    spec: AttentionSpec, seed: int = 0, device: str = "cpu"
) -> dict[str, torch.Tensor]:
    """Inputs of the forward plan by name, in order: q, k, v and the options."""
    g = torch.Generator().manual_seed(seed)
    b, t, s = spec.batch, spec.q_len, spec.kv_len

    def normal(*shape: int, dtype: str = spec.dtype) -> torch.Tensor:
        return torch.randn(*shape, generator=g).to(TORCH[dtype])

    found = {
        "q": normal(b, t, spec.q_heads, spec.head_dim),
        "k": normal(b, s, spec.kv_heads, spec.head_dim),
        "v": normal(b, s, spec.kv_heads, spec.v_dim),
    }
    for name in option_inputs(spec):
        if name == "bias":
            found[name] = normal(*spec.bias, dtype=spec.bias_dtype)
        elif name == "mask":
            found[name] = torch.rand(*spec.mask, generator=g) < 0.6
        elif name in ("q_segments", "kv_segments"):
            length = t if name == "q_segments" else s
            steps = torch.rand(b, length, generator=g) < 3.0 / length
            found[name] = steps.cumsum(1).to(torch.int32)
        elif name == "q_lengths":
            found[name] = torch.randint(0, t + 1, (b,), generator=g, dtype=torch.int32)
        elif name == "kv_lengths":
            found[name] = torch.randint(0, s + 1, (b,), generator=g, dtype=torch.int32)
        else:
            key = torch.randint(0, 2**31, (2,), generator=g, dtype=torch.int64)
            found[name] = key.to(torch.uint32)
    return {name: x.to(device) for name, x in found.items()}


def philox_4x32_10(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """The four words [..., 4] of Philox-4x32-10 for 64-bit counters (the high half zero)."""
    mask = np.uint64(0xFFFFFFFF)
    c = [counter & mask, counter >> np.uint64(32), np.zeros_like(counter), np.zeros_like(counter)]
    k0, k1 = (np.uint64(x) for x in key)
    for _ in range(10):
        p0 = c[0] * np.uint64(0xD2511F53)
        p1 = c[2] * np.uint64(0xCD9E8D57)
        c = [
            (p1 >> np.uint64(32)) ^ c[1] ^ k0,
            p1 & mask,
            (p0 >> np.uint64(32)) ^ c[3] ^ k1,
            p0 & mask,
        ]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    return np.stack(c, -1)


def dropout_multiplier(spec: AttentionSpec, key: torch.Tensor) -> torch.Tensor:
    """[B, N, T, S]: 1 / (1 - rate) where kept, else 0."""
    shape = (spec.batch, spec.q_heads, spec.q_len, spec.kv_len)
    index = np.arange(np.prod(shape), dtype=np.uint64)
    k0, k1 = (int(x) for x in key.cpu().numpy())
    words = philox_4x32_10(index >> np.uint64(2), (k0, k1))
    bits = np.take_along_axis(words, (index & np.uint64(3)).astype(np.int64)[:, None], -1)[:, 0]
    threshold = spec.dropout_threshold
    kept = np.where(bits >= threshold, 2.0**32 / (2.0**32 - threshold), 0.0)
    return torch.from_numpy(kept.reshape(shape)).to(key.device)


def visibility(spec: AttentionSpec, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """[B, N, T, S]: which logits take part."""
    device = inputs["q"].device
    b, t, s = spec.batch, spec.q_len, spec.kv_len
    i = torch.arange(t, device=device)[None, None, :, None]
    j = torch.arange(s, device=device)[None, None, None, :]
    seen = torch.ones(b, spec.q_heads, t, s, dtype=torch.bool, device=device)
    ends = torch.full((b, 1, 1, 1), s, device=device)
    if "kv_lengths" in inputs:
        ends = inputs["kv_lengths"].long().view(b, 1, 1, 1)
        seen = seen & (j < ends)
    if "q_lengths" in inputs:
        seen = seen & (i < inputs["q_lengths"].long().view(b, 1, 1, 1))
    place = i + (ends - t if spec.align == "end" else 0)
    if spec.left >= 0:
        seen = seen & (j >= place - spec.left)
    if spec.right >= 0:
        seen = seen & (j <= place + spec.right)
    if "mask" in inputs:
        seen = seen & inputs["mask"]
    if "q_segments" in inputs:
        of_q, of_k = inputs["q_segments"], inputs["kv_segments"]
        seen = seen & (of_q[:, None, :, None] == of_k[:, None, None, :])
    return seen


def attention_reference(
    spec: AttentionSpec, inputs: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [B, T, N, V], lse [B, N, T]) in the inputs' precision, which should be float64."""
    q, k, v = (inputs[name] for name in ("q", "k", "v"))
    k, v = (x.repeat_interleave(spec.group, 2) for x in (k, v))
    x = torch.einsum("btnh,bsnh->bnts", q, k) * spec.softmax_scale
    if spec.softcap:
        x = spec.softcap * torch.tanh(x / spec.softcap)
    if "bias" in inputs:
        x = x + inputs["bias"]
    x = torch.where(visibility(spec, inputs), x, -0.7 * torch.finfo(torch.float32).max)
    probs = torch.softmax(x, -1)
    if "dropout_key" in inputs:
        probs = probs * dropout_multiplier(spec, inputs["dropout_key"])
    out = torch.einsum("bnts,bsnh->btnh", probs, v)
    if "q_lengths" in inputs:
        i = torch.arange(spec.q_len, device=q.device)
        out = out * (i[None, :] < inputs["q_lengths"].long()[:, None])[:, :, None, None]
    return out, torch.logsumexp(x, -1)


def reference_gradients(
    spec: AttentionSpec, inputs: dict[str, torch.Tensor], dout: torch.Tensor
) -> dict[str, torch.Tensor]:
    """out, lse and the gradients dq, dk, dv[, dbias], all in float64."""
    wide = {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}
    leaves = [n for n in ("q", "k", "v", "bias") if n in wide]
    for name in leaves:
        wide[name].requires_grad_(True)
    out, lse = attention_reference(spec, wide)
    value = (out * dout.double()).sum()
    grads = torch.autograd.grad(value, [wide[n] for n in leaves])
    found = {"out": out.detach(), "lse": lse.detach()}
    return found | {f"d{n}": g for n, g in zip(leaves, grads, strict=True)}
