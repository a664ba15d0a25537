"""Each public function has an entry, and its entries hold: eager = jit = vmap of a loop = under a
derivative, on arrays of the library, NumPy and torch, in every dtype that it admits.

`PUBLIC_EXAMPLES=50 pytest tests/public` draws more arguments than the two of a usual run.
"""

from __future__ import annotations

import importlib
import inspect
import os
from types import ModuleType
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from genesis_fn import nn
from tests.public import entries_stats
from tests.public.agree import Entry, agree
from tests.public.entries_contrib import (
    CONTRIB,
    MICROBATCHING,
    OPTIM_EXPORTS,
    TRANSFORMS,
    TREE_UTILS,
)
from tests.public.entries_core import CORE_LAX
from tests.public.entries_lax import LAX, LAX_LINALG
from tests.public.entries_linalg import LAX_LINALG_MORE, SCIPY_LINALG
from tests.public.entries_more import (
    IMAGE,
    INITIALIZERS,
    LAYERS,
    NN,
    OPS,
    OPTIM,
    OPTIM_TREE,
    RANDOM,
    SPECIAL,
)
from tests.public.entries_numpy import FFT, LINALG, NUMPY
from tests.public.entries_optim import (
    OPTIM_ASSIGNMENT,
    OPTIM_PARTS,
    OPTIM_PERTURBATIONS,
    OPTIM_PROJECTIONS,
    OPTIM_SECOND_ORDER,
    OPTIM_TREE_RANDOM,
)
from tests.public.entries_scipy import (
    INTEGRATE,
    NDIMAGE,
    ODE,
    OPTIMIZE,
    SCIPY_FFT,
    SIGNALS,
    SPARSE_LINALG,
    VQ,
)
from tests.public.entries_special import LAX_MORE, NUMPY_MORE, SPECIAL_MORE
from tests.public.entries_stats import STATS
from tests.public.names import exported

EXAMPLES = int(os.environ.get("PUBLIC_EXAMPLES", "2"))
# Module, its peer, its entries.
TABLES: list[tuple[str, str | None, dict[str, list[Entry]]]] = [
    ("numpy", "jax.numpy", NUMPY | NUMPY_MORE), ("numpy.linalg", "jax.numpy.linalg", LINALG),
    ("numpy.fft", "jax.numpy.fft", FFT),
    ("lax", "jax.lax", LAX | LAX_MORE | CORE_LAX),
    ("lax.linalg", "jax.lax.linalg", LAX_LINALG | LAX_LINALG_MORE),
    ("scipy.linalg", "jax.scipy.linalg", SCIPY_LINALG),
    ("nn", "jax.nn", NN | LAYERS), ("nn.initializers", None, INITIALIZERS),
    ("scipy.special", "jax.scipy.special", SPECIAL | SPECIAL_MORE), ("random", None, RANDOM),
    ("optim", "optax", OPTIM | OPTIM_PARTS | OPTIM_EXPORTS),
    ("optim.tree", "optax.tree", OPTIM_TREE | OPTIM_TREE_RANDOM),
    ("optim.assignment", "optax.assignment", OPTIM_ASSIGNMENT),
    ("optim.perturbations", "optax.perturbations", OPTIM_PERTURBATIONS),
    ("optim.projections", "optax.projections", OPTIM_PROJECTIONS),
    ("optim.second_order", "optax.second_order", OPTIM_SECOND_ORDER),
    ("optim.contrib", None, CONTRIB), ("optim.microbatching", "optax.microbatching", MICROBATCHING),
    ("optim.transforms", "optax.transforms", TRANSFORMS),
    ("optim.tree_utils", "optax.tree_utils", TREE_UTILS),
    ("image", "jax.image", IMAGE), ("ops", "jax.ops", OPS),
    ("experimental.ode", "jax.experimental.ode", ODE),
    ("scipy.cluster.vq", "jax.scipy.cluster.vq", VQ), ("scipy.fft", "jax.scipy.fft", SCIPY_FFT),
    ("scipy.integrate", "jax.scipy.integrate", INTEGRATE),
    ("scipy.ndimage", "jax.scipy.ndimage", NDIMAGE),
    ("scipy.optimize", "jax.scipy.optimize", OPTIMIZE),
    ("scipy.signal", "jax.scipy.signal", SIGNALS),
    ("scipy.sparse.linalg", "jax.scipy.sparse.linalg", SPARSE_LINALG),
    ("scipy.stats", "jax.scipy.stats", STATS), *entries_stats.TABLES,
]  # fmt: skip


def functions(module: ModuleType) -> list[str]:
    """The public functions and layers of a package, or of a module that is public itself."""
    name = module.__name__.removeprefix("genesis_fn").removeprefix(".")
    found = [(n, getattr(module, n)) for n in sorted(exported(name))]
    return [n for n, x in found if callable(x) and (_is_layer(x) or not _is_type(x))]


def _is_type(x: Any) -> bool:
    return inspect.isclass(x) or hasattr(x, "__origin__")


def _is_layer(x: Any) -> bool:
    return inspect.isclass(x) and issubclass(x, nn.Module) and x is not nn.Module


def cases() -> list[Any]:
    """(module, peer, name, entry) of every entry."""
    return [
        pytest.param(module, peer, name, entry, id=f"{module}.{name}-{i}")
        for module, peer, table in TABLES
        for name, entries in table.items()
        for i, entry in enumerate(entries)
    ]


@pytest.mark.parametrize("module, peer, name, entry", cases())
def test_entry(module: str, peer: str | None, name: str, entry: Entry) -> None:
    f = getattr(importlib.import_module(f"genesis_fn.{module}"), name)
    theirs = getattr(importlib.import_module(peer), name, None) if peer else None

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        agree(f, entry, data, theirs)

    run()


@pytest.mark.parametrize("module, table", [pytest.param(m, t, id=m) for m, _, t in TABLES])
def test_every_public_function_has_an_entry(module: str, table: dict[str, list[Entry]]) -> None:
    public = functions(importlib.import_module(f"genesis_fn.{module}"))
    files = "the tables of tests/public/entries_*.py"
    for name in sorted({*public} - {*table}):
        pytest.fail(f"{module}.{name} has no entry in {files}")
    for name in sorted({*table} - {*public}):
        pytest.fail(f"{files} have an entry for {module}.{name}, which is not public")
