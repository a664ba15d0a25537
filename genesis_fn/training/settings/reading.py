"""Settings of a file, TOML or YAML, and of a command line, typed and checked by their names."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from genesis_fn.core.errors import FileError
from genesis_fn.core.files import brief, read_plain
from genesis_fn.io.safetensors import atomic_write
from genesis_fn.training.monitoring.amounts import read_size
from genesis_fn.training.parallel import axes
from genesis_fn.training.settings.sections import TrainingSettings

_LARGEST = 1 << 20  # bytes of a file
_MOST_ALIASES = 100  # of a YAML file, whose anchors can make thousands of values of a line


@dataclasses.dataclass(frozen=True)
class Key:
    """A setting: its dotted name, what it accepts, its default, its help, and whether it is fixed
    when a run has begun."""

    name: str
    kind: Any
    default: Any
    help: str
    fixed: bool


def keys(section: type = TrainingSettings, prefix: str = "") -> Iterator[Key]:
    """Every setting, in order.

    >>> from genesis_fn.training.settings import reading
    >>> next(reading.keys()).name
    'out'
    """
    hints = typing.get_type_hints(section)
    for field in dataclasses.fields(section):
        name, kind = prefix + field.name, hints[field.name]
        if dataclasses.is_dataclass(kind):
            yield from keys(kind, f"{name}.")  # pyright: ignore[reportArgumentType]
        else:
            about = field.metadata
            yield Key(name, kind, field.default, about["help"], about["fixed"])


# What other trainers call settings.
_MEANT = {
    "learning_rate": "optim.lr", "max_steps": "steps", "num_train_epochs": "epochs",
    "batch_size": "batch", "per_device_train_batch_size": "batch", "iters": "steps",
    "gradient_accumulation_steps": "accumulate", "grad_accum": "accumulate", "bf16": "compute",
    "gradient_checkpointing": "remat", "grad_checkpoint": "remat", "output_dir": "out",
    "max_length": "data.length", "max_seq_length": "data.length", "max_seq_len": "data.length",
    "warmup_ratio": "optim.warmup", "warmup_steps": "optim.warmup", "max_grad_norm": "optim.clip",
    "lr_scheduler_type": "optim.schedule", "lora_r": "lora.r", "rank": "lora.r",
    "lora_alpha": "lora.alpha", "lora_dropout": "lora.dropout", "eval_steps": "evaluate.every",
    "save_steps": "checkpoint.every", "save_total_limit": "checkpoint.keep",
    "model_name_or_path": "model.path", "assistant_only_loss": "data.train_on",
}  # fmt: skip
KEYS = {key.name: key for key in keys()}


def read_settings(
    path: str | None, given: Mapping[str, Any], base: TrainingSettings | None = None
) -> TrainingSettings:
    """The settings of a file, with those that are given in place of the file's.

    Args:
        path: a .toml, .yaml or .yml file; None: none.
        given: {dotted name: value, or a text of one}.
        base: what holds where neither says anything.

    Raises:
        FileError: the file is malformed; ValueError: a name is unknown, which names the nearest,
            or a value is not accepted. Both name the file.

    >>> from genesis_fn.training.settings.reading import read_settings
    >>> read_settings(None, {"optim.lr": "3e-4", "steps": "10"}).optim.lr
    0.0003
    """
    values: dict[str, Any] = {}
    if path is not None:
        for name, value in _flat(_read(path), "", path):
            values[name] = _typed(name, value, path)
    for name, value in given.items():
        values[name] = _typed(name, value, "the command line")
    settings = _replaced(base or TrainingSettings(), values)
    check(settings)
    return settings


def _replaced(settings: Any, values: Mapping[str, Any]) -> Any:
    """TrainingSettings with others in the place of some."""
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, dot, rest = name.partition(".")
        if dot:
            inner.setdefault(section, {})[rest] = value
        else:
            own[name] = value
    for section, found in inner.items():
        own[section] = _replaced(getattr(settings, section), found)
    return dataclasses.replace(settings, **own)


# ---- files ----


def _read(path: str) -> dict[str, Any]:
    raw = read_plain(path, _LARGEST)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise FileError(f"{path}: not UTF-8") from None
    if path.endswith(".toml"):
        try:
            return tomllib.loads(text)
        except ValueError as error:  # of TOML, or of Python for an integer of many digits
            raise FileError(f"{path}: not TOML: {error}") from None
        except RecursionError:
            raise FileError(f"{path}: nested too deeply") from None
    if path.endswith((".yaml", ".yml")):
        return _yaml(text, path)
    raise FileError(f"{path}: settings are read of .toml, .yaml and .yml files")


def _yaml(text: str, path: str) -> dict[str, Any]:
    import yaml

    class Loader(yaml.SafeLoader):
        """Scalars stay texts, which the settings' own types read: `no` is no boolean where a text
        is asked for, and 3e-4 a number. A name that stands twice is refused."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[Any] = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise FileError(f"{path}: line {key.start_mark.line + 1}: expected a name")
                name = self.construct_object(key, deep=True)
                if name in seen:
                    line = key.start_mark.line + 1
                    raise FileError(f"{path}: line {line}: {name} is there twice")
                seen.add(name)
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in found if tag.endswith(":null")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    if len(re.findall(r"(?:^|[\s\[{,:-])\*\w", text)) > _MOST_ALIASES:
        raise FileError(f"{path}: more than {_MOST_ALIASES} aliases")
    try:
        found = yaml.load(text, Loader)
    except FileError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        raise FileError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise FileError(f"{path}: nested too deeply") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise FileError(f"{path}: {brief(found)} are no settings, expected names and values")
    return found


