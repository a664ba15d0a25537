"""A model folder opened: parameters, tokenizer, settings of generation."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

from genesis_fn import io
from genesis_fn.backends.cpu.lowerings.contraction import native_bfloat16
from genesis_fn.cli import options
from genesis_fn.cli.options import option
from genesis_fn.core.device import default_device
from genesis_fn.core.errors import FileError
from genesis_fn.core.files import read_plain
from genesis_fn.core.types.annotations import PyTree
from genesis_fn.data import ChatTemplate, load_tokenizer
from genesis_fn.data.chat_files import TemplateText, read_special_tokens
from genesis_fn.models import GenerationConfig

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
_LONGEST_CACHE = 4096
_LARGEST_TEMPLATE = 1 << 20  # bytes


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    """What a folder of Hugging Face holds. `generation` is its generation_config.json."""

    folder: str
    params: PyTree
    config: Any
    tokenizer: Tokenizer
    generation: GenerationConfig

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The tokens of a text.

        Args:
            text: text, in which special tokens are found by their names.
            add_special_tokens: whether the tokenizer adds those that it puts around a text; a chat
                template has written them already.

        Raises:
            FileError: the tokenizer has tokens that the model has not.
        """
        tokens = self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        if tokens and max(tokens) >= self.config.vocab_size:
            raise FileError(
                f"{self.folder}: tokenizer.json gives token {max(tokens)}, and the model has a "
                f"vocabulary of {self.config.vocab_size}: they are not of one model"
            )
        return tokens


def add_model(parser: Any) -> None:
    """The options that say which model, and how it is computed."""
    option(
        parser,
        "--model",
        required=True,
        metavar="FOLDER",
        help="a model: config.json, safetensors files, tokenizer.json; runs/demo after the demo",
    )
    options.add_device(parser)
    add_dtype(parser)
    option(
        parser,
        "--capacity",
        type=options.count,
        metavar="N",
        help="the most tokens of prompt and answer together, for which the cache has room",
        shown=f"max_position_embeddings of the model, at most {_LONGEST_CACHE}",
    )


def add_dtype(parser: Any) -> None:
    """`--dtype`."""
    option(
        parser,
        "--dtype",
        choices=_DTYPES,
        default="auto",
        metavar="NAME",
        help=f"dtype of the parameters, {', '.join(_DTYPES)}; auto is that of the files, but "
        "float32 on a CPU that is slow in bfloat16",
    )


def load(folder: str, dtype: str) -> LanguageModel:
    """Open a folder. Raises OSError or FileError naming what of it is missing or wrong."""
    if not os.path.isdir(folder):
        kind = "a file" if os.path.exists(folder) else "not there"
        raise FileError(f"{folder}: {kind}; --model takes a folder with a model")
    if not os.path.exists(os.path.join(folder, "config.json")):
        if os.path.isdir(os.path.join(folder, "checkpoints")):
            raise FileError(
                f"{folder}: a run that has not come to its end, and has no config.json yet: run "
                "its command again"
            )
        raise FileError(f"{folder}: no model, config.json is missing")
    tokenizer = load_tokenizer(folder)
    generation = GenerationConfig.from_file(folder)
    params, config = io.load_model(folder, dtype=_dtype(dtype))
    return LanguageModel(folder, params, config, tokenizer, generation)


def _dtype(name: str) -> str | None:
    """The dtype to load in, None for that of the files."""
    if name != "auto":
        return name
    slow = default_device().kind == "cpu" and not native_bfloat16()
    return "float32" if slow else None


def capacity(asked: int | None, model: LanguageModel) -> int:
    """The number of tokens that a cache is made for."""
    return asked or min(model.config.max_position_embeddings, _LONGEST_CACHE)


def load_template(folder: str, path: str | None) -> ChatTemplate:
    """The chat template of a file, or of the folder where `path` is None.

    Raises OSError or FileError naming what is missing or wrong.
    """
    if path is None:
        try:
            return ChatTemplate.from_folder(folder)
        except FileError as error:
            raise FileError(f"{error}\n  or give --template FILE") from None
    try:
        text = read_plain(path, _LARGEST_TEMPLATE).decode("utf-8")
    except UnicodeDecodeError:
        raise FileError(f"{path}: not UTF-8") from None
    return ChatTemplate({"default": TemplateText(text, path)}, read_special_tokens(folder))


def check_system(template: ChatTemplate, system: str) -> None:
    """Refuse a system prompt that the model would not see.

    Args:
        template: chat template. One that knows no system prompts raises an error, or leaves it out.
        system: the system prompt.

    Raises:
        ValueError: the template leaves it out.
        ArgumentError: the template refuses it.
    """
    question = [{"role": "user", "content": "?"}]
    text = template.render([{"role": "system", "content": system}, *question])
    # One that equals the template's own changes nothing, and is there.
    if system.strip() not in text and text == template.render(question):
        raise ValueError(
            "the chat template leaves the system prompt out, so that the model would not see it: "
            "begin the first message with it, or give another --template"
        )
