"""Programs of many fields, each one source for this library and for JAX."""

from __future__ import annotations

from benchmarks.zoo_programs import (
    decisions,
    numerics,
    others,
    physics,
    sequences,
    statistics,
    transformers,
    vision,
)
from benchmarks.zoo_programs.program import Program

# The programs that the list must have, the most important first.
NAMED = (
    "gpt2", "vit", "resnet50", "lstm",
    "gradients-of-examples", "dilated-convolutions", "eager-training", "k-means",
    "gpt2-written-out", "unet-block", "pairwise-forces", "rollout", "rollout-gradient",
    "relaxation", "linear-recurrence",
)  # fmt: skip
MODULES = (
    transformers, vision, sequences, decisions, physics, statistics, numerics, others
)  # fmt: skip


def programs() -> dict[str, Program]:
    """All of them by name, those of `NAMED` first."""
    every = {p.name: p for module in MODULES for p in module.PROGRAMS}
    rest = [name for name in every if name not in NAMED]
    return {name: every[name] for name in (*NAMED, *rest)}


PROGRAMS = programs()