def _flat(values: Mapping[Any, Any], prefix: str, path: str) -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of nested sections, which may be written dotted too."""
    for name, value in values.items():
        whole = f"{prefix}{name}"
        if isinstance(value, Mapping) and whole not in KEYS:
            if not any(k.startswith(f"{whole}.") for k in KEYS):
                raise ValueError(f"{path}: there is no section {whole}{_nearest(whole)}")
            yield from _flat(value, f"{whole}.", path)
        else:
            yield whole, value


def write_settings(path: str, settings: TrainingSettings) -> None:
    """Write all settings as YAML, each with its help; `read_settings` gives them back.

    Raises OSError naming the file.
    """
    lines = []
    section = ""
    for key in KEYS.values():
        first, dot, name = key.name.rpartition(".")
        if first != section:
            section = first
            lines.append(f"\n{section}:")
        value = _yaml_text(value_of(settings, key.name))
        lines.append(f"{'  ' if dot else ''}{name}: {value}  # {key.help}")
    with atomic_write(path) as f:
        f.write(("\n".join(lines).lstrip() + "\n").encode())


def value_of(settings: TrainingSettings, name: str) -> Any:
    """The value of a dotted name."""
    found: Any = settings
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _yaml_text(value: Any) -> str:
    import yaml

    if isinstance(value, tuple):
        return f"[{', '.join(_yaml_text(v) for v in value)}]"
    if isinstance(value, str):
        text = yaml.safe_dump(value, default_style='"', width=math.inf, allow_unicode=True)
        return text.removesuffix("\n")
    if value is None:
        return "null"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)


# ---- values ----


def _typed(name: str, value: Any, source: str) -> Any:
    """The value of a setting, of the type that its annotation says."""
    key = KEYS.get(name)
    if key is None:
        if any(k.startswith(f"{name}.") for k in KEYS):
            inside = ", ".join(k for k in KEYS if k.startswith(f"{name}."))
            raise ValueError(f"{source}: {name} is a section; its settings are {inside}")
        raise ValueError(f"{source}: there is no setting {name}{_nearest(name)}")
    if name == "parallel" and isinstance(value, Mapping):  # a table of a file
        value = axes.as_text(value)
    try:
        return _converted(key.kind, value)
    except ValueError:
        raise ValueError(
            f"{source}: {name} is {brief(value)}, expected {accepted(key.kind)}"
        ) from None


def _converted(kind: Any, value: Any) -> Any:
    """The value as of a type. Raises ValueError."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if value in arguments:
            return value
        raise ValueError
    if origin in (types.UnionType, typing.Union):
        if value is None or value == "none" or value == "null":
            return None
        (inner,) = [a for a in arguments if a is not type(None)]
        return _converted(inner, value)
    if origin is tuple:
        values = [value] if isinstance(value, str | int | float) else value
        if not isinstance(values, Sequence):
            raise ValueError
        return tuple(_converted(arguments[0], v) for v in values)
    return _SCALARS[kind](value)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    found = {"true": True, "false": False}.get(value.lower() if isinstance(value, str) else "")
    if found is None:
        raise ValueError
    return found


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d[\d_]{0,30}", value.strip()):
        return int(value)
    raise ValueError


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    try:
        found = float(value)
    except OverflowError:
        raise ValueError from None
    if not math.isfinite(found):
        raise ValueError
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


