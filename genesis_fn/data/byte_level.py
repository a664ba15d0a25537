"""Byte-level BPE tokenizers of folders without a tokenizer.json: vocab.json and merges.txt.

The two files say nothing of how a text is cut into words, which models do differently. The class
that tokenizer_config.json names does: Qwen2's and GPT-2's are made here, others are refused.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from genesis_fn.core.errors import FileError
from genesis_fn.core.files import brief, read_json, read_plain
from genesis_fn.data.chat_files import is_text, read_special_tokens, read_tokenizer_config

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

LARGEST_FILE = 100_000_000  # bytes; those of vocabularies of 250,000 entries have 20 million
_CONVERT = (
    "let transformers write one: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
)
# How a text is cut into words, as published with the models.
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def read_byte_level(folder: str) -> Tokenizer:
    """The tokenizer of a folder with vocab.json, merges.txt and tokenizer_config.json.

    Raises FileError for a folder without these, and for tokenizers of other kinds.
    """
    names = [n for n in ("vocab.json", "merges.txt") if os.path.lexists(os.path.join(folder, n))]
    if len(names) < 2:
        others = ("tokenizer.model", "tekken.json", "vocab.txt", *names)
        found = [n for n in others if os.path.lexists(os.path.join(folder, n))]
        if not found:
            raise FileNotFoundError(f"{os.path.join(folder, 'tokenizer.json')}: no such file")
        raise FileError(f"{folder}: no tokenizer.json, and {found[0]} is not read; {_CONVERT}")
    config = read_tokenizer_config(folder)
    kind = str(config.get("tokenizer_class", "")).removesuffix("Fast")
    if kind not in ("Qwen2Tokenizer", "GPT2Tokenizer"):
        raise FileError(
            f"{folder}: no tokenizer.json, and vocab.json with merges.txt say too little without a "
            f"known tokenizer_class in tokenizer_config.json, which is "
            f"{brief(config.get('tokenizer_class'))}; {_CONVERT}"
        )
    return _built(folder, kind, config)


def _built(folder: str, kind: str, config: dict[str, Any]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocabulary, merges = _vocabulary(folder), _merges(folder)
    try:
        model = models.BPE(vocab=vocabulary, merges=merges)
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # a panic of native code is no Exception
        raise FileError(f"{os.path.join(folder, 'merges.txt')}: {str(error)[:200]}") from None
    tokenizer = Tokenizer(model)
    spaced = config.get("add_prefix_space") is True
    if kind == "Qwen2Tokenizer":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(_QWEN2_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=spaced, use_regex=False),
        ])  # fmt: skip
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _vocabulary(folder: str) -> dict[str, int]:
    path = os.path.join(folder, "vocab.json")
    found = read_json(path, LARGEST_FILE)
    for token, number in found.items():
        if type(number) is not int or not 0 <= number < 2**31 or not is_text(token):
            raise FileError(f"{path}: {brief(token)} has the number {brief(number)}")
    if len(set(found.values())) != len(found):
        raise FileError(f"{path}: two tokens have one number")
    return found


def _merges(folder: str) -> list[tuple[str, str]]:
    path = os.path.join(folder, "merges.txt")
    try:
        lines = read_plain(path, LARGEST_FILE).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not UTF-8: {error}") from None
    merges: list[tuple[str, str]] = []
    for i, line in enumerate(lines):
        line = line.removesuffix("\r")
        if not line or line.startswith("#version"):
            continue
        parts = line.split(" ")
        if len(parts) != 2:
            raise FileError(f"{path}: line {i + 1} is {brief(line)}, expected two tokens")
        merges.append((parts[0], parts[1]))
    return merges


def add_tokens(tokenizer: Tokenizer, folder: str) -> None:
    """Add the tokens that the files beside the tokenizer list and it has not: those of
    `added_tokens_decoder` in tokenizer_config.json, or of added_tokens.json, and special tokens.

    Raises FileError where one would have another number than the files say.
    """
    from tokenizers import AddedToken

    known = {str(t) for t in tokenizer.get_added_tokens_decoder().values()}
    special = read_special_tokens(folder)
    listed, path = _listed(folder, {*special.values()})
    for number, token in sorted(listed.items()):
        if str(token) not in known:
            tokenizer.add_tokens([token])
            known.add(str(token))
        if tokenizer.token_to_id(str(token)) != number:
            raise FileError(
                f"{path}: {brief(str(token))} has the number {number}, and in the tokenizer "
                f"{tokenizer.token_to_id(str(token))}"
            )
    for token in special.values():
        if token not in known:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
            known.add(token)


def _listed(folder: str, special: set[str]) -> tuple[dict[int, AddedToken], str]:
    """{number: token} of the files, and the file."""
    from tokenizers import AddedToken

    path = os.path.join(folder, "tokenizer_config.json")
    table = read_tokenizer_config(folder).get("added_tokens_decoder")
    found: dict[int, AddedToken] = {}
    if table is None:
        path = os.path.join(folder, "added_tokens.json")
        if not os.path.lexists(path):
            return {}, path
        for text, number in read_json(path, LARGEST_FILE).items():
            if not is_text(text):
                raise FileError(f"{path}: {brief(text)} is no text that can be encoded")
            is_special = text in special
            found[_number(number, path)] = AddedToken(
                text, special=is_special, normalized=not is_special
            )
        return found, path
    if not isinstance(table, dict):
        raise FileError(f"{path}: added_tokens_decoder is {brief(table)}, expected an object")
    for number, fields in table.items():
        text = fields.get("content") if isinstance(fields, dict) else None
        flags = {
            n: fields[n]
            for n in ("single_word", "lstrip", "rstrip", "normalized", "special")
            if isinstance(fields, dict) and n in fields
        }
        if not is_text(text) or not all(isinstance(v, bool) for v in flags.values()):
            raise FileError(
                f"{path}: added_tokens_decoder has {brief(fields)} for {brief(number)}, expected "
                "a token's content and flags"
            )
        found[_number(number, path)] = AddedToken(text, **flags)
    return found, path


def _number(value: Any, path: str) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or len(text) > 10:
        raise FileError(f"{path}: {brief(value)} is not the number of a token")
    return int(text)
