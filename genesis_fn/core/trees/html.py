"""Pytrees in notebooks: nodes that open and close, with sizes; arrays with their statistics.

The HTML needs no script and nothing from outside, and takes its colors from the page around it.
What is shown of a tree is bounded, and the histogram of a large array is one of a sample; the
output says so.
"""

from __future__ import annotations

import dataclasses
import math
from html import escape
from typing import Any

import numpy as np

from genesis_fn.core import tree as trees
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.errors import GenesisError
from genesis_fn.core.primitive import running
from genesis_fn.core.train_state import TrainState
from genesis_fn.core.trees.printing import (
    bytes_text,
    entries_of,
    is_array,
    leaf_text,
    pformat,
    sizes_text,
    static_fields,
    to_numpy,
)
from genesis_fn.core.types.annotations import PyTree

SAMPLE = 32768  # elements of an array that a histogram is of: of a larger one, evenly spaced ones
COUNTED = 2**25  # elements of large arrays, all together, among which NaNs are counted: 128 MB
MOST_READ = 256  # arrays whose elements are read
MOST_ROWS, MOST_ENTRIES = 2000, 200  # rows in all, and entries of one node
BINS, WIDTH, HEIGHT = 24, 96, 18  # of a histogram; its size in pixels

_STYLE = (
    "<style>.gf-tree{font:12px/1.6 ui-monospace,Menlo,Consolas,monospace;text-align:left;"
    "color:inherit;overflow-x:auto}"
    ".gf-tree details,.gf-tree .gf-leaf{margin-left:1.4em}.gf-tree>details{margin-left:0}"
    ".gf-tree summary{cursor:pointer;white-space:nowrap;margin-left:-1.1em;display:list-item}"
    ".gf-tree>details>summary{margin-left:0}"
    ".gf-leaf{white-space:nowrap}.gf-tree svg{vertical-align:middle;margin:0 .6em}"
    ".gf-dim{opacity:.65}.gf-bad{font-weight:bold;text-decoration:underline}"
    ".gf-tree pre{margin:.3em 0 .3em 1.4em;background:none;color:inherit}</style>"
)


@dataclasses.dataclass(frozen=True)
class TreeView:
    """A pytree to look at: what `show` returns."""

    tree: PyTree

    def __repr__(self) -> str:
        return pformat(self.tree)

    def _repr_html_(self) -> str:
        return html_of(self.tree)


def show(tree: PyTree) -> TreeView:
    """Show a pytree in a notebook: nodes that open and close, arrays with their statistics.

    Each node says how many leaves, elements and bytes it has; each array its dtype, shape, bytes
    and device, with a histogram, minimum, maximum, mean and the number of NaNs and infinities. Of
    an array of more than 32768 elements all but these counts are those of a sample; large arrays of
    more than 33 million elements in all are counted in the sample, too, and of a tree of more than
    256 arrays the first ones are read. The output says so. Arrays, train states and dataclasses of
    `tree.dataclass` show themselves so; after `%load_ext genesis_fn`, dicts, lists and tuples that
    hold arrays do, too.

    Args:
        tree: pytree of arrays, tracers, ShapeDtypeStructs or any objects.

    Returns:
        An object with HTML for notebooks; its text is that of `pformat`.

    >>> gf.tree.show({"weight": jnp.ones((2, 3))})
    {'weight': f32[2,3]}
    """
    return TreeView(tree)


def html_of(tree: PyTree) -> str:
    """A pytree as HTML."""
    page = _Page()
    return f'<div class="gf-tree">{_STYLE}{page.row("", tree, True)}{page.notes()}</div>'


def array_html(x: ArrayImpl) -> str:
    """An array as HTML: its statistics, and its values as its repr shows them."""
    page = _Page()
    text = "" if x.is_deleted() else f"<pre>{escape(repr(x))}</pre>"
    return f'<div class="gf-tree">{_STYLE}{page.leaf("", x)}{text}{page.notes()}</div>'


def register_formatters(ipython: Any) -> None:
    """Let an IPython shell show dicts, lists and tuples that hold arrays as `show` does."""
    formatter = ipython.display_formatter.formatters["text/html"]
    for kind in (dict, list, tuple):
        formatter.for_type(kind, _html_of_arrays)


def _html_of_arrays(tree: PyTree) -> str | None:
    """HTML of a container with arrays; None of another one, which is shown as ever."""
    try:
        holds = any(is_array(x) for x in trees.leaves(tree))
    except (RecursionError, TypeError, ValueError):  # a list in itself; no pytree
        return None
    return html_of(tree) if holds else None