_SCALARS: dict[Any, Callable[[Any], Any]] = {
    bool: _boolean,
    int: _integer,
    float: _number,
    str: _text,
}


def accepted(kind: Any) -> str:
    """What a type accepts, for people."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (types.UnionType, typing.Union):
        (inner,) = [a for a in arguments if a is not type(None)]
        return f"{accepted(inner)}, or none"
    if origin is tuple:
        return f"a list, of each {accepted(arguments[0])}"
    return {bool: "true or false", int: "an integer", float: "a number", str: "a text"}[kind]


def _nearest(name: str) -> str:
    """What may have been meant."""
    last = {**_MEANT, **{k.rpartition(".")[2]: k for k in reversed(KEYS)}}
    own = name.rpartition(".")[2]
    if own in last:
        return f"; it is {last[own]}"
    sections = {k.partition(".")[0] for k in KEYS if "." in k}
    found = difflib.get_close_matches(name, [*KEYS, *sections], 1, 0.6)
    if not found:
        found = [last[k] for k in difflib.get_close_matches(own, last, 1, 0.5)]
    return f"; did you mean {found[0]}?" if found else ""


# ---- what is in range ----

# Of others, 10**9 or 1e30, which 32 bits hold; `data.prefetch` are batches in memory.
_AT_MOST = {"data.prefetch": 1024, "seed": 2**63 - 1}
_MOST_TOKENS = 1 << 28


def check(settings: TrainingSettings) -> None:
    """Raise ValueError for settings that no run can have; it names them."""
    s = settings
    for name in KEYS:
        value = value_of(s, name)
        if "" in (value if isinstance(value, tuple) else [value]) and name != "sample.prompts":
            raise ValueError(f"{name} is an empty text")
    at_least = {
        1: ["steps", "epochs", "batch", "accumulate", "data.length", "lora.r", "checkpoint.keep",
            "log.every", "sample.max_new_tokens", "spike.window"],
        0: ["seed", "data.shuffle", "data.prefetch", "optim.lr", "optim.warmup", "optim.final_lr",
            "optim.weight_decay", "optim.eps", "optim.clip", "evaluate.every", "evaluate.batches",
            "evaluate.patience", "evaluate.min_delta", "checkpoint.every",
            "checkpoint.best", "sample.every", "sample.temperature", "spike.deviations"],
    }  # fmt: skip
    for least, names in at_least.items():
        for name in names:
            value = value_of(s, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}, expected {least} or more")
    for name in KEYS:
        value = value_of(s, name)
        most = _AT_MOST.get(name, 10**9 if isinstance(value, int) else 1e30)
        for number in value if isinstance(value, tuple) else [value]:
            if isinstance(number, int | float) and number > most:
                raise ValueError(f"{name} is {number}, expected {most:g} at most")
    if s.batch * s.data.length > _MOST_TOKENS:
        raise ValueError(
            f"batch is {s.batch} and data.length {s.data.length}: a step has {_MOST_TOKENS:,} "
            "tokens at most"
        )
    if s.lora.alpha <= 0:
        raise ValueError(f"lora.alpha is {s.lora.alpha}, expected a number above 0")
    for name in ("ema", "lora.dropout", "optim.b1", "optim.b2"):
        value = value_of(s, name)
        if not 0 <= value < 1:
            raise ValueError(f"{name} is {value}, expected a number from 0 to below 1")
    if s.batch % s.accumulate:
        raise ValueError(
            f"batch is {s.batch} and accumulate {s.accumulate}: a batch is computed in equal parts"
        )
    if s.memory_budget is not None:
        try:
            read_size(s.memory_budget, math.inf)
        except ValueError as error:
            raise ValueError(f"memory_budget: {error}") from None
    if s.parallel is not None:
        try:
            axes.parse(s.parallel)
        except ValueError as error:
            raise ValueError(f"parallel: {error}") from None
    if s.data.weights and len(s.data.weights) != len(s.data.train):
        raise ValueError(
            f"data.weights has {len(s.data.weights)} numbers for {len(s.data.train)} of data.train"
        )
    if any(w <= 0 for w in s.data.weights):
        raise ValueError(f"data.weights are {list(s.data.weights)}, expected numbers above 0")


def changed(before: TrainingSettings, now: TrainingSettings) -> list[tuple[str, Any, Any]]:
    """The fixed settings in which two runs differ: (name, before, now)."""
    pairs = ((k, value_of(before, k.name), value_of(now, k.name)) for k in KEYS.values() if k.fixed)
    return [(key.name, old, new) for key, old, new in pairs if old != new]
