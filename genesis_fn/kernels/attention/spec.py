"""Attention problems (`AttentionSpec`), and what their forward, backward and decode plans share.

The semantics are those of `jax.nn.dot_product_attention` on BTNH arrays, with a soft cap added: for
batch b, query head n, query i and key j,

    logits = softcap(scale * <q[b, i, n], k[b, j, n // G]>) + bias[b, n, i, j]
    probs  = softmax over j of logits where visible(b, n, i, j)
    out    = sum over j of probs * v[b, j, n // G]

A row that sees no key (a fully masked row) attends to all `kv_len` keys equally, as in JAX, whose
masked logits are a large negative number, not minus infinity; its logits have no gradient, the
values do. Its log-sum-exp is -0.7 * the largest float32, JAX's too. Minus infinity in a bias is
invisible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from genesis_fn.compiler.target import Target
from genesis_fn.kernels.plan import Argument, BufferArg, Descriptor

DTYPES = ("bf16", "fp16", "fp32")
MAX_HEAD_DIM = 256
Strides = tuple[int, int, int]
Shape4 = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """An attention problem: sizes, dtypes and static options.

    `window` is (left, right), None meaning unbounded; `causal` is a right bound of zero; query i
    has key position i. `bias` and `mask` are the shapes of arrays that broadcast to (batch,
    q_heads, q_len, kv_len); with `kv_lengths` each batch entry has so many keys. With `segments` a
    query sees the keys of its own id: "shared" ids [batch, q_len] are of queries and keys alike,
    "separate" ones are [batch, q_len] and [batch, kv_len]. `precision` is how float32 operands are
    multiplied.
    """

    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int | None = None
    dtype: str = "bf16"
    scale: float | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    bias: Shape4 | None = None
    bias_dtype: str = "fp32"
    mask: Shape4 | None = None
    kv_lengths: bool = False
    segments: Literal["shared", "separate"] | None = None
    softcap: float = 0.0
    precision: str = "ieee"
    return_lse: bool = True

    def __post_init__(self) -> None:
        sizes = (self.batch, self.q_heads, self.kv_heads, self.q_len, self.kv_len, self.head_dim)
        if min(sizes) < 1:
            raise ValueError(f"attention: every size must be at least 1, got {sizes}")
        if self.q_heads % self.kv_heads:
            raise ValueError(
                f"attention: {self.q_heads} query heads are not a multiple of "
                f"{self.kv_heads} key/value heads"
            )
        if max(self.head_dim, self.v_dim) > MAX_HEAD_DIM:
            raise ValueError(
                f"attention: head dimensions {self.head_dim} and {self.v_dim} exceed {MAX_HEAD_DIM}"
            )
        if self.dtype not in DTYPES or self.bias_dtype not in DTYPES:
            raise ValueError(
                f"attention: dtypes must be among {sorted(DTYPES)}, "
                f"got {self.dtype} (bias {self.bias_dtype})"
            )
        if self.precision not in ("ieee", "tf32", "tf32x3"):
            raise ValueError(f"attention: unknown float32 precision {self.precision!r}")
        if self.softcap < 0.0:
            raise ValueError(f"attention: softcap must not be negative, got {self.softcap}")
        if self.window is not None and any(w is not None and w < 0 for w in self.window):
            raise ValueError(f"attention: window sizes must not be negative, got {self.window}")
        if self.segments not in (None, "shared", "separate"):
            raise ValueError(f"attention: unknown kind of segments {self.segments!r}")
        if self.segments == "shared" and self.q_len != self.kv_len:
            raise ValueError(
                f"attention: {self.q_len} queries and {self.kv_len} keys cannot share segments"
            )
        full = (self.batch, self.q_heads, self.q_len, self.kv_len)
        for name, shape in (("bias", self.bias), ("mask", self.mask)):
            if shape is None:
                continue
            if len(shape) != 4 or any(s not in (1, f) for s, f in zip(shape, full, strict=True)):
                raise ValueError(f"attention: {name} of shape {shape} does not broadcast to {full}")

    @property
    def v_dim(self) -> int:
        """Width of a value row."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.q_heads // self.kv_heads

    @property
    def softmax_scale(self) -> float:
        """The factor on the dot products; 1 / sqrt(head_dim) by default."""
        return 1.0 / math.sqrt(self.head_dim) if self.scale is None else self.scale

    @property
    def left(self) -> int:
        """Keys visible to the left of a query, -1 for all."""
        return -1 if self.window is None or self.window[0] is None else self.window[0]

    @property
    def right(self) -> int:
        """Keys visible to the right of a query, -1 for all; zero when causal."""
        right = -1 if self.window is None or self.window[1] is None else self.window[1]
        return 0 if self.causal else right

    @property
    def plain_scores(self) -> bool:
        """Whether logits are a positive multiple of the dot products: the scale folds into exp2."""
        # Positive, since the row's maximum is taken before the scale is applied.
        return self.bias is None and self.softcap == 0.0 and self.softmax_scale > 0.0

    @property
    def every_tile_masked(self) -> bool:
        """Whether any tile, not only those at the edge of the band, can hold invisible elements."""
        return self.mask is not None or self.bias is not None

    @property
    def fully_masked_rows(self) -> bool:
        """Whether some query may see no key."""
        if self.mask is not None or self.kv_lengths or self.bias is not None:
            return True
        # With shared segments a query sees its own key.
        if self.segments == "separate":
            return True
        # The last query's window may begin behind the last key.
        return self.left >= 0 and self.q_len - 1 - self.left > self.kv_len - 1

    @property
    def flops(self) -> int:
        """Floating-point operations of the forward contractions, a causal square counted half."""
        full = 2 * self.batch * self.q_heads * self.q_len * self.kv_len
        full *= self.head_dim + self.v_dim
        return full // 2 if self.causal else full