class _Page:
    """The rows of one output, and how much of it there is already."""

    def __init__(self) -> None:
        self.rows = self.read = self.unread = self.sampled = self.counted = self.uncounted = 0

    def row(self, name: str, tree: PyTree, is_open: bool = False) -> str:
        """A tree, its children folded unless `is_open`."""
        self.rows += 1
        entries = entries_of(tree)
        if entries is None or tree is None:
            return self.leaf(name, tree)
        kind = f'<span class="gf-dim">{escape(type(tree).__name__)} of {len(entries)}</span>'
        title = f"{_bold(name)}{kind} · {escape(sizes_text(tree))}"
        if not entries:
            return f'<div class="gf-leaf">{_bold(name)}{kind}</div>'
        children = []
        for key, child in entries[:MOST_ENTRIES]:
            if self.rows >= MOST_ROWS:
                break
            children.append(self.row(_key_text(key), child))
        hidden = len(entries) - len(children)
        if hidden:
            text = f"{hidden} more entries are not shown"
            children.append(f'<div class="gf-leaf gf-dim">... {text}</div>')
        children += [
            f'<div class="gf-leaf gf-dim">{escape(n)} = {escape(v)}</div>'
            for n, v in static_fields(tree)
        ]
        attribute = " open" if is_open else ""
        return f"<details{attribute}><summary>{title}</summary>{''.join(children)}</details>"

    def leaf(self, name: str, x: Any) -> str:
        """A leaf: of an array its type and size, and the statistics of its values."""
        facts = [escape(leaf_text(x))]
        if is_array(x):
            facts.append(bytes_text(math.prod(x.shape) * getattr(x.dtype, "itemsize", 0)))
        if isinstance(x, ArrayImpl):
            facts.append("deleted" if x.is_deleted() else escape(str(x.device).removesuffix("()")))
        return f'<div class="gf-leaf">{_bold(name)}{" · ".join(facts)}{self._statistics(x)}</div>'

    def _statistics(self, x: Any) -> str:
        if not isinstance(x, (ArrayImpl, np.ndarray)) or not x.size:
            return ""
        if self.read == MOST_READ:
            self.unread += 1
            return ""
        values = _sample(x)
        if values is None:
            return ""
        self.read += 1
        part = ""
        if values.size < x.size:
            self.sampled += 1
            part = f" (of {values.size:,} of {x.size:,} elements)"
        finite = values[np.isfinite(values)]
        whole = self._all_of(x) if part else values
        nans, infinities = _nans_and_infinities(values if whole is None else whole)
        counts = f"{_count('NaN', nans)} {_count('Inf', infinities)}"
        counts = f"{counts}{part}" if whole is None else f"{part} {counts}".lstrip()
        if not finite.size:
            return f' <span class="gf-dim">{counts}</span>'
        with np.errstate(over="ignore"):
            low, high, mean = finite.min(), finite.max(), finite.mean()
        size = "|x|: " if np.dtype(x.dtype).kind == "c" else ""
        text = f"{size}min {low:.4g} max {high:.4g} mean {mean:.4g} "
        return f'{_histogram(finite)}<span class="gf-dim">{text}{counts}</span>'

    def _all_of(self, x: Any) -> np.ndarray | None:
        """The elements of a large array, of which NaNs are counted; None if they are too many."""
        if self.counted + x.size > COUNTED:
            self.uncounted += 1
            return None
        self.counted += x.size
        with running(None):  # as in _sample, which has read some of them
            values = to_numpy(x)
        # NumPy's functions take dates and objects as numbers alone.
        if values is not None and values.dtype.kind in "mMO":
            return values.astype(np.float64)
        return values

    def notes(self) -> str:
        """What was left out."""
        found = []
        if self.sampled:
            found.append(
                f"histograms of {self.sampled} large arrays are of no more than {SAMPLE:,} "
                "elements, evenly spaced"
            )
        if self.uncounted:
            found.append(f"so are the NaNs that were counted of {self.uncounted} of them")
        if self.unread:
            found.append(f"the values of {self.unread} more arrays were not read")
        return "".join([f'<div class="gf-dim">{text}</div>' for text in found])


def _bold(name: str) -> str:
    return f"<b>{escape(name)}</b> " if name else ""


def _key_text(key: Any) -> str:
    text = str(getattr(key, "entry", key))
    return text if len(text) <= 80 else f"{text[:77]}..."


def _nans_and_infinities(values: np.ndarray) -> tuple[int, int]:
    infinities = int(np.count_nonzero(np.isinf(values)))
    return values.size - int(np.count_nonzero(np.isfinite(values))) - infinities, infinities


def _count(name: str, n: int) -> str:
    return f'<span class="gf-bad">{name} {n:,}</span>' if n else f"{name} 0"


def _sample(x: Any) -> np.ndarray | None:
    """Elements of an array as float64, sizes of complex numbers; None where they are not numbers
    or may not be read."""
    step = -(-x.size // SAMPLE)
    # Not a multiple of a row's length, which would read one column.
    while step > 1 and any(n > 1 and math.gcd(step, n) > 1 for n in x.shape):
        step += 1
    try:
        # The values are known, though a function may be traced around.
        with running(None):
            values = to_numpy(x if step == 1 else x.reshape(-1)[::step])
    except (GenesisError, FloatingPointError):
        return None  # donated, behind a transfer guard, or checked for NaN
    if values is None:
        return None
    values = values.reshape(-1)
    try:
        with np.errstate(all="ignore"):
            return np.abs(values) if values.dtype.kind == "c" else values.astype(np.float64)
    except (TypeError, ValueError):  # of objects or texts
        return None


def _histogram(values: np.ndarray) -> str:
    """A histogram of finite values as a picture, its bars in the color of the text."""
    scale = np.abs(values).max() or 1.0
    counts, _ = np.histogram(values / scale, BINS)
    step, most = WIDTH / BINS, counts.max()
    bars = []
    for i, n in enumerate(counts.tolist()):
        if n:  # a bar of few is still to be seen
            height = max(1.0, n / most * HEIGHT)
            bars.append(f"M{i * step:g},{HEIGHT}v{-height:.1f}h{step - 1:g}V{HEIGHT}z")
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<path d="{"".join(bars)}" fill="currentColor" opacity="0.55"/></svg>'
    )


# A node's HTML is that of its tree; `tree.dataclass` gives it to its classes.
ArrayImpl._repr_html_ = array_html  # type: ignore[attr-defined]
TrainState._repr_html_ = html_of  # type: ignore[attr-defined]
trees.node_html = html_of
