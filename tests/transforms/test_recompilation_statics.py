"""The reason for tracing again names the static argument that changed, given or not."""

from __future__ import annotations

import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.transforms.jit import RecompilationWarning


def test_a_static_argument_that_was_not_given_before():
    @gf.jit(static_argnames=("n", "eos"))
    def f(x, *, n, eos=None):
        return x

    f(jnp.ones(2), n=1)
    f(jnp.ones(2), n=2)
    with pytest.warns(RecompilationWarning, match="static eos: not given -> 57"):
        f(jnp.ones(2), n=2, eos=57)
    with pytest.warns(RecompilationWarning, match="static n: 2 -> 3"):
        f(jnp.ones(2), n=3)
