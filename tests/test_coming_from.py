"""The pages for users of other libraries run as they stand, and name what exists."""

from __future__ import annotations

import importlib
import re

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
        called = re.match(r"(\w+)(?:$|\(|, or )", answer)
        missing += [answer] if called and not hasattr(space, called[1]) else []
    assert missing == []
