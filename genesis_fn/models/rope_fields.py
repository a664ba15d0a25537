"""Rotary positions in a config.json: `rope_theta` with `rope_scaling`, the older names, and
`rope_parameters`, the newer one, to a base and a scaling, and back."""

from __future__ import annotations

import dataclasses
from typing import Any

from genesis_fn.extend import brief
from genesis_fn.models.field_checks import Check, base, boolean, number_within, positive_int
from genesis_fn.nn import DynamicScaling, LinearScaling, Llama3Scaling, RotaryScaling, YarnScaling

ROPE_FIELDS = (
    "rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings",
)  # fmt: skip
_THETA = 1e4  # transformers' for an absent rope_theta
_TABLES = ("rope_scaling", "rope_parameters")
_ORIGINAL = "original_max_position_embeddings"

# Wider than any that was trained; beyond them, frequencies are no finite numbers.
_positive = number_within(1e-6, 1e9)
_not_negative = number_within(0, 1e9)

# {type: {field: its check}}, with the types of transformers whose frequencies are computed here.
_FIELDS: dict[str, dict[str, Check]] = {
    "default": {},
    "linear": {"factor": _positive},
    "dynamic": {"factor": _positive, _ORIGINAL: positive_int},
    "yarn": {
        "factor": _positive, _ORIGINAL: positive_int, "beta_fast": _positive,
        "beta_slow": _positive, "attention_factor": _positive, "mscale": _not_negative,
        "mscale_all_dim": _not_negative, "truncate": boolean,
    },
    "llama3": {
        "factor": _positive, "low_freq_factor": _positive, "high_freq_factor": _positive,
        _ORIGINAL: positive_int,
    },
}  # fmt: skip
_SCALINGS: dict[type, str] = {
    LinearScaling: "linear", DynamicScaling: "dynamic", YarnScaling: "yarn",
    Llama3Scaling: "llama3",
}  # fmt: skip


def read_rope(
    values: dict[str, Any], max_position_embeddings: int
) -> tuple[float, RotaryScaling | None]:
    """(base, scaling) of a config.json's fields.

    Raises ValueError naming a field that is malformed, not computed here, or says something else
    than another.
    """
    tables = {n: values[n] for n in _TABLES if values.get(n) is not None}
    thetas: dict[str, Any] = {}
    if values.get("rope_theta") is not None:
        thetas["rope_theta"] = values["rope_theta"]
    original = values.get(_ORIGINAL)
    if original is not None:
        positive_int(_ORIGINAL, original)
    scalings: dict[str, RotaryScaling | None] = {}
    for name, table in tables.items():
        fields, rope_type = _read_table(name, table)
        if "rope_theta" in fields:
            thetas[f"{name}.rope_theta"] = fields.pop("rope_theta")
        if _ORIGINAL in _FIELDS[rope_type] and original is not None:
            if fields.setdefault(_ORIGINAL, original) != original:
                raise ValueError(f"{_ORIGINAL} and {name}.{_ORIGINAL} disagree")
        scalings[name] = _scaling(name, rope_type, fields, max_position_embeddings)
    for name, theta in thetas.items():
        base(name, theta)
    if len({*map(float, thetas.values())}) > 1 or len({*scalings.values()}) > 1:
        raise ValueError(f"{' and '.join({**thetas, **tables})} disagree")
    return float(next(iter(thetas.values()), _THETA)), next(iter(scalings.values()), None)


def _read_table(name: str, table: Any) -> tuple[dict[str, Any], str]:
    """(the checked fields of a table, its type); nulls are absent."""
    if not isinstance(table, dict):
        raise ValueError(f"{name} is {brief(table)}, expected an object")
    types = [table[k] for k in ("rope_type", "type") if table.get(k) is not None]
    for found in types:
        if not isinstance(found, str) or found not in _FIELDS:
            raise ValueError(
                f"{name} is of type {brief(found)}, which this library does not honour; it "
                f"computes {', '.join(map(repr, _FIELDS))}"
            )
    rope_type = types[0] if types else "default"
    if len({*types}) > 1:
        raise ValueError(f"{name} is of type {rope_type!r} and of type {types[1]!r}")
    fields: dict[str, Any] = {}
    for field, value in table.items():
        checks = _FIELDS[rope_type]
        label = f"{name}.{brief(field)[1:-1]}"
        if field == "rope_theta" and value is not None:
            fields[field] = value
        elif field in checks and (value is not None or field == "truncate"):
            checks[field](label, value)
            fields[field] = value
        elif field == "partial_rotary_factor" and not isinstance(value, bool) and value == 1:
            continue
        elif field in ("rope_type", "type", "finetuned") or value is None:
            continue  # "finetuned" says how the model came to be
        else:
            raise ValueError(f"{label} is {brief(value)}, which this library does not honour")
    inferred = rope_type == "yarn" and "factor" in table  # a null: by the lengths of contexts
    if "factor" in _FIELDS[rope_type] and "factor" not in fields and not inferred:
        raise ValueError(f"{name}.factor is missing, which type {rope_type!r} needs")
    return fields, rope_type


def _scaling(
    name: str, rope_type: str, fields: dict[str, Any], max_position_embeddings: int
) -> RotaryScaling | None:
    """The scaling of a table's checked fields, with transformers' values of absent ones."""
    if rope_type == "default":
        return None
    original = fields.pop(_ORIGINAL, max_position_embeddings)
    if rope_type == "linear":
        return LinearScaling(float(fields["factor"]))
    if rope_type == "dynamic":
        if original != max_position_embeddings:
            raise ValueError(
                f"{_ORIGINAL} of {name} is {original}, but type 'dynamic' is computed from "
                f"max_position_embeddings, {max_position_embeddings}"
            )
        return DynamicScaling(float(fields["factor"]), original)
    if rope_type == "yarn":
        fields.setdefault("factor", max_position_embeddings / original)
        numbers: dict[str, Any] = {n: v if n == "truncate" else float(v) for n, v in fields.items()}
        return YarnScaling(original_max_position_embeddings=original, **numbers)
    for field in ("low_freq_factor", "high_freq_factor"):
        if field not in fields:
            raise ValueError(f"{name}.{field} is missing, which type 'llama3' needs")
    if fields["high_freq_factor"] <= fields["low_freq_factor"]:
        raise ValueError(
            f"{name}.high_freq_factor is {brief(fields['high_freq_factor'])}, expected one above "
            f"low_freq_factor, {brief(fields['low_freq_factor'])}"
        )
    numbers = {n: float(v) for n, v in fields.items()}
    return Llama3Scaling(original_max_position_embeddings=original, **numbers)


def written_rope(
    theta: float, scaling: RotaryScaling | None, max_position_embeddings: int
) -> dict[str, Any]:
    """The fields that `read_rope` reads as these. Raises ValueError for a scaling that transformers
    lacks."""
    if scaling is None:
        return {"rope_theta": theta}
    rope_type = _SCALINGS.get(type(scaling))
    if rope_type is None:
        raise ValueError(f"rope_scaling is {brief(scaling)}, which no config.json describes")
    assert dataclasses.is_dataclass(scaling)
    fields = {n: v for n, v in dataclasses.asdict(scaling).items() if v is not None}
    if rope_type == "dynamic" and fields.pop(_ORIGINAL) != max_position_embeddings:
        raise ValueError(
            f"rope_scaling is {brief(scaling)}, but transformers computes it from "
            f"max_position_embeddings, {max_position_embeddings}"
        )
    return {"rope_theta": theta, "rope_scaling": {"rope_type": rope_type, **fields}}
