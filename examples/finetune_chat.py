"""A tiny model is taught to answer, from its folder to its answer: python examples/finetune_chat.py

Everything is made here: a tokenizer of the chats, random weights in a folder of Hugging Face's
format, a chat template, and a few hundred chats as JSON lines. `genesis-fn sft` fine-tunes it on
the answers, and `models.generate` asks what it has learned.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np

import genesis_fn as gf
from genesis_fn import data, io, models

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CAPITALS = {
    "Chile": "Santiago", "Egypt": "Cairo", "France": "Paris", "Ghana": "Accra", "Japan": "Tokyo",
    "Kenya": "Nairobi", "Norway": "Oslo", "Peru": "Lima",
}  # fmt: skip
QUESTIONS = ("What is the capital of {}?", "Name the capital of {}.")


def chats(count: int, seed: int) -> list[dict[str, list[dict[str, str]]]]:
    """Chats of one question to three, each with its answer."""
    chance, found = random.Random(seed), []
    for _ in range(count):
        messages = []
        for country in chance.sample(sorted(CAPITALS), chance.randint(1, 3)):
            question = chance.choice(QUESTIONS).format(country)
            answer = f"The capital of {country} is {CAPITALS[country]}."
            messages += [{"role": "user", "content": question}]
            messages += [{"role": "assistant", "content": answer}]
        found.append({"messages": messages})
    return found


def write_chats(path: pathlib.Path, records: list[dict[str, list[dict[str, str]]]]) -> None:
    """One chat a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_model(folder: pathlib.Path, texts: list[str], seed: int) -> None:
    """A model folder: random weights, a tokenizer of the texts, a chat template."""
    from tokenizers import AddedToken

    folder.mkdir()
    tokenizer = data.train_tokenizer(texts, vocab_size=400)
    marks = ("<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    data.save_tokenizer(tokenizer, folder / "tokenizer.json")
    about = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    config = models.DecoderConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    )  # fmt: skip
    io.save_model(folder, models.decoder.init(gf.random.key(seed), config), config)


def fine_tune(options: dict[str, object]) -> None:
    """`genesis-fn sft`, as a shell would run it."""
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    subprocess.run([sys.executable, "-m", "genesis_fn", "sft", *words], check=True)


def ask(folder: str, question: str) -> str:
    """The likeliest answer of a model."""
    params, config = io.load_model(folder)
    tokenizer, template = data.load_tokenizer(folder), data.ChatTemplate.from_folder(folder)
    text = template.render([{"role": "user", "content": question}])
    prompt = tokenizer.encode(text, add_special_tokens=False).ids
    generation = models.GenerationConfig(
        max_new_tokens=24, eos_token_id=tokenizer.token_to_id("<|im_end|>")
    )
    rows = np.asarray([prompt], np.int32)
    tokens, lengths = models.generate(params, rows, config, generation=generation)
    answer = np.asarray(tokens)[0, len(prompt) : int(lengths[0])]
    return tokenizer.decode(answer.tolist()).strip()


def main(steps: int = 300, batch: int = 8, seed: int = 0) -> float:
    """Fine-tune, ask, and return the share of the capitals that the model knows."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        records = chats(300, seed)
        texts = [m["content"] for record in records for m in record["messages"]]
        write_model(folder / "base", texts, seed)
        write_chats(folder / "chats.jsonl", records)
        write_chats(folder / "valid.jsonl", chats(30, seed + 1))
        options = {
            "out": folder / "run",
            "steps": steps,
            "batch": batch,
            "seed": seed,
            "model.path": folder / "base",
            "data.train": folder / "chats.jsonl",
            "data.valid": folder / "valid.jsonl",
            "data.length": 96,
            "optim.lr": 5e-3,
            "optim.weight_decay": 0.0,
            "evaluate.every": max(steps // 3, 1),
        }
        fine_tune(options)
        rows = [json.loads(row) for row in (folder / "run" / "log.jsonl").open()]
        losses = [row["loss"] for row in rows if "loss" in row]
        valid = [row["validation_loss"] for row in rows if "validation_loss" in row]
        print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at step {steps}")
        print(f"validation loss {valid[-1]:.3f} nats per token")
        right = 0
        for country, capital in CAPITALS.items():
            question = QUESTIONS[0].format(country)
            answer = ask(str(folder / "run" / "model"), question)
            right += capital in answer
            print(f"{question} {answer}")
    return right / len(CAPITALS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    for option in ("--steps", "--batch", "--seed"):
        parser.add_argument(option, type=int)
    main(**vars(parser.parse_args()))
