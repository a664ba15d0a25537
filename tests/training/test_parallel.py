"""The setting `parallel`: what it may say, and runs over meshes of one process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genesis_fn import parallel
from genesis_fn.cli.main import main
from genesis_fn.core import device as devices
from genesis_fn.training.parallel.axes import axes_for, check_batch, parse
from genesis_fn.training.settings.reading import read_settings
from tests.support.chat_folder import write_data, write_model


@pytest.fixture
def four_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU shows four devices, and none of them afterwards."""
    monkeypatch.setenv("GENESIS_CPU_DEVICES", "4")
    yield
    for key in [k for k in devices._devices if k[0] == "cpu" and k[1]]:
        del devices._devices[key]


@pytest.mark.parametrize("text, axes", [
    ("fsdp=4", {"fsdp": 4}), ("model=2,data=3", {"data": 3, "model": 2}),
    (" fsdp = 2 , data=2", {"data": 2, "fsdp": 2}), ("data=1", {"data": 1}),
])  # fmt: skip
def test_axes_are_read_in_the_order_of_a_mesh(text: str, axes: dict[str, int]):
    assert list(parse(text).items()) == list(axes.items())


@pytest.mark.parametrize("text, message", [
    ("", "'' is no axis and its size; write data=4"), ("fsdp", "'fsdp' is no axis and its size"),
    ("fsdp=0", "'fsdp=0' is no axis"), ("fsdp=x", "is no axis"), ("data=2,,model=2", "'' is no ax"),
    ("data=2,data=2", "data is there twice"), ("tp=2", "no axis 'tp'.*did you mean model"),
    ("rows=2", "there is no axis 'rows', the axes are data, fsdp, model$"),
    ("data=2,stage=2", "stage needs more than a layout"),
])  # fmt: skip
def test_what_is_no_text_of_axes(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        parse(text)
    with pytest.raises(ValueError, match=f"parallel.*({message})" if text else "empty text"):
        read_settings(None, {"parallel": text})


@pytest.mark.parametrize("name, function", [
    ("context", "context_attention"), ("sequence", "context_attention"),
    ("stage", "pipelined_decoder"), ("stages", "pipelined_decoder"),
    ("pipeline", "pipelined_decoder"), ("expert", "expert_mlp"), ("experts", "expert_mlp"),
])  # fmt: skip
def test_what_is_no_layout_says_where_to_read_on(
    name: str, function: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["train", "--parallel", f"data=2,{name}=2", "--data.train", "texts"]) == 1
    said = capsys.readouterr().err
    assert said == (
        f"genesis-fn: parallel: {name} needs more than a layout, and the commands divide by data, "
        f"fsdp, model only: write a loop with parallel.{function}, as docs/distributed.md shows "
        'under "A loop of your own"\n'
    )
    page = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text()
    _, shown = page.split("\n## A loop of your own\n")
    assert callable(getattr(parallel, function)) and f"parallel.{function}" in shown


def test_a_file_may_have_a_table(tmp_path: Path):
    path = tmp_path / "a.toml"
    path.write_text("[parallel]\ndata = 2\nmodel = 2\n")
    assert read_settings(str(path), {}).parallel == "data=2,model=2"
    path = tmp_path / "a.yaml"
    path.write_text("parallel: {fsdp: 4}\n")
    assert read_settings(str(path), {}).parallel == "fsdp=4"
    path.write_text("parallel: fsdp=4\n")
    assert read_settings(str(path), {}).parallel == "fsdp=4"


@pytest.mark.parametrize("text, processes, shown, axes", [
    (None, 1, 4, {}), (None, 3, 1, {"data": 3}), ("data=1", 1, 1, {}),
    ("fsdp=4", 4, 1, {"fsdp": 4}), ("data=2", 1, 4, {"data": 2}),
])  # fmt: skip
def test_the_axes_of_a_world(text: str | None, processes: int, shown: int, axes: dict[str, int]):
    assert axes_for(text, processes, shown) == axes


def test_sizes_that_are_not_of_the_world():
    with pytest.raises(ValueError, match="for 4 processes, and there are 8: start 4 .*fsdp=8$"):
        axes_for("data=2,fsdp=2", 8, 1)
    with pytest.raises(ValueError, match="for 4 processes, and there is 1: start 4 .*DEVICES=4"):
        axes_for("fsdp=4", 1, 2)


def test_a_batch_that_is_not_divided():
    check_batch({"data": 2, "fsdp": 2, "model": 8}, 8, 2)
    with pytest.raises(ValueError, match=r"batch is 6, and parallel data=2 x fsdp=2 divides .* 4"):
        check_batch({"data": 2, "fsdp": 2}, 6, 1)
    with pytest.raises(ValueError, match="batch is 8 and accumulate 4, which makes parts of 2 row"):
        check_batch({"fsdp": 4}, 8, 4)


# ---- runs ----


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    write_model(folder)
    write_data(folder)
    return folder


def sft(base: Path, out: Path, *more: str) -> list[str]:
    return [
        "sft", "--model.path", str(base), "--data.train", str(base / "chats.jsonl"), "--data.valid",
        str(base / "chats.jsonl"), "--data.length", "32", "--batch", "8", "--steps", "4",
        "--optim.lr", "3e-3", "--evaluate.every", "2", "--evaluate.batches", "1",
        "--checkpoint.every", "2", "--out", str(out), "--log.plot", "false", "--quiet",
        "--data.prefetch", "0", *more,
    ]  # fmt: skip


def numbers(out: Path) -> list[float]:
    rows: list[dict[str, Any]] = [json.loads(x) for x in open(out / "log.jsonl")]
    names = ("loss", "grad_norm", "validation_loss")
    return [row[n] for row in rows for n in names if n in row]


RUNS = {
    "data=2,model=2": ("--sample.every", "4", "--sample.prompts", "what is red?",
                       "--sample.max-new-tokens", "2"),
    "fsdp=2,model=2": ("--method", "dora", "--accumulate", "2"),
    "data=2,fsdp=2": ("--optim.name", "muon", "--remat"),
}  # fmt: skip


@pytest.mark.parametrize("axes", RUNS)
def test_a_rehearsal_in_one_process(base: Path, tmp_path: Path, four_devices: None, axes: str):
    alone, mesh = tmp_path / "alone", tmp_path / "mesh"
    assert main(sft(base, alone, *RUNS[axes])) == 0
    assert main(sft(base, mesh, *RUNS[axes], "--parallel", axes)) == 0
    assert numbers(mesh) == pytest.approx(numbers(alone), rel=1e-5, abs=1e-6)
    assert main(["resume", "--out", str(mesh), "--verify", "2"]) == 0


def test_what_a_step_takes_on_a_mesh(
    base: Path, tmp_path: Path, four_devices: None, capsys: pytest.CaptureFixture[str]
):
    dry = sft(base, tmp_path / "run", "--parallel", "data=2,fsdp=2", "--dry-run")
    assert main([*dry, "--memory-budget", "64MB"]) == 0
    said = capsys.readouterr().out
    assert "a step takes" in said and "memory at the peak" in said
    assert main(sft(base, tmp_path / "run", "--parallel", "fsdp=8")) == 1
    assert "for 8 processes, and there is 1" in capsys.readouterr().err
    assert main(sft(base, tmp_path / "run", "--parallel", "fsdp=4", "--batch", "6")) == 1
    assert "choose a batch that is a multiple of 4" in capsys.readouterr().err
