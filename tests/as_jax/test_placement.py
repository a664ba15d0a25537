"""Placements of results: the names that take them are JAX's, and what is given counts."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

from tests.as_jax.test_as_jax import run

MODULES = ("jax.numpy", "jax.random", "jax.lax")


@pytest.mark.parametrize("module", MODULES)
def test_the_functions_are_those_of_jax(module: str) -> None:
    theirs = importlib.import_module(module)
    takes = set()
    for name in dir(theirs):
        f = getattr(theirs, name)
        if callable(f) and not name.startswith("_"):
            try:
                found = inspect.signature(f).parameters
            except (TypeError, ValueError):
                continue
            takes |= {(name, p) for p in ("out_sharding", "sharding") if p in found}
    done = run(
        "import importlib, genesis_fn.as_jax\n"
        "from genesis_fn.as_jax.placement import TAKES\n"
        f"module = importlib.import_module({module!r})\n"
        f"print({{n: (p, callable(getattr(module, n))) for n, p in TAKES[{module!r}].items()}})\n",
        "-",
    )
    assert done.returncode == 0, done.stderr
    ours = dict(re.findall(r"'(\w+)': \('(\w+)', True\)", done.stdout))
    assert takes <= set(ours.items()), takes - set(ours.items())


def test_results_are_laid_out() -> None:
    done = run(
        "import os\n"
        "os.environ['GENESIS_CPU_DEVICES'] = '2'\n"
        "import genesis_fn.as_jax, jax, jax.numpy as jnp\n"
        "mesh = jax.make_mesh((2,), ('x',))\n"
        "rows = jax.sharding.NamedSharding(mesh, jax.P('x'))\n"
        "print(jnp.zeros((4, 2), out_sharding=rows).sharding.spec)\n"
        "print(jax.random.normal(jax.random.key(0), (4,), out_sharding=rows).sharding.spec)\n"
        "print(jnp.matmul(jnp.ones((4, 2)), jnp.ones((2, 2)), out_sharding=rows).sharding.spec)\n"
        "print(jax.lax.full((4,), 1.0, sharding=rows).sharding.spec)\n"
        "kind = jax.typeof(jnp.ones((2, 3))).sharding\n"
        "print(kind.mesh.empty, kind.mesh.are_all_axes_explicit, kind.shard_shape((2, 3)))\n"
        "print(jnp.ones(3, out_sharding=kind).shape)\n"
        "print(kind.update(spec=jax.P(None)).spec, len(kind.spec))\n",
        "-",
    )
    spec = "PartitionSpec('x')\n"
    assert (done.returncode, done.stdout) == (
        0,
        f"{4 * spec}True False (2, 3)\n(3,)\nPartitionSpec(None) 2\n",
    ), done.stderr
