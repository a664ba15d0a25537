"""What a run trains: the weights that are trained and those that are frozen, and their loss."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import genesis_fn.random as random
from genesis_fn import io
from genesis_fn.core.errors import FileError
from genesis_fn.core.files import read_plain
from genesis_fn.core.types.annotations import Array, Key, PyTree
from genesis_fn.data import ChatTemplate, load_tokenizer
from genesis_fn.data.chat_files import TemplateText, read_special_tokens
from genesis_fn.models import PRESETS, DecoderConfig, decoder
from genesis_fn.nn import lora
from genesis_fn.training.parallel.layout import RunLayout
from genesis_fn.training.settings.sections import TrainingSettings
from genesis_fn.training.step import IGNORED, Batch, SummedLoss
from genesis_fn.transforms import eval_shape
from genesis_fn.transforms.jitting import jit
from genesis_fn.transforms.precision.autocast import amp

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_LARGEST_TEMPLATE = 1 << 20  # bytes


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A model as a run sees it.

    Args:
        config: the hyperparameters.
        trained: the parameters, or adapters.
        frozen: the parameters below adapters; None where all are trained.
        lora: what the adapters are like; None where there are none.
        folder: the model folder that the weights come from; None for random ones.
        tokenizer_folder: the folder of the tokenizer.
        tokenizer: the tokenizer.
        template: the chat template, or why there is none.
    """

    config: DecoderConfig
    trained: PyTree
    frozen: PyTree
    lora: lora.LoraConfig | None
    folder: str | None
    tokenizer_folder: str
    tokenizer: Tokenizer
    template: ChatTemplate | FileError

    def chat_template(self) -> ChatTemplate:
        """The chat template. Raises FileError where there is none."""
        if isinstance(self.template, FileError):
            raise FileError(f"{self.template}\n  or give --model.template FILE")
        return self.template

    def parameters(self, trained: PyTree, key: Key | None = None) -> PyTree:
        """The parameters of the decoder, with trained weights in them.

        Args:
            trained: parameters or adapters, as `trained`.
            key: of the dropout of adapters; None drops nothing.
        """
        return parameters_of(trained, self.frozen, self.lora, key)


@dataclasses.dataclass(frozen=True)
class AbstractModel:
    """A model without its weights: `config`, `trained`, `frozen` and `lora` are those of a
    TrainedModel, with a ShapeDtypeStruct for each array."""

    config: DecoderConfig
    trained: PyTree
    frozen: PyTree
    lora: lora.LoraConfig | None


def parameters_of(
    trained: PyTree, frozen: PyTree, config: lora.LoraConfig | None, key: Key | None = None
) -> PyTree:
    """The parameters of the decoder: those that are trained, or the frozen ones with adapters."""
    return trained if config is None else lora.apply(frozen, trained, config, key=key)


def make_loss(
    config: DecoderConfig, adapters: lora.LoraConfig | None, compute: str, remat: bool
) -> SummedLoss:
    """The sum of the cross-entropy over the labels that count, computed in a dtype.

    Args:
        config: the hyperparameters.
        adapters: what adapters are like; None where parameters are trained.
        compute: dtype of products.
        remat: whether layers are recomputed in the backward pass.
    """

    def loss(trained: PyTree, frozen: PyTree, batch: Batch, key: Key | None) -> Array:
        return decoder.loss_sum(
            parameters_of(trained, frozen, adapters, key),
            batch["tokens"],
            batch["labels"],
            config,
            ignore_index=IGNORED,
            segment_ids=batch.get("segment_ids"),
            remat=remat,
        )[0]

    return amp(loss, compute)


# ---- opening ----


