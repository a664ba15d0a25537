"""The training step of the commands, full and with LoRA, beside transformers and PEFT under
torch.compile: Qwen3-0.6B with random weights, each row in a process of its own on one GPU.

    python benchmarks/finetune_table.py --out benchmarks/results/finetune-h200

writes OUT.json after every row, so that an interrupted run goes on where it stopped, and OUT.md.
8 x 2048 random tokens, bfloat16 products, AdamW; full training keeps float32 parameters, LoRA (rank
8 at every linear layer) a frozen bfloat16 model and float32 adapters. Steps follow each other
without a wait, the median of blocks of four is reported.

The rows of commands are `genesis-fn train` as a user runs it, on the text of Python's standard
library, whose rows hold several texts that do not attend to each other: the rate of its last twenty
steps, which its log shows, and, as `bare_ms`, the same step on the same batches without the
command.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.train_table import BLOCK, blocks, environment, rows_of_tokens

BATCH, LENGTH, RANK, ALPHA = 8, 2048, 8, 16.0
LOGGED = 20  # steps of which the log shows the rate
ROWS = ("genesis_fn full", "transformers full", "genesis_fn lora", "PEFT lora")
COMMANDS = ("command full", "command lora")


def genesis(method: str, count: int, profiled: bool) -> dict[str, Any]:
    """The step that `genesis-fn train` and `sft` take."""
    import genesis_fn as gf
    import genesis_fn.cuda as memory
    from genesis_fn import random
    from genesis_fn.models import PRESETS, decoder
    from genesis_fn.nn import lora
    from genesis_fn.training.model import make_loss
    from genesis_fn.training.optimizers import make_optimizer, make_schedule
    from genesis_fn.training.settings.sections import Optim
    from genesis_fn.training.step import StepRecipe, init_state, make_step

    config = PRESETS["qwen3-0.6b"]
    adapters = lora.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear")
    if method == "full":
        trained, frozen, adapters = decoder.init(random.key(0), config), None, None
    else:
        frozen = decoder.init(random.key(0), config, "bfloat16")
        trained = lora.init(random.key(1), frozen, adapters)
    schedule = make_schedule(Optim(), 1000)
    optimizer = make_optimizer(Optim(), schedule)
    state = init_state(trained, optimizer, StepRecipe())
    del trained
    step = make_step(
        make_loss(config, adapters, "bfloat16", False), optimizer, schedule, StepRecipe()
    )
    data = [
        {"tokens": gf.numpy.asarray(r[:, :-1]), "labels": gf.numpy.asarray(r[:, 1:])}
        for r in rows_of_tokens(BATCH, LENGTH, config.vocab_size)
    ]
    held = [state]
    del state

    def one(i: int) -> Any:
        held[0], numbers = step(held[0], frozen, data[i % 4])
        return numbers[0]

    result = blocks(one, lambda row: float(row[0]), count)
    result["peak_GiB"] = memory.max_memory_allocated() / 2**30
    if profiled:
        found = gf.profile(step)(held[0], frozen, data[0])
        print(f"profile: {found.seconds * 1e3:.1f} ms, program {found.program_seconds}")
        for line in found.lines[:60]:
            print(
                f"{line.seconds * 1e3:8.3f} ms {line.calls:4} x {line.primitive[:60]:60} "
                f"{line.bytes / 2**20:9.0f} MiB {line.roofline * 1e3:7.3f} {line.source[:60]}"
            )
    return result


def transformers(method: str, count: int) -> dict[str, Any]:
    """transformers' Qwen3, with PEFT's adapters for lora, under torch.compile and autocast."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from genesis_fn.models import PRESETS

    ours = PRESETS["qwen3-0.6b"]
    names = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim",
    )  # fmt: skip
    config = Qwen3Config(**{n: getattr(ours, n) for n in names}, tie_word_embeddings=True)
    config.use_cache = False
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config)
    if method == "lora":
        import peft

        adapters = peft.LoraConfig(
            r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        model = peft.get_peft_model(model.to(torch.bfloat16), adapters)
        for p in model.parameters():
            if p.requires_grad:
                p.data = p.data.float()
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, 3e-4, (0.9, 0.95), weight_decay=0.1, fused=True)

    def loss(tokens: Any, labels: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(input_ids=tokens).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    compiled = torch.compile(loss)
    data = [
        torch.from_numpy(r).long().cuda() for r in rows_of_tokens(BATCH, LENGTH, ours.vocab_size)
    ]

    def one(i: int) -> Any:
        r = data[i % 4]
        value = compiled(r[:, :-1].contiguous(), r[:, 1:].contiguous())
        value.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    result = blocks(one, float, count)
    return result | {"peak_GiB": torch.cuda.max_memory_allocated() / 2**30}


def command(method: str, count: int) -> dict[str, Any]:
    """`genesis-fn train`, and its step without it."""
    import tempfile
    from pathlib import Path

    import genesis_fn.cuda as memory
    from genesis_fn import data
    from genesis_fn.training.run import prepare, settings_of

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = list(data.read_texts(data.text_files(data.standard_library())))
        tokenizer = data.train_tokenizer(texts[:300], vocab_size=8192)
        data.save_tokenizer(tokenizer, folder / "tokenizer.json")
        about = {"eos_token": tokenizer.id_to_token(0)}
        (folder / "tokenizer_config.json").write_text(json.dumps(about))
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
        steps = BLOCK * count + 40
        options = {
            "method": method,
            "steps": steps,
            "batch": BATCH,
            "compute": "bfloat16",
            "out": folder / "run",
            "model.config": "qwen3-0.6b",
            "model.tokenizer": folder,
            "data.train": folder / "texts.jsonl",
            "data.length": LENGTH,
        }
        words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        run = [sys.executable, "-m", "genesis_fn", "train", *words]
        subprocess.run(run, check=True, stdout=sys.stderr)
        rows = [json.loads(r) for r in (folder / "run" / "log.jsonl").read_text().splitlines()]
        rates = [r["tokens_per_s"] for r in rows if "tokens_per_s" in r]
        prepared = prepare(settings_of(str(folder / "run")), lambda _: None)
        batches = [next(prepared.stream) for _ in range(steps)][-LOGGED:]
    held = [prepared.state]

    def all_of(batches: list[Any]) -> float:
        began = time.perf_counter()
        for batch in batches:
            held[0], numbers = prepared.step(held[0], prepared.model.frozen, batch)
        float(numbers[0][0])
        return time.perf_counter() - began

    first = all_of(batches[:1])
    all_of(batches[:3])
    bare = statistics.median([all_of(batches) for _ in range(3)]) / LOGGED
    return {
        "first_call_s": first,
        "step_ms": BATCH * LENGTH * 1e3 / rates[-1],
        "bare_ms": bare * 1e3,
        "peak_GiB": memory.max_memory_allocated() / 2**30,
        "losses": [r["loss"] for r in rows if "loss" in r][:6],
    }


def measure(row: str, count: int, profiled: bool) -> dict[str, Any]:
    """One row, in this process."""
    library, method = row.split()
    if library == "command":
        return command(method, count)
    if library == "genesis_fn":
        return genesis(method, count, profiled)
    return transformers(method, count)


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| step | time | tokens/s | ours is faster by | peak memory | first call |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in [n for n in (*ROWS, *COMMANDS) if n in rows]:
        r, ours = rows[name], rows.get(f"genesis_fn {name.split()[1]}", {})
        if ours := r.get("bare_ms", ours.get("step_ms")):
            ratio = f"{r['step_ms'] / ours:.3f}"
        else:
            ratio = ""
        lines.append(
            f"| {name} | {r['step_ms']:.1f} ms | {BATCH * LENGTH * 1e3 / r['step_ms']:,.0f} | "
            f"{ratio} | {r['peak_GiB']:.1f} GiB | {r['first_call_s']:.1f} s |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is missing, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="finetune")
    parser.add_argument("--rows", nargs="*", default=(*ROWS, *COMMANDS))
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--row", help="measure one row in this process and print it")
    parser.add_argument("--profile", action="store_true", help="with --row: time its kernels")
    args = parser.parse_args()
    if args.row:
        print(json.dumps(measure(args.row, args.blocks, args.profile)))
        return
    result: dict[str, Any] = {"rows": {}}
    if os.path.exists(args.out + ".json"):
        with open(args.out + ".json", encoding="utf-8") as f:
            result = json.load(f)
    for row in args.rows:
        if row in result["rows"]:
            continue
        command = [sys.executable, "-m", "benchmarks.finetune_table", "--row", row]
        made = subprocess.run(
            [*command, "--blocks", str(args.blocks)], stdout=subprocess.PIPE, text=True
        )
        if made.returncode:
            print(f"{row}: failed with {made.returncode}", file=sys.stderr)
            continue
        result["rows"][row] = json.loads(made.stdout.splitlines()[-1])
        result |= environment()
        with open(args.out + ".json", "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)
    text = table(result["rows"])
    with open(args.out + ".md", "w", encoding="utf-8") as f:
        f.write(
            f"Qwen3-0.6B, 8 x 2048 tokens, one training step. {result.get('device')}, commit "
            f"{str(result.get('commit'))[:10]}.\n\n{text}"
        )
    print(text)


if __name__ == "__main__":
    main()
