"""What the documents say is there is there; the tour and the settings are those of the code."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import genesis_fn as gf
from genesis_fn.cli.main import main
from genesis_fn.core import device as devices
from genesis_fn.models import PRESETS
from genesis_fn.training.settings.reading import KEYS, read_settings
from tests.support import chat_folder
from tests.support.documents import DOCS, run

ROOT = DOCS.parent
PAGES = [*sorted(DOCS.glob("*.md")), *sorted(ROOT.glob("*.md"))]


@pytest.mark.cpu
def test_the_tour_runs_and_prints_what_it_says(tmp_path, monkeypatch) -> None:
    assert run("tour.md", tmp_path, monkeypatch) >= 4


def commands_of(text: str) -> list[list[str]]:
    """The commands of training that a text shows, in order."""
    names = "train|sft|resume|eval|merge"
    return [shlex.split(x) for x in re.findall(rf"^genesis-fn ((?:{names}) .+)$", text, re.M)]


@pytest.fixture
def shown_folder(tmp_path, monkeypatch) -> Path:
    """The folder that the commands are shown in, with a tiny model by the name of a large one."""
    config = dataclasses.replace(chat_folder.CONFIG, max_position_embeddings=2048)
    model = tmp_path / "Qwen3-0.6B"
    model.mkdir()
    (tmp_path / "texts").mkdir()
    chat_folder.write_model(model, config)
    chat_folder.write_data(tmp_path)
    (tmp_path / "texts.jsonl").rename(tmp_path / "texts" / "a.jsonl")
    (tmp_path / "held-out.jsonl").write_bytes((tmp_path / "chats.jsonl").read_bytes())
    (tmp_path / "train.toml").write_text(
        'out = "runs/budget"\nmodel.path = "Qwen3-0.6B"\ndata.train = ["texts"]\nsteps = 2\n'
    )
    monkeypatch.setitem(PRESETS, "qwen3-0.6b", config)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.cpu
@pytest.mark.parametrize("page", ["docs/training.md", "README.md"])
def test_the_commands_of_training_run_one_after_the_other(page, shown_folder, monkeypatch) -> None:
    """And the Python of the page of training, which opens what they wrote."""
    commands = commands_of((ROOT / page).read_text(encoding="utf-8"))
    assert len(commands) >= 6
    for words in commands:
        shorter = ["--steps", "2"] if "--steps" in words else []
        shorter += ["--data.length", "256"] if words[0] in ("train", "sft") else []
        assert main([*words, *shorter]) == 0, words
    if page == "docs/training.md":
        assert run("training.md", shown_folder, monkeypatch) >= 3


@pytest.fixture
def four_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU shows four devices, and none of them afterwards, nor the world that a page joins."""
    monkeypatch.setenv("GENESIS_CPU_DEVICES", "4")
    yield
    gf.distributed.shutdown()
    for key in [k for k in devices._devices if k[0] == "cpu" and k[1]]:
        del devices._devices[key]


@pytest.mark.cpu
def test_the_page_of_several_devices_runs(shown_folder, monkeypatch, four_devices) -> None:
    """Its commands, one of which is torchrun's, and its Python, on four CPU devices."""
    text = (DOCS / "distributed.md").read_text(encoding="utf-8")
    commands = re.findall(r"^(?:GENESIS_CPU_DEVICES=4 )?genesis-fn (.+)$", text, re.M)
    assert len(commands) >= 5
    for words in map(shlex.split, commands):
        shorter = ["--steps", "2"] if "1000" in words else []
        assert main([*words, *shorter]) == 0, words
    # Of what is to be read of a page, two processes tell as much as four.
    (shown,) = re.findall(r"^torchrun --standalone (.+)$", text, re.M)
    words = shlex.split(shown.replace("4 -m", "2 -m").replace("fsdp=4", "fsdp=2"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words]
    kept = {k: v for k, v in os.environ.items() if k != "GENESIS_CPU_DEVICES"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    told = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GENESIS_DEVICE": "cpu"}
    subprocess.run([*command, "--steps", "2", "--quiet"], env=kept | told, check=True)
    assert (shown_folder / "runs" / "four" / "logs" / "rank-0001.log").exists()
    assert run("distributed.md", shown_folder, monkeypatch) == 4


@pytest.mark.cpu
def test_the_settings_of_the_page_of_several_devices_are_read(tmp_path) -> None:
    """Its table, and its recipes' files."""
    text = (DOCS / "distributed.md").read_text(encoding="utf-8")
    (toml,) = re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "a.toml").write_text(toml)
    assert read_settings(str(tmp_path / "a.toml"), {}).parallel == "data=2,fsdp=4"
    (recipe,) = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
    assert yaml.safe_load(recipe)["num_nodes"] == 2
    (script,) = re.findall(r"^```bash\n(.*?)^```", text, re.M | re.S)
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


@pytest.mark.cpu
def test_the_page_of_training_names_what_is_there(tmp_path) -> None:
    """Its file of settings is one, its settings are there."""
    text = (DOCS / "training.md").read_text(encoding="utf-8")
    (toml,) = re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)
    path = tmp_path / "settings.toml"
    path.write_text(toml)
    assert read_settings(str(path), {}).lora.r == 16
    sections = {name.partition(".")[0] for name in KEYS if "." in name}
    named = re.findall(r"`-{0,2}((\w+)\.\w+)", text)
    wanted = {name for name, section in named if section in sections}
    assert len(wanted) > 20
    files = {"log.jsonl"}
    assert wanted - files <= KEYS.keys()


