"""What `genesis-fn train` does, as a loop of your own: python examples/training_loop.py

Texts are streamed of files, shuffled and packed into rows; a checkpoint holds the parameters, the
optimizer's state and where the stream stands, so that a run that is stopped goes on to the same
numbers, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import tempfile
from typing import Any

import genesis_fn as gf
from genesis_fn import data, io, models, optim
from genesis_fn.models import decoder


def write_texts(path: pathlib.Path, count: int = 200) -> list[str]:
    """Sentences of a small grammar, as JSON lines."""
    chance = random.Random(0)
    who, what = ("the cat", "a dog", "the old man"), ("sees", "hears", "follows")
    sentence = lambda: f"{chance.choice(who)} {chance.choice(what)} {chance.choice(who)}."
    texts = [" ".join(sentence() for _ in range(6)) for _ in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts


def batches_of(path: pathlib.Path, tokenizer: Any, batch: int, seed: int) -> data.Stream[Any]:
    """Batches of rows of 64 tokens, again and again in orders that the seed decides."""
    end = tokenizer.token_to_id(data.END)
    records = data.Shuffled(data.RecordFiles([path], epochs=None, seed=seed), 64, seed)
    examples = data.Mapped(records, data.Examples(tokenizer, end))
    return data.BatchedRows(data.Packed(examples, 64, packing="cut", pad=end), batch)


def train(
    config: Any, batches: data.Stream[Any], root: pathlib.Path, steps: int, seed: int
) -> list[float]:
    """Train to a step, from the newest checkpoint of `root` if there is one. Returns the losses."""
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(3e-3, weight_decay=0.1))

    def loss(params: Any, batch: Any) -> Any:
        options: dict[str, Any] = {"ignore_index": -100, "segment_ids": batch["segment_ids"]}
        return decoder.loss(params, batch["tokens"], batch["labels"], config, **options)

    def step(state: dict[str, Any], batch: Any) -> tuple[dict[str, Any], Any]:
        value, grads = gf.value_and_grad(loss)(state["params"], batch)
        updates, moments = optimizer.update(grads, state["moments"], state["params"])
        return {"params": optim.apply_updates(state["params"], updates), "moments": moments}, value

    step = gf.jit(step, donate_argnums=0)
    params = decoder.init(gf.random.key(seed), config)
    state, done, losses = {"params": params, "moments": optimizer.init(params)}, 0, []
    if io.steps(root):
        state, done, values = io.restore(root, state)
        batches.set_state(values["data"])
    while done < steps:
        state, value = step(state, next(batches))
        done += 1
        losses.append(float(value))
        if done % 20 == 0 or done == steps:
            print(f"step {done}: loss {losses[-1]:.3f}")
            io.save(root, done, state, {"data": batches.get_state()}, keep=2)
    return losses


def main(steps: int = 80, batch: int = 8, seed: int = 0) -> tuple[float, float, float]:
    """Train twice, once in two parts. Returns the first loss, and the last one of either run."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = folder / "texts.jsonl"
        tokenizer = data.train_tokenizer(write_texts(path), vocab_size=300)
        config = models.DecoderConfig(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=128,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        )  # fmt: skip
        run = lambda root, steps: train(
            config, batches_of(path, tokenizer, batch, seed), folder / root, steps, seed
        )
        whole = run("whole", steps)
        run("parts", steps // 2)
        parts = run("parts", steps)  # which goes on from the checkpoint
        print(f"in one part {whole[-1]!r}, in two {parts[-1]!r}")
        return whole[0], whole[-1], parts[-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    for option in ("--steps", "--batch", "--seed"):
        parser.add_argument(option, type=int)
    main(**vars(parser.parse_args()))