# ---- buffers ----


def option_inputs(spec: AttentionSpec) -> dict[str, str]:
    """The optional inputs of the problem: element types by kernel parameter name, in order."""
    names: dict[str, str] = {}
    if spec.bias is not None:
        names["bias"] = spec.bias_dtype
    if spec.mask is not None:
        names["mask"] = "i1"
    if spec.kv_lengths:
        names["kv_lengths"] = "i32"
    if spec.segments is not None:
        names["q_segments"] = "i32"
    if spec.segments == "separate":
        names["kv_segments"] = "i32"
    return names


OPTION_NAMES = ("bias", "mask", "kv_lengths", "q_segments", "kv_segments")


def option_arguments(spec: AttentionSpec, first: int) -> tuple[dict[str, Argument], dict[str, Any]]:
    """(arguments, constants) of the optional inputs, numbered from buffer `first`; absent ones are
    the constant None."""
    wanted = option_inputs(spec)
    arguments: dict[str, Argument] = {
        name: BufferArg(first + i, dtype) for i, (name, dtype) in enumerate(wanted.items())
    }
    if spec.segments == "shared":
        arguments["kv_segments"] = arguments["q_segments"]
    return arguments, {name: None for name in OPTION_NAMES if name not in arguments}


def dense_strides(length: int, heads: int, dim: int) -> Strides:
    """(batch, time, head) strides of a dense BTNH array."""
    return (length * heads * dim, heads * dim, dim)


def operand_strides(spec: AttentionSpec) -> tuple[Strides, Strides, Strides]:
    """The strides of query, key and value."""
    return (
        dense_strides(spec.q_len, spec.q_heads, spec.head_dim),
        dense_strides(spec.kv_len, spec.kv_heads, spec.head_dim),
        dense_strides(spec.kv_len, spec.kv_heads, spec.v_dim),
    )


def serves_descriptors(spec: AttentionSpec, target: Target) -> bool:
    """Whether tiles move by TMA: 16-bit, head dimensions 64, 128 or 256."""
    # A descriptor's block has no mask along the head dimension: it must be a power of two as it is.
    if not target.descriptors or spec.dtype == "fp32":
        return False
    return {spec.head_dim, spec.v_dim} <= {64, 128, 256}


def rows_view(
    buffer: BufferArg, batch: int, length: int, heads: int, dim: int, strides: Strides, rows: int
) -> Descriptor:
    """A descriptor of `rows` consecutive rows of one head; rows past `length` read as zero and are
    never written, whatever batch entry follows."""
    # All heads of a row are one axis: a head is chosen by its column, and three axes suffice.
    width = (heads - 1) * strides[2] + dim
    return Descriptor(buffer, (batch, length, width), (strides[0], strides[1], 1), (1, rows, dim))


def padded(dim: int) -> int:
    """The power of two, at least 16, that holds a head dimension."""
    # Triton's ranges are powers of two, and `tl.dot` wants at least 16 elements.
    return max(16, 1 << (dim - 1).bit_length())


def broadcast_strides(shape: Shape4 | None) -> Shape4:
    """Element strides of a dense array of `shape`, zero along its broadcast axes."""
    if shape is None:
        return (0, 0, 0, 0)
    steps = (shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1)
    b, h, t, s = (step if size > 1 else 0 for step, size in zip(steps, shape, strict=True))
    return (b, h, t, s)


def problem_constants(spec: AttentionSpec) -> dict[str, Any]:
    """The constexpr parameters that every attention kernel takes."""
    names = ("BATCH", "TIME", "HEAD")
    q, k, v = operand_strides(spec)
    strides = {
        f"{array}_{axis}": stride
        for array, values in (("Q", q), ("K", k), ("V", v))
        for axis, stride in zip(names, values, strict=True)
    }
    axes = ("BATCH", "HEAD", "ROW", "COL")
    for array, shape in (("BIAS", spec.bias), ("MASK", spec.mask)):
        steps = broadcast_strides(shape)
        strides |= {f"{array}_{axis}": step for axis, step in zip(axes, steps, strict=True)}
    return strides | {
        "T": spec.q_len,
        "S": spec.kv_len,
        "H": spec.q_heads,
        "G": spec.group,
        "D": spec.head_dim,
        "DV": spec.v_dim,
        "BLOCK_D": padded(spec.head_dim),
        "BLOCK_DV": padded(spec.v_dim),
        "SCALE": spec.softmax_scale,
        "SOFTCAP": float(spec.softcap),
        "PLAIN": spec.plain_scores,
        "LEFT": spec.left,
        "RIGHT": spec.right,
        "MASK_ALL": spec.every_tile_masked,
        "FULLY_MASKED": spec.fully_masked_rows,
        "PRECISION": spec.precision,
    }