def definitions(path: Path) -> dict[str, ast.stmt]:
    """{name: where it is defined} of a module's functions, classes, methods and values."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node  # of overloads the last, which is the function
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
        if isinstance(node, ast.ClassDef):
            methods = [m for m in node.body if isinstance(m, ast.FunctionDef)]
            found |= {f"{node.name}.{m.name}": m for m in methods}
    return found


def test_the_tour_is_an_evening_of_definitions_that_are_there() -> None:
    """A row is a file and what to read of it: "all", "to `name`", or names. The head of the page
    says how much that is."""
    text = (DOCS / "tour.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/]+\.py)` \| ([^|]*) \|", text, re.M)
    total = 0
    for name, part in rows:
        path = ROOT / "genesis_fn" / name
        if part == "all":
            total += len(path.read_text(encoding="utf-8").splitlines())
            continue
        defined = definitions(path)
        wanted = re.findall(r"`([\w.]+)`", part)
        assert wanted and set(wanted) <= defined.keys(), (name, set(wanted) - defined.keys())
        ends = [(defined[w].lineno, defined[w].end_lineno or 0) for w in wanted]
        total += sum([end if part.startswith("to ") else end - at + 1 for at, end in ends])
    files, lines = re.findall(r"(\d+) files, few of them whole,\s([\d,]+) lines", text)[0]
    assert int(files) == len(rows)
    assert abs(total - int(lines.replace(",", ""))) < 200, f"the tour has {total} lines by now"


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        kept = [c for c in heading.lower() if c in " -_" or unicodedata.category(c)[0] in "LN"]
        slug, n = "".join(kept).strip().replace(" ", "-"), 0
        while (name := f"{slug}-{n}" if n else slug) in found:
            n += 1
        found.add(name)
    return found


LINKING = [*PAGES, *sorted((ROOT / "benchmarks").rglob("*.md"))]


@pytest.mark.parametrize("page", LINKING, ids=lambda p: p.name)
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def test_anchors_are_those_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b_c`: d/e, f-g\n## Twice\n```\n# none\n```\n## Twice\n")
    assert anchors(page) == {"a-b_c-de-f-g", "twice", "twice-1"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page) -> None:
    """`compiler/target.py`, of the package or of the repository; links, too."""
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:[\w.]+/)+[\w.]*\.\w+)`", text)
    named += re.findall(r"\]\(([^)#:]+)\)", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S))
    roots = ROOT, ROOT / "genesis_fn", DOCS, ROOT / "benchmarks", ROOT / "genesis_fn/backends/cuda"
    missing = [n for n in named if not any((root / n).exists() for root in roots)]
    assert sorted(set(missing)) == []


@pytest.mark.parametrize("name", ["settings", "numerics"])
def test_pages_that_are_written_are_up_to_date(name) -> None:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"write_{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert written == getattr(module, name)(), f"run docs/write_{name}.py"


def test_the_environment_is_read_in_one_place() -> None:
    reading = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "genesis_fn").rglob("*.py"))
        if re.search(r"os\.environ[^\n]*GENESIS_", path.read_text())
    ]
    assert set(reading) <= {"genesis_fn/core/configuration/config.py"}


def test_the_glossary_names_what_is_there() -> None:
    """Names in code beside a term: `Primitive` of `core/primitive.py` is defined there."""
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    places = re.findall(r"`(\w+)`\s+\(`([\w/]+\.py)`\)", text)
    assert len(places) > 40
    missing = [
        f"{path}: {name}"
        for name, path in places
        if name not in definitions(ROOT / "genesis_fn" / path)
    ]
    assert missing == []
