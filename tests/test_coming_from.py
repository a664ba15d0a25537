"""The pages for users of other libraries run as they stand, and name what exists."""

from __future__ import annotations

import importlib
import re

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import amp, io, lax, nn, optim, random, tree
from genesis_fn.core.diagnostics.torch_habits import MODULES
from tests.support.documents import DOCS, run

PAGES = ("coming-from-jax.md", "coming-from-pytorch.md", "layers.md", "models.md")
SPACES = {
    "gf": gf, "genesis_fn": gf, "jnp": jnp, "lax": lax, "nn": nn, "optim": optim, "random": random,
    "tree": tree, "io": io, "amp": amp,
}  # fmt: skip


@pytest.mark.cpu
@pytest.mark.filterwarnings("ignore::genesis_fn.random.KeyReuseWarning")
@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_and_prints_what_it_says(page, tmp_path, monkeypatch) -> None:
    assert run(page, tmp_path, monkeypatch) >= 3


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_name_what_exists(page) -> None:
    """Each `gf.name` and `optim.losses.name` in the right column is there."""
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|$", (DOCS / page).read_text(), re.M)
    missing = []
    named = rf"\b((?:{'|'.join(SPACES)})(?:\.\w+)+)"
    for path in re.findall(named, " ".join(rows)):
        found = SPACES[path.split(".")[0]]
        for name in path.split(".")[1:]:
            found = getattr(found, name, None)
        missing += [path] if found is None else []
    assert missing == []


@pytest.mark.parametrize(
    ("space", "name", "instead"),
    [
        (gf, "autocast", "amp(f, policy)"),
        (nn, "Identity", "identity"),
        (nn, "MaxPool2d", "MaxPool"),
        (nn, "GELU", "approximate=False"),
        (nn, "CrossEntropyLoss", "cross_entropy(logits, labels)"),
    ],
)
def test_names_of_torch_are_answered(space, name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"in this library: .*{re.escape(instead)}"):
        getattr(space, name)


def test_no_answer_is_for_a_name_that_exists() -> None:
    """An answer for a name that has come to be would never be given."""
    stale = [
        f"{space}.{name}"
        for space, answers in MODULES.items()
        for name in answers
        if hasattr(importlib.import_module(space), name)
    ]
    assert stale == []


PROSE = {"a", "derivatives", "gradients", "its", "nothing", "parameters", "schedules",
         "updates", "x"}  # fmt: skip


@pytest.mark.parametrize("module", sorted(MODULES))
def test_what_names_are_answered_with_exists(module: str) -> None:
    """Every dotted name of an answer is there, and so is what an answer begins with."""
    space = importlib.import_module(module)
    missing = []
    for answer in MODULES[module].values():
        for first, *names in (path.split(".") for path in re.findall(r"[\w.]+\w", answer)):
            found = root = SPACES.get(first, getattr(space, first, None))
            for name in names if root is not None else ():
                found = getattr(found, name, None)
            missing += [answer] if root is not None and found is None else []
        called = re.match(r"\w+", answer)
        begins = called and called[0] not in {*SPACES, *PROSE}
        missing += [answer] if begins and not hasattr(space, called[0]) else []
    assert missing == []


FUNCTIONAL = {
    "softsign": {}, "logsigmoid": {}, "hardswish": {}, "hardsigmoid": {}, "hardtanh": {},
    "tanhshrink": {}, "normalize": {"dim": -1}, "softmin": {"dim": -1},
    "prelu": {"weight": np.array([0.3], np.float32)}, "threshold": {"threshold": 0.2, "value": 7.0},
    "hardshrink": {"lambd": 0.4}, "softshrink": {"lambd": 0.4},
    "cosine_similarity": {"y": None, "dim": -1}, "pairwise_distance": {"y": None},
    "multi_margin_loss": {"target": np.array([1, 0, 4])},
    "hinge_embedding_loss": {"target": np.array([[1.0], [-1.0], [1.0]]), "margin": 0.6},
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_an_answer_to_a_function_of_torch_computes_it(name: str) -> None:
    import torch

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 3, 5)).astype(np.float32) * 2
    given = {k: y if k == "y" else v for k, v in FUNCTIONAL[name].items()}
    theirs = [torch.tensor(v) if isinstance(v, np.ndarray) else v for v in given.values()]
    keywords = {"x2" if k == "y" else k: v for k, v in zip(given, theirs, strict=True)}
    expected = getattr(torch.nn.functional, name)(torch.tensor(x), **keywords)
    ours = {k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}
    answer, ours = MODULES["genesis_fn.nn"][name].split(", or ")[0], {"x": jnp.asarray(x), **ours}
    found = eval(answer, {**vars(nn), **SPACES}, ours)
    np.testing.assert_allclose(found(**ours) if callable(found) else found, expected, 1e-5, 1e-5)
