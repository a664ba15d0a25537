"""Attention by its formula in float64, with torch's automatic differentiation, for any spec."""

from __future__ import annotations

import torch

from genesis_fn.kernels.attention.spec import AttentionSpec, option_inputs

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
        elif name.endswith("_segments"):
            found[name] = random_segments(b, t if name[0] == "q" else s, g)
        else:
            found[name] = torch.randint(0, s + 1, (b,), generator=g, dtype=torch.int32)
    return {name: x.to(device) for name, x in found.items()}


def random_segments(batch: int, length: int, g: torch.Generator) -> torch.Tensor:
    """int32 [batch, length]: a row of one text, rows of several, and one whose ids come back."""
    begins = torch.rand(batch, length, generator=g) < 3.0 / length
    ids = begins.int().cumsum(1)
    ids[0] = 1
    if batch > 1:
        ids[-1] = torch.randint(0, 3, (length,), generator=g)
    return ids.int()


def visibility(spec: AttentionSpec, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """[B, N, T, S]: which logits take part."""
    device = inputs["q"].device
    b, t, s = spec.batch, spec.q_len, spec.kv_len
    i = torch.arange(t, device=device)[None, None, :, None]
    j = torch.arange(s, device=device)[None, None, None, :]
    seen = torch.ones(b, spec.q_heads, t, s, dtype=torch.bool, device=device)
    if "kv_lengths" in inputs:
        seen = seen & (j < inputs["kv_lengths"].long().view(b, 1, 1, 1))
    if spec.left >= 0:
        seen = seen & (j >= i - spec.left)
    if spec.right >= 0:
        seen = seen & (j <= i + spec.right)
    if "mask" in inputs:
        seen = seen & inputs["mask"]
    if "q_segments" in inputs:
        own = inputs["q_segments"]
        theirs = inputs.get("kv_segments", own)
        seen = seen & (own[:, :, None] == theirs[:, None, :])[:, None]
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
    out = torch.einsum("bnts,bsnh->btnh", probs, v)
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
