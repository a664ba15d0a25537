"""The chat templates and special tokens of a model's folder, from where transformers reads them."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from genesis_fn.core.errors import FileError
from genesis_fn.core.files import brief, read_json, read_plain

_LARGEST_TEMPLATE = 1 << 20  # bytes; those of models have some thousand
_LARGEST_JSON = 1 << 26
_MOST_TEMPLATES = 100
_CONFIG = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_FOLDER = "additional_chat_templates"

# The names under which templates see special tokens.
TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# What transformers' tokenizers have where tokenizer_config.json says nothing; null means none.
_GPT2: dict[str, str] = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
_LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_QWEN2: dict[str, str] = dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>")
_DEFAULTS: dict[str, dict[str, str]] = {
    "GPT2Tokenizer": _GPT2,
    "LlamaTokenizer": _LLAMA,
    "Qwen2Tokenizer": _QWEN2,
}


class TemplateText(NamedTuple):
    """A template, and where it stands, for messages."""

    text: str
    place: str


def read_tokenizer_config(folder: str) -> dict[str, Any]:
    """The contents of tokenizer_config.json; {} where there is none."""
    path = os.path.join(folder, _CONFIG)
    return read_json(path, _LARGEST_JSON) if os.path.lexists(path) else {}


def read_templates(folder: str) -> dict[str, TemplateText]:
    """The templates of a folder by name, of which one alone is "default".

    Files have precedence over tokenizer_config.json. Raises FileError where there are none.
    """
    found: dict[str, TemplateText] = {}
    file, inner = os.path.join(folder, _TEMPLATE), os.path.join(folder, _FOLDER)
    if os.path.lexists(file):
        found["default"] = _read_text(file)
    if os.path.isdir(inner):
        names = sorted(n for n in os.listdir(inner) if n.endswith(".jinja"))
        if len(names) > _MOST_TEMPLATES:
            raise FileError(f"{inner}: {len(names):,} templates, more than {_MOST_TEMPLATES}")
        for name in names:
            found[name.removesuffix(".jinja")] = _read_text(os.path.join(inner, name))
    return found or _configured(folder)


def _read_text(path: str) -> TemplateText:
    try:
        text = read_plain(path, _LARGEST_TEMPLATE).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not UTF-8: {error}") from None
    return TemplateText(text.replace("\r\n", "\n").replace("\r", "\n"), path)


def _configured(folder: str) -> dict[str, TemplateText]:
    """The templates in tokenizer_config.json: a text, or several with names."""
    path = os.path.join(folder, _CONFIG)
    value = read_tokenizer_config(folder).get("chat_template")
    if value is None:
        raise FileError(
            f"{folder}: there is no chat template, neither {_TEMPLATE} nor chat_template in "
            f"{_CONFIG}\n  models that only complete texts have none: give them a text instead of "
            f"messages, or write a {_TEMPLATE} into the folder"
        )
    if is_text(value):
        return {"default": TemplateText(value, f"{path}: chat_template")}
    pairs: list[Any] = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, list):
        pairs = [
            (x.get("name"), x.get("template")) if isinstance(x, dict) else (None, x) for x in value
        ]
    if not pairs or not all(is_text(n) and is_text(t) for n, t in pairs):
        raise FileError(
            f"{path}: chat_template is {brief(value)}, expected a text, or a list of objects with "
            "name and template"
        )
    return {n: TemplateText(t, f"{path}: chat_template {brief(n)}") for n, t in pairs}


def read_special_tokens(folder: str) -> dict[str, str]:
    """{"bos_token": ..., ...} as templates see them, without those that the folder has not."""
    path = os.path.join(folder, _CONFIG)
    config = read_tokenizer_config(folder)
    kind = str(config.get("tokenizer_class", "")).removesuffix("Fast")
    found: dict[str, Any] = {**_DEFAULTS.get(kind, {})}
    found |= {n: _token(config[n], n, path) for n in TOKENS if n in config}
    table = os.path.join(folder, "special_tokens_map.json")
    if "added_tokens_decoder" not in config and os.path.lexists(table):
        values = read_json(table, _LARGEST_JSON)
        found |= {n: _token(values[n], n, table) for n in TOKENS if n in values}
    return {n: found[n] for n in TOKENS if found.get(n) is not None}


def _token(value: Any, name: str, path: str) -> str | None:
    """The text of a token: written as such, or as an object with its `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    if text is not None and not is_text(text):
        raise FileError(f"{path}: {name} is {brief(value)}, expected a text")
    return text


def is_text(value: Any) -> bool:
    """Whether a value is a text that UTF-8 can encode, as JSON's halves of characters cannot be."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
