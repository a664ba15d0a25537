"""Which fields of a class are children of its nodes, and which are static."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from genesis_fn.core.errors import TreeError


def fields_of(
    kind: type,
    data_fields: Sequence[str] | None,
    meta_fields: Sequence[str] | None,
    drop_fields: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(children, static fields) by name, as `register_dataclass` takes them. Raises TypeError or
    TreeError where they do not fit the class."""
    plain = not dataclasses.is_dataclass(kind)
    if plain and (data_fields is None or meta_fields is None):
        raise TypeError(
            f"register_dataclass: {kind.__name__} is no dataclass: name its data_fields and "
            "meta_fields"
        )
    known = () if plain else dataclasses.fields(kind)
    kept = [f for f in known if f.name not in drop_fields]
    unset = [f.name for f in kept if not f.init]
    if unset and data_fields is None and meta_fields is None:
        raise TreeError(
            f"{kind.__name__}: {unset} are not arguments of __init__; name them in drop_fields, "
            "or list data_fields and meta_fields"
        )
    fields = [f for f in kept if f.init]
    if meta_fields is None:
        meta_fields = [f.name for f in fields if f.metadata.get("static")]
        if data_fields is not None:
            meta_fields = [f.name for f in fields if f.name not in data_fields]
    if data_fields is None:
        data_fields = [f.name for f in fields if f.name not in meta_fields]
    names, given = {f.name for f in fields}, {*data_fields, *meta_fields}
    if both := {*data_fields} & {*meta_fields}:
        raise TreeError(
            f"{kind.__name__}: data_fields and meta_fields must not overlap, both name "
            f"{sorted(both)}"
        )
    if names != given and not plain:
        raise TreeError(
            f"{kind.__name__}: data_fields and meta_fields must name each field once; "
            f"left out {sorted(names - given)}, unknown {sorted(given - names)}"
        )
    return tuple(data_fields), tuple(meta_fields)
