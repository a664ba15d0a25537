"""The pages for users of other libraries run as they stand, and name what exists."""

from __future__ import annotations

import re

import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import amp, io, lax, nn, optim, random, tree
from tests.support.documents import DOCS, run

PAGES = ("coming-from-jax.md", "coming-from-pytorch.md")
SPACES = {
    "gf": gf, "genesis_fn": gf, "jnp": jnp, "lax": lax, "nn": nn, "optim": optim, "random": random,
    "tree": tree, "io": io, "amp": amp,
}  # fmt: skip


@pytest.mark.cpu
@pytest.mark.filterwarnings("ignore::genesis_fn.random.KeyReuseWarning")
@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_and_prints_what_it_says(page, tmp_path, monkeypatch) -> None:
    assert run(page, tmp_path, monkeypatch) >= 4


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
        (nn, "LSTM", "lax.scan"),
        (nn, "GELU", "approximate=False"),
        (nn, "ConvTranspose2d", "lax.conv_transpose"),
    ],
)
def test_names_of_torch_are_answered(space, name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"in this library: .*{re.escape(instead)}"):
        getattr(space, name)
