"""What is refused, with a message that names it: one case of each that no other test meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import lax, nn, optim, random, tree_util
from genesis_fn.data.tokens import TokenWindows
from genesis_fn.models import QwenConfig
from genesis_fn.optim import losses
from genesis_fn.optim.state import tree_math
from genesis_fn.transforms.debugging.nan_tracing import nan_trace

O = jnp.ones
I = jnp.arange
KEY = random.key(0)
Z = jnp.ones(2, "complex64")
HALF_RAGGED = ((((1,), (0,)), ((), ())), [0], [])


def ragged(dimensions: Any, sizes: Any = (2, 2), **options: Any) -> Any:
    return lax.ragged_dot_general(O((4, 3)), O((2, 3, 5)), jnp.array(sizes), dimensions, **options)


def config(**changes: Any) -> QwenConfig:
    fields = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    return QwenConfig.from_dict(
        {"model_type": "qwen3", **fields, "num_attention_heads": 32, **changes}
    )


def with_rule(fwd: Callable, bwd: Callable) -> Any:
    f = gf.custom_vjp(lambda x: x * 2.0)
    f.defvjp(fwd, bwd)
    return gf.grad(f)(1.0)


def with_tangent(rule: Callable) -> Any:
    f = gf.custom_jvp(lambda x: x * 2.0)
    f.defjvp(rule)
    return gf.jit(f)(1.0)  # recorded, so that the rule is held against the function


CASES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: gf.nothing, AttributeError, "module 'genesis_fn' has no attribute 'nothing'"),
    (lambda: gf.amp.get_policy("params=float32,half"), ValueError, "is not understood; write"),
    (lambda: gf.jit(abs, compiler="gcc")(1.0), gf.errors.BackendError, "compiler='gcc'"),
    (lambda: gf.bench(gf.jit(abs, donate_argnums=0), O(2)), ValueError, "donates its arguments"),
    (lambda: hash(O(2)), TypeError, "arrays are not hashable"),
    (lambda: gf.jit(hash)(O(2)), TypeError, "key by id"),
    (lambda: TokenWindows(np.arange(3), 3, 1), ValueError, "3 tokens are too few for windows of 4"),
    (lambda: config(head_dim=3), ValueError, "head_dim 3 must be even"),
    (lambda: config(model_type="gpt"), ValueError, "model_type is 'gpt'"),
    (lambda: config(vocab_size="many"), ValueError, "vocab_size is 'many', expected an integer"),
    # lax
    (lambda: lax.rng_bit_generator(jnp.zeros(2, "uint32"), (2,), "int32"), TypeError, "unsigned"),
    (lambda: lax.rng_bit_generator(jnp.zeros(3, "uint32"), (2,)), ValueError, "a key is"),
    (lambda: lax.rng_uniform(O(2), 1.0, (2,)), ValueError, "must be scalars"),
    (lambda: lax.select_n(O(2) > 0, O(2), O(2), O(2)), ValueError, "between 2 cases"),
    (lambda: ragged(HALF_RAGGED, group_offset=1), ValueError, "split over devices"),
    (lambda: ragged(((((1,), (1,)), ((), ())), [0, 1], [0])), ValueError, "one dimension is"),
    (lambda: ragged(((((1,), (1,)), ((), ())), [0], [])), ValueError, "must name one dimension"),
    (lambda: ragged(((((1,), (1,)), ((), ())), [0], [0]), 3), ValueError, "is no vector"),
    (lambda: lax.ragged_dot(O((4, 3)), O((2, 3, 5)), I(2), group_offset=1), ValueError, "None"),
    (lambda: lax.platform_dependent(1.0, tpu=abs), ValueError, "and no default"),
    (lambda: lax.lgamma(I(2)), TypeError, "lgamma takes floats"),
    (lambda: lax.broadcast_to_rank(O((2, 2)), 1), ValueError, "has more than 1 axes"),
    (lambda: lax.reduce_precision(I(2), 5, 10), TypeError, "reduce_precision takes floats"),
    (lambda: lax.iota("bool", 2), TypeError, "not in booleans"),
    (lambda: lax.concatenate([O(2), I(2)], 0), TypeError, "concatenate: dtypes differ"),
    (lambda: lax.transpose(O((2, 2)), (0, 0)), ValueError, "is no permutation of the axes"),
    (lambda: lax.slice(O(3), (0, 0), (1, 1)), ValueError, "start and limit indices"),
    (lambda: lax.integer_pow(I(2), -1), TypeError, "cannot raise"),
    (lambda: lax.select(O(2), O(2), O(2)), TypeError, "must be bool"),
    (lambda: lax.select(O(2) > 0, O(2), I(2)), TypeError, "the two cases differ"),
    (lambda: lax.dynamic_slice(O((2, 2)), (0,), (1, 1)), ValueError, "got 1 and 2"),
    (lambda: lax.dynamic_slice(O((2, 2)), (0, 0), (1,)), ValueError, "got 2 and 1"),
    (lambda: lax.fft(O(4), "rfft", (3,)), ValueError, "the last dimensions must be"),
    (lambda: lax.fft(O(4), "fft", (4,)), TypeError, "the operand must be"),
    (lambda: lax.reduce((O(2), O(2)), (0.0,), lambda a, b: a, (0,)), ValueError, "but 1 initial"),
    (lambda: lax.conv_general_dilated(O((1, 1, 4)), I(3)[None, None], (1,), "SAME"),
     TypeError, "dtypes differ"),
    (lambda: lax.conv_general_dilated(O((1, 1, 4)), O((1, 1, 3)), (1,), "HALF"),
     ValueError, "is not 'SAME', 'SAME_LOWER', 'VALID' or pairs"),
    (lambda: lax.conv_transpose(O((1, 4, 1)), O((3, 1, 1)), (1,), "HALF"),
     ValueError, "is not 'SAME', 'VALID' or pairs"),
    (lambda: lax.conv_general_dilated(O((1, 1, 4)), O((1, 1, 3)), (1,), "SAME", (2,)),
     ValueError, "give pairs, or use conv_transpose"),
    (lambda: lax.conv_general_dilated(O((1, 1, 4)), O((1, 1, 3)), (1,), "VALID",
                                      dimension_numbers=3), TypeError, "must be three strings"),
    (lambda: lax.conv_general_dilated(O((1, 1, 4)), O((1, 1, 3)), (1,), "VALID",
                                      dimension_numbers=("NCW", "OIH", "NCW")),
     ValueError, "name different spatial dimensions"),
    (lambda: lax.linalg.cholesky(O(2)), ValueError, "takes matrices"),
    # optim
    (lambda: losses.squared_error(I(2)), TypeError, "takes floats, got"),
    (lambda: losses.softmax_cross_entropy_with_integer_labels(O((2, 3)), O(2)),
     TypeError, "takes integer labels"),
    (lambda: losses.softmax_cross_entropy_with_integer_labels(O((2, 3)), I(2), axis=None),
     TypeError, "axis is an int or a tuple of ints"),
    (lambda: losses.ntxent(O((2, 3)), I(3)), ValueError, r"labels \[batch\], got embeddings"),
    (lambda: losses.ctc_loss(O((2, 3)), O((2, 3)), I(2), O(2)), ValueError, r"logits \[B, T, K\]"),
    (lambda: tree_math.dtype((O(2), I(2))), TypeError, "expected all leaves to be float32"),
    (lambda: tree_math.dtype((O(2), I(2)), "most"), ValueError, "mixed_dtype_handler is None"),
    (lambda: tree_math.dtype((O(2, "float16"), O(2, "bfloat16")), "highest"),
     TypeError, "neither float16 nor bfloat16"),
    (lambda: optim.linear_onecycle_schedule(0, 1.0), ValueError, "transition_steps is 0"),
    (lambda: optim.cosine_onecycle_schedule(0, 1.0), ValueError, "transition_steps is 0"),
    (lambda: optim.optimistic_adam(lambda n: 0.1), ValueError, "use optimistic_adam_v2"),
    # random
    (lambda: random.key(1.5), TypeError, "a seed is an integer scalar, got 1.5"),
    (lambda: random.key(O(2)), TypeError, r"a seed is an integer scalar, got f32"),
    (lambda: random.bits(KEY, (2,), "int32"), TypeError, "must be unsigned"),
    (lambda: random.normal(KEY, (2,), "int32"), TypeError, "dtype must be floating"),
    (lambda: random.categorical(KEY, O((2, 3)), shape=(5,)), ValueError, "must end in what"),
    (lambda: random.choice(KEY, I(3), (2,), p=O(2)), ValueError, r"p has shape"),
    (lambda: random.Generator(0).randint(5), TypeError, "takes .low, high, size"),
    (lambda: random.Generator(0).set_state(O(3)), ValueError, "a generator's state is uint64"),
    # layers
    (lambda: nn.Module()(None, O(2)), TypeError, "Module defines no __call__"),
    (lambda: nn.Dropout(0.5)(None, O(2), train=True), ValueError, "Dropout in training needs key="),
    (lambda: nn.initializers.variance_scaling(1.0, "fan_in", "normal")(KEY, (3,)),
     ValueError, "needs two dimensions or more"),
    # transforms
    (lambda: gf.test_util.check_grads(abs, (O(2),), 1, modes=("back",)), ValueError, '"fwd" and'),
    (lambda: gf.pure_callback(abs, 3, O(2)), TypeError, "has no shape and dtype"),
    (lambda: lax.cond(True, 1, 2), TypeError, "cond takes .pred, true_fun"),
    (lambda: lax.cond(True, lambda: (1, 2), lambda: 1), TypeError, "different structures"),
    (lambda: lax.cond(True, lambda: 1, lambda: 1.0), TypeError, "make both the same"),
    (lambda: lax.scan(lambda c, x: (c, x), 0, 1.0), ValueError, "needs a leading axis"),
    (lambda: lax.scan(lambda c, x: ((c, c), x), 0, O(2)), TypeError, "of another structure"),
    (lambda: lax.while_loop(lambda c: c < 3, lambda c: (c, c), 0), TypeError, "another structure"),
    (lambda: lax.associative_scan(lambda a, b: a, (O(2), O(3))), ValueError, "lengths along axis"),
    (lambda: gf.grad(lambda x: (x, x))(1.0), TypeError, "pass has_aux=True"),
    (lambda: gf.grad(lambda x: x * O(2))(1.0), TypeError, "reduce it, for example"),
    (lambda: nan_trace(action="stop"), ValueError, 'action is "raise" or "print"'),
    (lambda: gf.named_scope(3), TypeError, "named_scope takes a string"),
    (lambda: gf.vmap(lambda x: (x, x), out_axes=(0, 0, 0))(O(2)), ValueError, "vmap: out_axes"),
    (lambda: tree_util.tree_reduce_associative(max, ()), ValueError, "needs identity="),
    (lambda: gf.jit(abs, unroll=2), TypeError, "jit has no option"),
    (lambda: gf.jit(abs, on_unusable_donation="shout"), ValueError, '"warn", "error" or "ignore"'),
    (lambda: with_rule(lambda x: x, lambda r, g: (g,)), TypeError, "the fwd rule of"),
    (lambda: with_rule(lambda x: (x, None), lambda r, g: g), TypeError, "must return a tuple of 1"),
    (lambda: with_rule(lambda x: (x, None), lambda r, g: ((g, g),)), TypeError, "another struct"),
    (lambda: with_tangent(lambda p, t: (p, t)), TypeError, "the jvp rule of"),
    (lambda: gf.profiler.stop_trace(), RuntimeError, "call start_trace first"),
]  # fmt: skip


@pytest.mark.parametrize("use, kind, message", CASES, ids=[c[2] for c in CASES])
def test_refusal(use: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        use()
