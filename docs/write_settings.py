"""Writes settings.md from the code: `python docs/write_settings.py`.

Settings are the fields of `config.Config`, described in its docstring; environment variables are
the table of `core/configuration/environment.py`.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from genesis_fn.core.configuration.config import Config
from genesis_fn.core.configuration.environment import VARIABLES

HEAD = """# Settings

Written by `docs/write_settings.py` from the code; do not edit.

A setting is read as `genesis_fn.config.NAME`, set for the process by
`genesis_fn.config.update("NAME", value)` (JAX's names, `jax_debug_nans`, are known too), and for a
block in one thread by the context manager of its name (`with genesis_fn.debug_nans():`;
`matmul_precision`, `random_impl` and `check_types` have JAX's: `default_matmul_precision`,
`default_prng_impl`, `enable_checks`; `programmatic_launch` has none). Its first value comes from
the environment: `GENESIS_` and its name in capitals, flags as 1 or 0; a value that the setting does
not accept is an error at import. What changes what a function computes is part of the key of `jit`.

| setting | default | environment | meaning |
| --- | --- | --- | --- |
"""
OTHERS = """
What concerns a process as a whole is read from the environment alone:

| variable | meaning |
| --- | --- |
"""


def meanings() -> dict[str, str]:
    """{setting: its description}, from the docstring of Config."""
    section = (inspect.getdoc(Config) or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", section, re.M)
    return {name: " ".join(text.split()) for name, text in entries}


def settings() -> str:
    """The document."""
    described = meanings()
    fields = {f.name: f.default for f in dataclasses.fields(Config)}
    if described.keys() != fields.keys():
        raise ValueError(f"described are {sorted(described)}, there are {sorted(fields)}")
    text = HEAD
    for name, default in fields.items():
        variable = "" if default is None else f"`GENESIS_{name.upper()}`"
        text += f"| `{name}` | `{default!r}` | {variable} | {described[name]} |\n"
    text += OTHERS
    for name, meaning in VARIABLES.items():
        text += f"| `{name}` | {meaning} |\n"
    return text


if __name__ == "__main__":
    Path(__file__).with_name("settings.md").write_text(settings(), encoding="utf-8")
