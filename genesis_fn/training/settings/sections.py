"""The settings of a training run, as its file and its command line name them.

One frozen dataclass is one section: `optim.lr` is a field of `Optim`. A field's annotation says
what is accepted, its metadata what the help says of it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal


def setting(default: Any, help: str, *, fixed: bool = True) -> Any:
    """A field with a default and a line of help; `fixed` ones cannot change between a run and its
    continuation."""
    return dataclasses.field(default=default, metadata={"help": help, "fixed": fixed})


Dtype = Literal["float32", "bfloat16", "float16"]


@dataclasses.dataclass(frozen=True)
class Model:
    """Which model, and with which tokenizer and chat template."""

    path: str | None = setting(None, "a model folder whose weights training begins with")
    config: str | None = setting(None, "a config.json, or a name as qwen3-0.6b: random weights")
    tokenizer: str | None = setting(None, "folder with a tokenizer.json; that of the model")
    template: str | None = setting(None, "file with a chat template; that of the tokenizer")
    dtype: Dtype = setting("float32", "dtype in which the trained parameters are kept")
    base_dtype: Dtype | None = setting(None, "dtype of the weights below adapters; that of compute")


@dataclasses.dataclass(frozen=True)
class Data:
    """What is read, and how it becomes batches."""

    train: tuple[str, ...] = setting((), "files, folders or patterns to train on")
    weights: tuple[float, ...] = setting((), "share of each of `train` in a mixture; all alike")
    valid: tuple[str, ...] = setting((), "files, folders or patterns to evaluate on")
    format: Literal["auto", "text", "jsonl", "parquet"] = setting("auto", "auto goes by the suffix")
    text_field: str = setting("text", "the field or column that holds the text of a record")
    length: int = setting(1024, "tokens of a row")
    packing: Literal["cut", "fit", "off"] = setting(
        "cut", "cut joins texts and cuts rows, fit puts whole examples into rows, off one a row"
    )
    separate: bool = setting(True, "the texts of a row do not attend to each other")
    train_on: Literal["answers", "all"] = setting("answers", "which tokens of chats count")
    shuffle: int = setting(10_000, "records of the buffer that shuffles; 0 keeps their order")
    on_bad_line: Literal["stop", "skip"] = setting("stop", "what a line that is no record does")
    prefetch: int = setting(
        2, "batches that a thread makes ahead; 0 makes them in the loop", fixed=False
    )


@dataclasses.dataclass(frozen=True)
class Lora:
    """Low-rank adapters, for the methods lora and dora. Names are those of PEFT."""

    r: int = setting(8, "rank")
    alpha: float = setting(16.0, "the adapters' output is multiplied by alpha / r")
    dropout: float = setting(0.0, "share of the adapters' inputs that is dropped")
    target_modules: tuple[str, ...] = setting(("all-linear",), "names of the adapted layers")
    rslora: bool = setting(False, "multiply by alpha / sqrt(r)")


@dataclasses.dataclass(frozen=True)
class Optim:
    """The optimizer and its learning rate."""

    name: Literal["adamw", "adam", "sgd", "lion", "adafactor", "muon"] = setting(
        "adamw", "the optimizer"
    )
    lr: float = setting(3e-4, "learning rate at its peak")
    schedule: Literal["cosine", "linear", "constant"] = setting("cosine", "its way down")
    warmup: float = setting(0.03, "steps of the way up: below 1 a share of all steps")
    final_lr: float = setting(0.1, "learning rate of the last step, as a share of the peak")
    weight_decay: float = setting(0.1, "of matrices; vectors do not decay")
    b1: float = setting(0.9, "decay of the first moment, or momentum")
    b2: float = setting(0.95, "decay of the second moment")
    eps: float = setting(1e-8, "added to the root of the second moment")
    clip: float = setting(1.0, "largest global norm of the gradient; 0 does not clip")


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Evaluation while training."""

    every: int = setting(100, "steps between evaluations", fixed=False)
    batches: int = setting(16, "batches of the validation data; 0 takes all", fixed=False)
    patience: int = setting(
        0, "stop after so many evaluations without a better loss; 0 never", fixed=False
    )
    min_delta: float = setting(0.0, "by how much a loss is better, in nats per token", fixed=False)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Checkpoints."""

    every: int = setting(500, "steps between checkpoints", fixed=False)
    keep: int = setting(2, "newest checkpoints that are kept", fixed=False)
    best: int = setting(
        1, "checkpoints of the best validation losses that are kept beside them", fixed=False
    )
    background: bool = setting(True, "write in a thread while training goes on", fixed=False)


@dataclasses.dataclass(frozen=True)
class Logging:
    """What is written and shown about a run."""

    every: int = setting(1, "steps between rows of the log", fixed=False)
    plot: bool = setting(True, "draw the losses, loss.png, and more, curves.png", fixed=False)
    csv: bool = setting(True, "write the numbers as a table, too, metrics.csv", fixed=False)
    tensorboard: bool = setting(
        False, "write them for TensorBoard, too, into the folder tensorboard", fixed=False
    )


@dataclasses.dataclass(frozen=True)
class Sample:
    """Texts that the model writes while it is trained."""

    every: int = setting(0, "steps between samples; 0 takes none", fixed=False)
    prompts: tuple[str, ...] = setting(
        (), "what is written on; where the data are chats, what a user says", fixed=False
    )
    max_new_tokens: int = setting(64, "tokens of a sample", fixed=False)
    temperature: float = setting(0.8, "of the samples; 0 takes the likeliest token", fixed=False)


@dataclasses.dataclass(frozen=True)
class Spike:
    """Steps whose loss lies far above that of the steps before."""

    action: Literal["off", "report", "skip"] = setting("report", "skip leaves the step out")
    deviations: float = setting(6.0, "standard deviations above the mean that are a spike")
    window: int = setting(100, "steps over which mean and deviation run")


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """All settings of a run."""

    out: str = setting("runs/train", "the run's folder", fixed=False)
    method: Literal["full", "lora", "dora"] = setting("full", "what is trained")
    steps: int | None = setting(None, "steps of the optimizer; or give epochs")
    epochs: int | None = setting(None, "passes over the training data; or give steps")
    batch: int = setting(8, "rows of a step's batch, over all of its parts")
    accumulate: int = setting(1, "parts in which the gradient of a batch is computed")
    compute: Dtype = setting("float32", "dtype of products; float16 scales the loss")
    remat: bool = setting(False, "recompute activations in the backward pass")
    memory_budget: str | None = setting(
        None, "such as 20GiB or 80%: a new run chooses remat and accumulate to fit", fixed=False
    )
    parallel: str | None = setting(
        None,
        "axes over processes and their sizes, as fsdp=4 or data=2,model=2; data over all of them",
        fixed=False,
    )
    ema: float = setting(0.0, "decay of the average of the parameters; 0 keeps none")
    seed: int = setting(0, "decides every random draw: the same seed, the same run")
    model: Model = Model()
    data: Data = Data()
    lora: Lora = Lora()
    optim: Optim = Optim()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    log: Logging = Logging()
    sample: Sample = Sample()
    spike: Spike = Spike()
