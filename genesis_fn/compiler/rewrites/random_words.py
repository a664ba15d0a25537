"""New keys, and a few random bits, as arithmetic that fuses with what reads them.

The keys of a step of a sampler are a chain of hashes of two words each. As steps of their own each
takes as long as any kernel, 2 us on an H200, in a step whose work may take no longer. As functions
of a key's words and a number, element by element, they are parts of the kernels that need them, and
few kernels compute all keys of a step. Longer streams stay with the kernel of random bits, which
uses all four words of a block.
"""

from __future__ import annotations

import functools
import math

from genesis_fn.compiler.options import enabled
from genesis_fn.compiler.rewrites.computed import components_p
from genesis_fn.compiler.rewrites.row_sums import appended
from genesis_fn.core import dtypes
from genesis_fn.core.backend.lowering import Elementwise
from genesis_fn.core.jaxpr import Eqn, Jaxpr, Var
from genesis_fn.core.primitive import Primitive
from genesis_fn.core.types.extended import WORDS
from genesis_fn.primitives.random_bits import key_hash_p, random_bits_p
from genesis_fn.primitives.shape import broadcast_in_dim_p, iota_p, reshape_p, slice_p

_MOST_KEYS = 1 << 12  # new ones of an equation
_MOST_WORDS = 1 << 16  # a lane computes a block for each: 100 operations
_WORD = {"philox": "philox_word", "threefry2x32": "threefry2x32_word"}
_STREAM = {"philox": "philox_stream", "threefry2x32": "threefry2x32_stream"}

# The hash of a key costs more operations than this says. It is for as many keys as a step has, for
# which another launch would cost most: each reader hashes again.
random_word_p = Primitive(
    "random_word",
    lambda k0, k1, x, *, impl, last, word: x,
    lowering=Elementwise(
        lambda kind, k0, k1, x, *, impl, last, word: (
            f"{_WORD[impl]}({k0}, {k1}, {x}, {last}, {word})"
        ),
        cost=4,
    ),
    listed=False,
)
"""Word 0 or 1 of the block of a key, whose words are the first operands, at the counter that
`key_hash` has for data x: a primitive of the compiler's own programs."""
random_stream_p = Primitive(
    "random_stream",
    lambda k0, k1, x, *, impl: x,
    lowering=Elementwise(
        lambda kind, k0, k1, x, *, impl: f"{_STREAM[impl]}({k0}, {k1}, {x})", cost=60
    ),
    listed=False,
)
"""Element x of the 32-bit stream of a key: a primitive of the compiler's own programs."""


def random_words(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with new keys and short streams written out as the module describes."""
    if not enabled("random_words") or not any(map(_is_short, jaxpr.eqns)):
        return jaxpr
    eqns: list[Eqn] = []
    for e in jaxpr.eqns:
        if not _is_short(e):
            eqns.append(e)
        elif e.prim is key_hash_p:
            _hashed(eqns, e)
        else:
            _drawn(eqns, e)
    return Jaxpr(jaxpr.invars, eqns, jaxpr.outs, jaxpr.labels, jaxpr.name)


def _is_short(e: Eqn) -> bool:
    if e.prim not in (key_hash_p, random_bits_p) or not all([type(i) is Var for i in e.ins]):
        return False
    size = e.outs[0].aval.size
    if e.prim is key_hash_p:
        return 0 < size <= WORDS * _MOST_KEYS
    return 0 < size <= _MOST_WORDS and e.params["width"] == 32


def _hashed(eqns: list[Eqn], e: Eqn) -> None:
    """Both words of the new keys."""
    key, data = e.ins
    words = _spread(eqns, e, key, data.aval.shape)
    params = {"impl": e.params["impl"], "last": e.params["tag"]}
    parts = [appended(eqns, e, random_word_p, *words, data, **params, word=k) for k in range(WORDS)]
    eqns.append(e.replace(prim=components_p, ins=parts, params={}))


def _drawn(eqns: list[Eqn], e: Eqn) -> None:
    """The elements of a short stream for each key."""
    (key,), out = e.ins, e.outs[0].aval
    shape = tuple(e.params["shape"])
    words = _spread(eqns, e, key, out.shape)
    made = functools.partial(appended, eqns, e)
    count = math.prod(shape)
    number = made(iota_p, dtype=dtypes.U32, shape=(count,), dimension=0)
    number = made(reshape_p, number, shape=shape)
    dims = tuple(range(len(out.shape) - len(shape), len(out.shape)))
    number = made(broadcast_in_dim_p, number, shape=out.shape, dims=dims)
    eqns.append(
        e.replace(prim=random_stream_p, ins=[*words, number], params={"impl": e.params["impl"]})
    )


def _spread(eqns: list[Eqn], e: Eqn, key: Var, shape: tuple[int, ...]) -> list[Var]:
    """The two words of keys, each as long as what is computed of them."""
    made = functools.partial(appended, eqns, e)
    keys, found = key.aval.shape[:-1], []
    for k in range(WORDS):
        ends = {"start": (*[0] * len(keys), k), "limit": (*keys, k + 1)}
        word = made(slice_p, key, **ends, strides=(1,) * key.aval.ndim)
        word = made(reshape_p, word, shape=keys)
        found.append(made(broadcast_in_dim_p, word, shape=shape, dims=tuple(range(len(keys)))))
    return found