def open_model(settings: TrainingSettings, layout: RunLayout | None = None) -> TrainedModel:
    """The model, tokenizer and template that settings name.

    Args:
        settings: of the run.
        layout: over which mesh weights are laid out; None: on one device.

    Raises:
        ValueError: the settings name no model, or two.
        OSError, FileError: what is missing or malformed.
    """
    m = settings.model
    _check_one_named(settings)
    folder = m.tokenizer or m.path
    if folder is None:
        raise ValueError(
            "model.tokenizer is missing: random weights come with none, give a folder with a "
            "tokenizer.json"
        )
    adapted, dtype = settings.method != "full", _weights_dtype(settings)
    if m.path is not None:
        if not os.path.isdir(m.path):
            raise FileError(
                f"model.path is {m.path!r}, and there is no such folder: give one with "
                "config.json, safetensors files and tokenizer.json"
            )
        place = None if layout is None else layout.parameters(abstract_weights(settings)[0])
        params, config = io.load_model(m.path, dtype=dtype, device=place)
    else:
        config = _config(str(m.config))
        make = lambda: decoder.init(random.key(settings.seed), config, dtype)
        params = make() if layout is None else _laid_out(make, layout.parameters)
    if settings.data.length > config.max_position_embeddings:
        raise ValueError(
            f"data.length is {settings.data.length}, and the model reads "
            f"{config.max_position_embeddings} tokens, max_position_embeddings of its config.json"
        )
    tokenizer = load_tokenizer(folder)
    if (size := tokenizer.get_vocab_size()) > config.vocab_size:
        raise FileError(
            f"{folder}: the tokenizer has {size:,} tokens, and the model a vocabulary of "
            f"{config.vocab_size:,}: they are not of one model"
        )
    rest = (m.path, folder, tokenizer, template_of(folder, m.template))
    if not adapted:
        return TrainedModel(config, params, None, None, *rest)
    adapters = lora_config(settings)
    key = random.fold_in(random.key(settings.seed), "adapters")
    fresh = lambda: lora.init(key, params, adapters, dtype=m.dtype)
    trained = fresh() if layout is None else _laid_out(fresh, layout.adapters)
    return TrainedModel(config, trained, params, adapters, *rest)


def _laid_out(make: Callable[[], PyTree], shardings: Callable[[PyTree], PyTree]) -> PyTree:
    """What a function makes, of which each device makes its part."""
    return jit(make, out_shardings=shardings(eval_shape(make)))()


def abstract_model(settings: TrainingSettings) -> AbstractModel:
    """The model that settings name, of its config.json alone.

    Raises:
        ValueError: the settings name no model, or two.
        OSError, FileError: config.json is missing or malformed.
    """
    m = settings.model
    _check_one_named(settings)
    params, config = abstract_weights(settings)
    if settings.method == "full":
        return AbstractModel(config, params, None, None)
    adapters = lora_config(settings)
    trained = eval_shape(lambda x: lora.init(random.key(0), x, adapters, dtype=m.dtype), params)
    return AbstractModel(config, trained, params, adapters)


def abstract_weights(settings: TrainingSettings) -> tuple[PyTree, DecoderConfig]:
    """The shapes of the decoder's weights, of its config.json alone, and its hyperparameters."""
    m = settings.model
    config = DecoderConfig.from_file(m.path) if m.path is not None else _config(str(m.config))
    dtype = _weights_dtype(settings)
    return eval_shape(lambda: decoder.init(random.key(0), config, dtype)), config


def _check_one_named(settings: TrainingSettings) -> None:
    m = settings.model
    if (m.path is None) == (m.config is None):
        given = "both are given" if m.path else "neither is given"
        raise ValueError(
            f"model.path begins with a folder's weights, model.config with random ones, and {given}"
        )


def _weights_dtype(settings: TrainingSettings) -> str:
    """The dtype of the decoder's weights, which are frozen below adapters."""
    m = settings.model
    if settings.method == "full":
        return m.dtype
    return m.base_dtype or settings.compute


def lora_config(settings: TrainingSettings) -> lora.LoraConfig:
    """The section `lora`, as PEFT names it."""
    s = settings.lora
    targets: Any = s.target_modules
    if targets == ("all-linear",):
        targets = "all-linear"
    return lora.LoraConfig(
        r=s.r,
        lora_alpha=s.alpha,
        target_modules=targets,
        lora_dropout=s.dropout,
        use_rslora=s.rslora,
        use_dora=settings.method == "dora",
    )


def _config(name: str) -> DecoderConfig:
    """The hyperparameters of a preset's name, or of a file or folder."""
    if name.lower() in PRESETS:
        return PRESETS[name.lower()]
    if not os.path.exists(name):
        raise ValueError(
            f"model.config is {name!r}, which is neither a file nor one of {', '.join(PRESETS)}"
        )
    return DecoderConfig.from_file(name)


def template_of(folder: str, path: str | None) -> ChatTemplate | FileError:
    """The chat template of a file, or of a folder where `path` is None, or why it has none."""
    if path is None:
        try:
            return ChatTemplate.from_folder(folder)
        except FileError as error:  # which texts can do without
            return error
    try:
        text = read_plain(path, _LARGEST_TEMPLATE).decode("utf-8")
    except UnicodeDecodeError:
        raise FileError(f"{path}: not UTF-8") from None
    return ChatTemplate({"default": TemplateText(text, path)}, read_special_tokens(folder))
