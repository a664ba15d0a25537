"""The table of a model's summary, as text and as HTML."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from genesis_fn.extend import Aval, bytes_text, scaled

if TYPE_CHECKING:
    from genesis_fn.nn.inspection.model_summary import ModelSummary, SummaryRow

WIDTH = 120
HEAD = ("path", "layer", "input", "output", "parameters", "count", "bytes", "FLOPs")
TEXTS = 5  # the first columns are text, which may be cut; the others are numbers
LEAST = (40, 12, 12, 12, 12)  # columns that a text keeps: a path is cut last


def text_table(summary: ModelSummary) -> str:
    """The table in at most 120 columns, and the totals below it."""
    rows = [HEAD, *[_cells(*line) for line in _lines(summary.rows)]]
    widths = _widths(rows)
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = ["  ".join(map(_fitted, row, widths, range(len(row)))).rstrip() for row in rows]
    return "\n".join([lines[0], rule, *lines[1:], rule, *totals(summary)])


def totals(summary: ModelSummary) -> list[str]:
    """The lines below the table."""
    state = f"; state {bytes_text(summary.state_bytes)}" if summary.state_bytes else ""
    return [
        f"parameters  {summary.parameters:,}, {bytes_text(summary.parameter_bytes)}{state}",
        f"FLOPs       {scaled(summary.flops).strip()} of a forward call, of these "
        f"{scaled(summary.product_flops).strip()} in matrix products and convolutions",
        f"activations {bytes_text(summary.activation_bytes)}, at most "
        f"{bytes_text(summary.peak_bytes)} at one time",
    ]


def html_table(summary: ModelSummary) -> str:
    """The table for a notebook."""
    head = "".join([f"<th style='text-align:left'>{name}</th>" for name in HEAD])
    body = []
    for line in _lines(summary.rows):
        cells = []
        for i, cell in enumerate(_cells(*line)):
            style = "left" if i < TEXTS else "right"
            cells.append(f"<td style='text-align:{style}'>{html.escape(cell)}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    below = "<br>".join([html.escape(line) for line in totals(summary)])
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table><p>{below}</p>"
    )


# ---- lines ----

Line = tuple["SummaryRow", int]  # a row; how many alike ones it stands for, 0 for a plain one


def _lines(rows: Sequence[SummaryRow]) -> Iterator[Line]:
    """The rows, those of three and more alike layers in a row as one line and the first's rows."""
    at = 0
    while at < len(rows):
        end = _end(rows, at)
        start, count = end, 1
        while start < len(rows) and _alike(rows[at:end], rows[start : _end(rows, start)]):
            start, count = _end(rows, start), count + 1
        if count >= 3:
            yield rows[at], count
            yield from _lines(rows[at + 1 : end])
            at = start
        else:
            yield rows[at], 0
            at += 1


def _end(rows: Sequence[SummaryRow], at: int) -> int:
    """Where the rows end that lie in row `at`."""
    inside = itertools.takewhile(lambda r: r.level > rows[at].level, rows[at + 1 :])
    return at + 1 + len(list(inside))


def _alike(a: Sequence[SummaryRow], b: Sequence[SummaryRow]) -> bool:
    """Whether two blocks of rows differ in nothing but the number at the end of their path."""
    (parent, _, first), (other, _, second) = a[0].path.rpartition("."), b[0].path.rpartition(".")
    if len(a) != len(b) or parent != other or not (first.isdigit() and second.isdigit()):
        return False
    return all(_facts(x, a[0].path) == _facts(y, b[0].path) for x, y in zip(a, b))


def _facts(row: SummaryRow, top: str) -> tuple[object, ...]:
    own = [(name.rpartition(".")[2], aval) for name, aval in row.parameters.items()]
    sizes = (row.count, row.nbytes, row.flops)
    return row.path[len(top) :], row.level, row.layer, row.inputs, row.outputs, *own, *sizes


def _cells(row: SummaryRow, alike: int) -> tuple[str, ...]:
    last = row.path.rpartition(".")[2]
    path, layer = row.path or "(model)", row.layer
    if alike:
        path, layer = (
            f"{path}..{int(last) + alike - 1}",
            f"{alike} alike, each{': ' if layer else ''}{layer}",
        )
    own = [f"{n.rpartition('.')[2]}{list(a.shape)}" for n, a in row.parameters.items()]
    return (
        path,
        layer,
        _shown(row.inputs) if row.inputs or row.outputs or not row.layer else "(not called)",
        _shown(row.outputs),
        " ".join(own).replace(", ", ","),
        f"{row.count:,}" if row.count else "",
        bytes_text(row.nbytes) if row.nbytes else "",
        scaled(row.flops) if row.flops else "",
    )


def _shown(avals: Sequence[Aval]) -> str:
    return " ".join(map(str, avals))


def _widths(rows: Sequence[tuple[str, ...]]) -> list[int]:
    """The widths of the columns; the widest texts are cut until a line fits."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    while sum(widths) + 2 * (len(widths) - 1) > WIDTH:
        room = [w - least for w, least in zip(widths, LEAST)]
        widths[max(range(TEXTS), key=lambda i: (room[i] > 0, widths[i]))] -= 1
    return widths


def _fitted(cell: str, width: int, column: int) -> str:
    if column >= TEXTS:
        return cell.rjust(width)
    if len(cell) > width:  # the end of a path says most, the beginning of other texts
        cell = f"…{cell[len(cell) - width + 1 :]}" if column == 0 else f"{cell[: width - 1]}…"
    return cell.ljust(width)
