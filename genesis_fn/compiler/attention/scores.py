"""What the scores of a softmax consist of: scale, mask and bias, and what of it is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from genesis_fn.compiler.attention import polynomials as poly
from genesis_fn.compiler.attention.axes import AxisMap, LogicalAxis, Run, members
from genesis_fn.compiler.attention.masks import LOWEST_SCORE, Band, Condition, band_of, conjuncts
from genesis_fn.compiler.attention.polynomials import Polynomial
from genesis_fn.compiler.attention.region import ScoreRegion
from genesis_fn.compiler.attention.values import FLOATS
from genesis_fn.compiler.known_values import KnownValues
from genesis_fn.compiler.simplify.rewriter import rounded
from genesis_fn.core import dtypes
from genesis_fn.core.jaxpr import Var
from genesis_fn.primitives import elementwise as ew
from genesis_fn.primitives.factories import full_p

# A bias that is lower than this for all keys of a query is a mask that hides all of them. The
# kernels' log-sum-exp would have too few digits for a backward pass.
LOWEST_BIAS = -1e3
_SCORE = 4  # what an absorbed score is less than


@dataclass(frozen=True, slots=True)
class BiasTerm:
    """A term of the scores: an array and its axes. `moderate` says that every query has a key for
    which it is finite and not below LOWEST_BIAS."""

    var: Var
    axes: AxisMap
    factor: float
    moderate: bool


@dataclass(slots=True)
class ScoreForm:
    """scores = scale * product + biases where all conditions hold, else `fill`.

    The band is of the conditions that are known, `conditions` are the others. With `may_be_lost`
    some query may see no key. `learned_only` says that the biases have to be
    parameters: one that is a mask, too, would be as low as `fill`. A forward pass can have the
    masks as a part of such a bias, if its hidden scores all are `low`.
    """

    scale: float = 0.0
    band: Band = Band(None, None)
    conditions: list[Condition] = field(default_factory=list)
    selected: frozenset[Condition] = frozenset()
    fill: float | None = None
    biases: list[BiasTerm] = field(default_factory=list)
    may_be_lost: bool = False
    learned_only: bool = False
    low: float | None = None
    absorbs: float = -math.inf  # biases below, or of this value, leave nothing of a score

    @property
    def careful(self) -> bool:
        """Whether the biases may hide all keys of a query."""
        return not all([b.moderate for b in self.biases])


def _band_of_all(seen: list[np.ndarray], size: list[int]) -> tuple[Band | None, bool]:
    """(the band that masks are together, whether every query sees a key)."""
    together = np.logical_and.reduce(np.broadcast_arrays(*seen))
    whole = np.broadcast_to(together, size)
    return band_of(whole), bool(whole.any(1).all())


@dataclass(slots=True)
class _Parts:
    """What `_collect` has found."""

    scale: float = 0.0
    conditions: list[Condition] = field(default_factory=list)
    fills: set[float] = field(default_factory=set)
    terms: list[tuple[poly.Symbol, float]] = field(default_factory=list)
    factor: poly.Symbol | None = None  # a mask that the product is multiplied by
    after_mask: bool = False  # a term is added to what is masked already


def score_form(region: ScoreRegion, query: Run, key: Run, values: KnownValues) -> ScoreForm | None:
    """The form of a region's scores, whose queries and keys are counted along `query` and `key`;
    None if they are not of that form, or not surely."""
    parts = _Parts()
    assert region.scores is not None
    if not _collect(region, region.scores, 1.0, parts) or not parts.scale:
        return None
    form = ScoreForm(scale=parts.scale, selected=frozenset(parts.conditions))
    seen: list[np.ndarray] = []
    conditions = list(parts.conditions)
    known_masks: list[tuple[BiasTerm, np.ndarray]] = []
    for s, factor in parts.terms:
        var, axes = s.key
        if not members(axes) <= region.product.depends or var.aval.dtype not in FLOATS:
            return None
        array = values.of(var)
        known = _by_position(array, axes, query, key)
        if known is not None:
            scaled = known * factor
            if values.once(("mask", var, factor), lambda: _is_mask(scaled)):
                known_masks.append((BiasTerm(var, axes, factor, False), scaled))
                continue
        found = _infinite_mask(region, var, axes, factor)
        if found is not None:
            conditions += found
            parts.fills.add(-math.inf)
            continue
        moderate = _is_moderate(region, var, axes, array, factor)
        form.biases.append(BiasTerm(var, axes, factor, moderate))
    if parts.factor is not None and not _hides_what_it_zeroes(
        _by_position(values.of(parts.factor.key[0]), parts.factor.key[1], query, key),
        [known for _, known in known_masks],
    ):
        return None
    if parts.factor is not None and form.careful:
        return None
    for term, known in known_masks:
        if form.careful and np.isfinite(known).all():
            form.biases.append(term)  # as low as the others: the sum says which keys are seen
        else:
            seen.append(known == 0)
    from_terms, closed = bool(seen), []
    for c in dict.fromkeys(conditions):
        known = _by_position(values.of(c.var), c.axes, query, key)
        if known is None:
            form.conditions.append(c)
        else:
            closed.append(c)
            seen.append(~known if c.negated else known)
    form.may_be_lost = bool(form.conditions)
    if seen:
        size = [math.prod([a.size for a in r]) for r in (query, key)]
        of = (tuple(closed), tuple([t for t, _ in known_masks]), query, key)
        band, every_row = values.once(of, lambda: _band_of_all(seen, size))
        if band is not None:
            form.band = band
        elif from_terms:
            return None
        else:
            form.conditions += closed
            form.may_be_lost |= not every_row
    form.learned_only = form.careful and any([math.isfinite(f) for f in parts.fills])
    kinds = [region.product.key.aval.dtype, *[b.var.aval.dtype for b in form.biases]]
    kind = max(kinds, key=lambda k: k.itemsize)
    # Half a unit in the last place is more than the score.
    form.absorbs = -2 * _SCORE / float(dtypes.finfo(kind).eps)
    fill = next(iter(parts.fills), 0.0)
    if form.learned_only and parts.fills == {fill} and not parts.after_mask:
        form.low = fill if fill <= form.absorbs else None
    if form.may_be_lost:
        if len(parts.fills) != 1:
            return None
        (form.fill,) = parts.fills
        if parts.after_mask and form.fill != -math.inf:
            return None
    return form


def _collect(region: ScoreRegion, x: Polynomial, factor: float, parts: _Parts) -> bool:
    """Take a polynomial apart; False if it is not of the form."""
    for m, c in x.items():
        if not poly.depends(m) & region.key:
            continue  # the same for all keys of a query
        if len(m) == 2 and (region.product, 1) in m:
            ((factor_of, once),) = m - {(region.product, 1)}
            if once != 1 or factor_of.kind != "outside" or parts.scale:
                return False
            parts.scale, parts.factor = c * factor, factor_of
            continue
        if len(m) != 1:
            return False
        ((s, power),) = m
        c *= factor
        if power != 1:
            return False
        if s == region.product:
            if parts.factor is not None:
                return False
            parts.scale += c
        elif s.kind == "masked":
            conditions, inner, fill = s.key
            if c <= 0 or not fill * c <= LOWEST_SCORE or parts.scale:
                return False
            parts.conditions += conditions
            parts.fills.add(fill * c)
            keyed = [n for n in x if poly.depends(n) & region.key]
            parts.after_mask |= len(keyed) > 1
            if not _collect(region, dict(inner), c, parts):
                return False
        elif s.kind == "outside":
            parts.terms.append((s, c))
        else:
            return False
    return True


def _by_position(
    values: np.ndarray | None, axes: AxisMap, query: Run, key: Run
) -> np.ndarray | None:
    """Values as [queries, keys], either axis perhaps 1, if they depend on nothing else."""
    if values is None:
        return None
    flat: list[LogicalAxis] = [a for r in axes for a in r]
    if not set(flat) <= {*query, *key}:
        return None
    wanted = [a for a in (*query, *key) if a in flat]
    rows, columns = [[a for a in r if a in flat] for r in (query, key)]
    if (rows and rows != list(query)) or (columns and columns != list(key)):
        return None
    array = values.reshape([a.size for a in flat]).transpose([flat.index(a) for a in wanted])
    return array.reshape([math.prod([a.size for a in r]) for r in (rows, columns)])


def _is_mask(values: np.ndarray) -> bool:
    """Whether a term of scores only says which keys are seen."""
    return bool(((values == 0) | (values <= LOWEST_SCORE)).all())


def _hides_what_it_zeroes(factor: np.ndarray | None, masks: list[np.ndarray]) -> bool:
    """Whether a factor of the product is zero or one, and zero only for keys that are masked."""
    if factor is None or not ((factor == 0) | (factor == 1)).all() or not masks:
        return False
    total = sum(np.broadcast_arrays(*masks))
    return bool(((total <= LOWEST_SCORE) | (factor == 1)).all())


def _infinite_mask(
    region: ScoreRegion, x: Var, axes: AxisMap, factor: float
) -> list[Condition] | None:
    """The conditions of a term that is zero where they hold, else minus infinity."""
    e = region.index.producers.get(x)
    if e is None or e.prim is not ew.select_p or factor <= 0:
        return None
    a, b = [_constant(region, i, x) for i in e.ins[1:]]
    negated = (a, b) == (-math.inf, 0)
    if not negated and (a, b) != (0, -math.inf):
        return None
    return list(conjuncts(e.ins[0], axes, region.index.producers, negated))


def _constant(region: ScoreRegion, x: object, result: Var) -> float | None:
    """The number that an operand is everywhere, in the dtype of the result."""
    if type(x) is not Var:
        return rounded(x, result.aval.dtype)
    e = region.index.producers.get(x)
    return e.params["value"] if e is not None and e.prim is full_p else None


def _is_moderate(
    region: ScoreRegion, x: Var, axes: AxisMap, values: np.ndarray | None, factor: float
) -> bool:
    """Whether every query surely has a key for which a bias is finite and not low."""
    if values is None:
        e = region.index.producers.get(x)
        if e is None or e.prim is not ew.select_p:
            return False
        found = [_constant(region, i, x) for i in e.ins[1:]]
        return all([i is not None and abs(i * factor) <= -LOWEST_BIAS for i in found])
    wide = values.astype(np.float64) * factor
    if np.isnan(wide).any() or (wide == math.inf).any():
        return False
    keys = tuple([d for d, r in enumerate(axes) if set(r) & region.key])
    return bool((wide.max(axis=keys) >= LOWEST_BIAS).all())
