"""The curves of a training run as pictures."""

from __future__ import annotations

from typing import Any

from genesis_fn.io.safetensors import atomic_write

_PANELS = {
    "lr": "learning rate",
    "grad_norm": "norm of the gradient",
    "tokens_per_s": "tokens per second",
}
_TRAINING, _VALIDATION = "#8aa9c9", "#b0413e"  # colours

Rows = list[dict[str, Any]]


def plot(rows: Rows, path: str) -> None:
    """The loss curves of a log as a PNG."""
    figure, axes = _figure(1, 1, (7, 4))
    _draw_losses(axes, rows)
    _save(figure, path)


def plot_curves(rows: Rows, path: str) -> None:
    """The losses, learning rate, gradient norm and throughput of a log as a PNG."""
    figure, axes = _figure(2, 2, (12, 7))
    _draw_losses(axes[0, 0], rows)
    for panel, (name, label) in zip([axes[0, 1], *axes[1]], _PANELS.items(), strict=True):
        panel.plot(*_curve(rows, name), color=_TRAINING, linewidth=0.8)
        panel.set(xlabel="step", ylabel=label)
        panel.grid(alpha=0.3)
    axes[1, 1].set_ylim(bottom=0)
    _save(figure, path)


def _draw_losses(axes: Any, rows: Rows) -> None:
    axes.plot(*_curve(rows, "loss"), color=_TRAINING, linewidth=0.8, label="training, one batch")
    valid = _curve(rows, "validation_loss")
    axes.plot(*valid, color=_VALIDATION, marker="o", markersize=3, label="validation")
    axes.set(xlabel="step", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def _curve(rows: Rows, name: str) -> tuple[list[int], list[Any]]:
    """Steps and values; one that was not finite is a gap."""
    points = [(r["step"], r[name]) for r in rows if name in r]
    return [step for step, _ in points], [value for _, value in points]


def _figure(down: int, across: int, size: tuple[int, int]) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt.subplots(down, across, figsize=size, layout="constrained")


def _save(figure: Any, path: str) -> None:
    import matplotlib.pyplot as plt

    with atomic_write(path) as f:
        figure.savefig(f, format="png", dpi=120)
    plt.close(figure)
