"""Qwen3 as a PyTorch user would write it: the twin that the benchmarks compare with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.qwen_shape import SHAPE, Shape


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class Layer(nn.Module):
    """Attention and feed-forward with residual connections."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        self.input_layernorm = RMSNorm(s.width, s.eps)
        self.post_attention_layernorm = RMSNorm(s.width, s.eps)
        self.q_norm, self.k_norm = RMSNorm(s.head_dim, s.eps), RMSNorm(s.head_dim, s.eps)
        self.q_proj = nn.Linear(s.width, q, bias=False)
        self.k_proj = nn.Linear(s.width, kv, bias=False)
        self.v_proj = nn.Linear(s.width, kv, bias=False)
        self.o_proj = nn.Linear(q, s.width, bias=False)
        self.gate_proj = nn.Linear(s.width, s.inner, bias=False)
        self.up_proj = nn.Linear(s.width, s.inner, bias=False)
        self.down_proj = nn.Linear(s.inner, s.width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        s, (b, t, _) = self.s, x.shape
        h = self.input_layernorm(x)
        q = self.q_norm(self.q_proj(h).view(b, t, s.heads, s.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(h).view(b, t, s.kv_heads, s.head_dim)).transpose(1, 2)
        v = self.v_proj(h).view(b, t, s.kv_heads, s.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o_proj(a.transpose(1, 2).reshape(b, t, -1))
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Qwen(nn.Module):
    """The decoder with tied embeddings; `forward` is the mean loss."""

    def __init__(self, s: Shape = SHAPE) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocabulary, s.width)
        self.layers = nn.ModuleList([Layer(s) for _ in range(s.layers)])
        self.norm = RMSNorm(s.width, s.eps)
        exponent = torch.arange(s.head_dim // 2) * (-2.0 / s.head_dim)
        angle = torch.arange(s.length)[:, None] * s.theta ** exponent[None, :]
        angle = torch.cat([angle, angle], -1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.embed_tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def training_step(
    compiled: bool,
    fused: bool,
    shape: Shape = SHAPE,
    device: str = "cpu",
    compute: torch.dtype | None = None,
):
    """A function of (tokens, labels) that makes one AdamW step and returns the loss. Parameters
    are float32; with `compute` the forward pass runs under torch.autocast."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4, fused=fused)
    loss_of = torch.compile(model) if compiled else model

    def step(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, compute, enabled=compute is not None):
            loss = loss_of(tokens, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
