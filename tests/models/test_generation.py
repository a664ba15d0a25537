"""Generation against transformers: penalties, stop strings, configs; streams, sessions and text in
pieces; programs that many lengths share."""

from __future__ import annotations

import dataclasses
import json
import logging
import warnings

import numpy as np
import pytest
import torch

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import data, io, models, nn, random
from genesis_fn.models import GenerationConfig, Session, StreamedToken, TextStream, generate, qwen
from genesis_fn.models.generation.prompts import bucket
from tests.models.test_qwen import reference
from tests.support.documents import run

TOKENS = np.random.default_rng(0).integers(0, 61, (2, 12)).astype(np.int32)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """(transformers' model, our parameters, our config)."""
    model = reference("qwen3")
    with torch.no_grad():
        model.model.norm.weight.mul_(0.4)
    folder = tmp_path_factory.mktemp("qwen3")
    model.save_pretrained(folder)
    return model, *io.load_qwen(folder)


def theirs(model, tokens, **options):
    """The new tokens of transformers' greedy generation, whose choices are clear, and the logits of
    the model for each."""
    ids = torch.from_numpy(np.asarray(tokens, np.int64))
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), output_scores=True, output_logits=True,
            return_dict_in_generate=True, **{"do_sample": False, "pad_token_id": 60, **options},
        )  # fmt: skip
    best = torch.stack(out.scores).topk(2).values
    assert (best[..., 0] - best[..., 1]).min() > 1e-3, "no test: a choice is not clear"
    return out.sequences.numpy()[:, ids.shape[1] :], torch.stack(out.logits, 1).numpy()


# ---- options of transformers ----

GREEDY = {
    "plain": dict(),
    "repetition": dict(repetition_penalty=1.6),
    "an end": dict(eos_token_id=26),
    "ends that must wait": dict(eos_token_id=[26, 10, 50], min_new_tokens=4),
    "a least length": dict(eos_token_id=[26, 10, 50], min_length=14),
    "a length": dict(max_length=17, max_new_tokens=None),
    "both": dict(repetition_penalty=0.7, eos_token_id=41, min_new_tokens=1),
    "no length": dict(max_new_tokens=None),
}


@pytest.mark.parametrize("name", GREEDY)
def test_greedy_tokens_are_those_of_transformers(pair, name):
    model, params, config = pair
    options = {"max_new_tokens": 9, **GREEDY[name]}
    expected, _ = theirs(model, TOKENS, **options)
    generation = GenerationConfig(pad_token_id=60, **options)
    out, ends = generate(params, TOKENS, config, generation=generation)
    new = np.asarray(out)[:, 12:]
    np.testing.assert_array_equal(new[:, : expected.shape[1]], expected)
    assert (new[:, expected.shape[1] :] == 60).all()
    for row, end in zip(new, np.asarray(ends)):
        assert (row[end - 12 :] == 60).all()


def test_logprobs_are_the_models_own(pair):
    model, params, config = pair
    options = dict(max_new_tokens=8, eos_token_id=[26, 41], repetition_penalty=1.3)
    expected, logits = theirs(model, TOKENS, **options)
    out, ends, logprobs = generate(
        params, TOKENS, config, generation=GenerationConfig(**options), return_logprobs=True
    )
    assert logprobs.shape == (2, 8) and logprobs.dtype == jnp.float32
    wide = logits.astype(np.float64)
    logp = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    for row in range(2):
        n = int(ends[row]) - 12
        want = logp[row, np.arange(n), expected[row, :n]]
        np.testing.assert_allclose(logprobs[row, :n], want, atol=1e-4)
        assert not np.asarray(logprobs)[row, n:].any()


def test_presence_and_frequency_penalties(pair):
    """Against the same loop in NumPy, without a cache."""
    _, params, config = pair
    out, _ = generate(
        params, TOKENS, config, max_new_tokens=8, presence_penalty=0.9, frequency_penalty=0.4
    )
    for row in range(2):
        tokens, counts = TOKENS[row].tolist(), np.zeros(61)
        for _ in range(8):
            padded = jnp.asarray([tokens + [0] * (20 - len(tokens))])
            logits = np.asarray(qwen.forward(params, padded, config))[0, len(tokens) - 1]
            tokens.append(int((logits - 0.4 * counts - 0.9 * (counts > 0)).argmax()))
            counts[tokens[-1]] += 1
        assert np.asarray(out)[row].tolist() == tokens


def test_arguments_count_before_the_config(pair):
    _, params, config = pair
    generation = GenerationConfig(max_new_tokens=3, do_sample=True, eos_token_id=5, top_k=7)
    run = lambda **options: np.asarray(generate(params, TOKENS, config, **options)[0]).tolist()
    plain = run(max_new_tokens=5)
    assert run(generation=generation, max_new_tokens=5, temperature=0.0, eos=[]) == plain
    drawn = run(max_new_tokens=3, temperature=1.0, top_k=7, eos=5, key=random.key(4))
    assert run(generation=generation, key=random.key(4)) == drawn
    assert run(generation=GenerationConfig(3, do_sample=True, top_k=7, seed=4)) == drawn
    assert run(max_new_tokens=0) == TOKENS.tolist()


def test_several_sequences_of_each_prompt(pair):
    _, params, config = pair
    generation = GenerationConfig(max_new_tokens=6, do_sample=True, num_return_sequences=3, seed=1)
    out, ends = generate(params, TOKENS, config, generation=generation, lengths=[12, 5])
    assert out.shape == (6, 18) and ends.tolist() == [18] * 3 + [11] * 3
    rows = np.asarray(out)
    assert (rows[:3, :12] == TOKENS[0]).all() and (rows[3:, :5] == TOKENS[1, :5]).all()
    assert len({tuple(r) for r in rows.tolist()}) == 6


def test_the_page_on_generation_runs_and_prints_what_it_says(tmp_path, monkeypatch):
    assert run("generation.md", tmp_path, monkeypatch) == 3


# ---- programs that lengths share ----


def compiled(caplog, run):
    """How many programs a call compiles."""
    caplog.clear()
    with gf.log_compiles(True), caplog.at_level(logging.WARNING, "genesis_fn"):
        run()
    lines = [r.getMessage() for r in caplog.records]
    return [line.split()[1] for line in lines if line.startswith("compiling")]


def test_buckets():
    found = [bucket(n) for n in range(1, 4097)]
    assert sorted({*found}) == [16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
                                2048, 3072, 4096]  # fmt: skip
    assert all(n <= b and (b == 16 or 3 * b < 5 * n) for n, b in enumerate(found, 1))


def test_lengths_within_a_bucket_compile_nothing_more(pair, caplog):
    _, params, config = pair
    config = gf.models.QwenConfig(**{**vars(config), "max_position_embeddings": 63})

    def run(length, new):
        tokens = np.full((1, length), 7, np.int32)
        assert generate(params, tokens, config, max_new_tokens=new)[0].shape == (1, length + new)

    names = compiled(caplog, lambda: run(12, 30))
    assert {"prefill", "decode"} <= {*names} and len(names) == len({*names})
    lengths = [(9, 31), (1, 17), (16, 32), (3, 25), (7, 32)]
    again = compiled(caplog, lambda: [run(*case) for case in lengths])
    assert not {"prefill", "decode", "joined"} & {*again}
    # Lengths of other buckets are no reason to warn, which would fail here.
    for length, new in [(20, 4), (30, 4), (40, 4), (60, 4)]:
        run(length, new)


def test_seeds_and_keys_share_programs(pair, caplog):
    _, params, config = pair
    config = gf.models.QwenConfig(**{**vars(config), "max_position_embeddings": 62})
    seeded = lambda seed, heat=0.7: GenerationConfig(
        max_new_tokens=3, do_sample=True, temperature=heat, top_k=None, seed=seed
    )
    ways = [
        {}, dict(key=random.key(0)), dict(generation=seeded(None)), dict(generation=seeded(0)),
        dict(generation=seeded(5), key=random.key(0)),
    ]  # fmt: skip
    found = []

    def run(**options):
        options = dict(max_new_tokens=3, temperature=0.7) | options
        found.append(np.asarray(generate(params, TOKENS, config, **options)[0]).tolist())

    first = compiled(caplog, lambda: run(**ways[0]))
    assert {"prefill", "decode"} <= {*first}
    again = compiled(caplog, lambda: [run(**way) for way in ways])
    assert not {"prefill", "decode", "joined"} & {*again}
    assert all(tokens == found[0] for tokens in found)
    greedy = compiled(caplog, lambda: run(temperature=0.0))
    assert {"prefill", "decode"} <= {*greedy}
    assert not compiled(caplog, lambda: run(generation=seeded(5, heat=0.0), temperature=None))


def test_session_lengths_share_programs(pair, caplog):
    _, params, config = pair
    session = Session(params, config, capacity=90, cache_dtype="float32")
    generation = GenerationConfig(max_new_tokens=5)
    history = TOKENS[0].tolist()

    def turn(count):
        history.extend(TOKENS[1, :count].tolist())
        history.extend(t.token for t in session.stream(history, generation, chunk=2))

    first = compiled(caplog, lambda: [turn(0), turn(2)])  # an empty cache, and one that has a turn
    assert [first.count(name) for name in ("prefill", "resume", "decode")] == [1, 1, 1]
    again = compiled(caplog, lambda: [turn(n) for n in (3, 1, 9, 12, 2)])
    assert not {"resume", "decode", "prefill"} & {*again}


# ---- what a row's tokens depend on ----


def test_drawn_tokens_depend_on_the_key_and_the_rows_number(pair):
    """Not on the neighbours, the padding or the length of the others' continuations."""
    _, params, config = pair
    options = dict(temperature=1.3, top_p=0.9, key=random.key(8))
    alone, _ = generate(params, TOKENS[:1, :7], config, max_new_tokens=10, **options)
    wide = np.concatenate([TOKENS[:1], TOKENS, TOKENS])
    wide = np.pad(wide, ((0, 0), (0, 30)))
    lengths = [7, 12, 3, 40, 1]
    beside, ends = generate(params, wide, config, max_new_tokens=12, lengths=lengths, **options)
    np.testing.assert_array_equal(np.asarray(beside)[0, :17], np.asarray(alone)[0])
    assert ends.tolist() == [n + 12 for n in lengths]
    traced = gf.jit(lambda p, x: generate(p, x, config, max_new_tokens=10, **options))
    np.testing.assert_array_equal(traced(params, jnp.asarray(TOKENS[:1, :7]))[0], alone)
    other, _ = generate(params, TOKENS[:1, :7], config, max_new_tokens=10, **options | {
        "key": random.key(9)
    })  # fmt: skip
    assert not np.array_equal(other, alone)


def test_without_jit_the_tokens_are_the_same(pair):
    _, params, config = pair
    generation = GenerationConfig(max_new_tokens=3, do_sample=True, repetition_penalty=1.2, seed=2)
    run = lambda: (
        np.asarray(generate(params, TOKENS[:, :5], config, generation=generation)[0])[
            0, 5:
        ].tolist(),
        [t.token for t in models.stream(params, TOKENS[0, :5], config, generation=generation)],
    )
    compiled = run()
    with gf.disable_jit():
        assert run() == compiled


def test_keys_are_used_once(pair):
    _, params, config = pair
    with gf.check_keys(True), warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(params, TOKENS, config, max_new_tokens=4, temperature=1.0, key=random.key(3))
        generation = GenerationConfig(max_new_tokens=6, do_sample=True)
        list(models.stream(params, [1], config, generation=generation, key=random.key(4), chunk=2))


# ---- streams and sessions ----


def test_a_stream_is_generate(pair):
    _, params, config = pair
    generation = GenerationConfig(
        max_new_tokens=20, do_sample=True, eos_token_id=(5, 9), seed=3, repetition_penalty=1.2
    )
    prompt = TOKENS[0]
    out, ends, logprobs = generate(
        params, prompt[None], config, generation=generation, return_logprobs=True
    )
    expected = np.asarray(out)[0, 12 : int(ends[0])].tolist()
    for chunk in (1, 7):
        found = list(models.stream(params, prompt, config, generation=generation, chunk=chunk))
        assert [t.token for t in found] == expected
        np.testing.assert_allclose(
            [t.logprob for t in found], np.asarray(logprobs)[0, : len(found)], atol=1e-5
        )
        assert [t.finished for t in found] == [False] * (len(found) - 1) + [True]
        ended = expected[-1] in (5, 9)
        assert found[-1].reason == ("eos" if ended else "length") and not found[0].reason
    none = models.stream(params, prompt, config, generation=GenerationConfig(max_new_tokens=0))
    assert list(none) == []


def fresh(pair, history, generation, capacity=90):
    _, params, config = pair
    return list(Session(params, config, capacity=capacity).stream(history, generation))


def same(found, expected):
    assert [t.token for t in found] == [t.token for t in expected]
    assert [t.reason for t in found] == [t.reason for t in expected]
    np.testing.assert_allclose([t.logprob for t in found], [t.logprob for t in expected], atol=1e-4)


def test_a_session_computes_what_is_new(pair):
    _, params, config = pair
    session = Session(params, config, capacity=90)
    generation = GenerationConfig(max_new_tokens=5, repetition_penalty=1.3)
    history = TOKENS[0].tolist()
    for turn in range(3):
        found = list(session.stream(history, generation))
        # All but the last token, which was drawn but not read, and what is new.
        assert session.reused == (0 if turn == 0 else len(history) - 4)
        same(found, fresh(pair, history, generation))
        history += [t.token for t in found] + [1, 2, 3]
    # Another beginning: the common one alone is reused.
    other = [*history[:6], 60, *history[7:]]
    same(list(session.stream(other, generation)), fresh(pair, other, generation))
    assert session.reused == 6
    # The same history once more: its last token is computed for what follows it.
    same(list(session.stream(other, generation)), fresh(pair, other, generation))
    assert session.reused == len(other) - 1
    shorter = other[:4]
    same(list(session.stream(shorter, generation)), fresh(pair, shorter, generation))
    assert session.reused == 3


def test_a_stream_that_is_cut_leaves_the_session_as_it_was(pair):
    _, params, config = pair
    session = Session(params, config, capacity=90)
    generation = GenerationConfig(max_new_tokens=12)
    history = TOKENS[0].tolist()
    whole = fresh(pair, history, generation)
    running = session.stream(history, generation, chunk=4)
    first = [next(running).token for _ in range(3)]
    running.close()
    assert first == [t.token for t in whole[:3]]
    history += first
    rest = list(session.stream(history, GenerationConfig(max_new_tokens=9)))
    assert [t.token for t in rest] == [t.token for t in whole[3:]]
    assert session.reused == len(history) - 1


def test_an_interrupted_call_leaves_a_session_usable(pair, monkeypatch):
    from genesis_fn.models.generation import sessions

    _, params, config = pair
    session = Session(params, config, capacity=90)
    generation = GenerationConfig(max_new_tokens=6)
    history = TOKENS[0].tolist()
    list(session.stream(history, generation))

    def interrupted(plan):
        def call(*args):
            raise KeyboardInterrupt

        return call

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(sessions, "decode_program", interrupted)
        list(session.stream([*history, 1], generation))
    same(list(session.stream([*history, 2], generation)), fresh(pair, [*history, 2], generation))
    assert session.reused == 0


def test_a_session_that_is_full(pair):
    _, params, config = pair
    session = Session(params, config, capacity=20)
    history = np.resize(TOKENS, 18)
    generation = GenerationConfig(max_new_tokens=8)
    whole = fresh(pair, history, generation)
    found = list(session.stream(history, generation))
    assert [t.token for t in found] == [t.token for t in whole[:3]]
    assert found[-1].finished and found[-1].reason == "capacity"
    # The end of the cache, where the padding of what is new has no room behind what is reused.
    long = [*history, 7, 7]
    found = list(session.stream(long, generation))
    same(found, fresh(pair, long, generation, capacity=20))
    assert len(found) == 1 and session.reused <= 18
    with pytest.raises(ValueError, match="history has 21 tokens, more than the session's capacity"):
        session.stream([*long, 1])
    assert Session(params, config).capacity == config.max_position_embeddings


def test_a_session_reuses_no_keys_that_dynamic_scaling_changes(pair):
    _, params, config = pair
    # So strong that a key of another length is seen.
    config = dataclasses.replace(config, rope_scaling=nn.DynamicScaling(8.0, 16))
    stretched = (None, params, config)
    session = Session(params, config, capacity=90)
    generation = GenerationConfig(max_new_tokens=3)
    history = np.resize(TOKENS, 10).tolist()
    # Up to the trained length, 16, all is reused; behind it nothing.
    for more, reused in (([], 0), ([1], 12), ([2, 3, 4], 0)):
        history += more
        found = list(session.stream(history, generation))
        same(found, fresh(stretched, history, generation))
        assert session.reused == reused
        history += [t.token for t in found]
    # Nor the beginning of a text that was longer.
    short = history[:9]
    same(list(session.stream(short, generation)), fresh(stretched, short, generation))
    assert session.reused == 0


def test_one_stream_at_a_time(pair):
    _, params, config = pair
    session = Session(params, config, capacity=40)
    first = session.stream([1, 2, 3], GenerationConfig(max_new_tokens=5))
    next(first)
    second = session.stream([4, 5], GenerationConfig(max_new_tokens=2))
    assert len(list(second)) == 2
    with pytest.raises(ValueError, match="another stream of this session has begun"):
        next(first)


# ---- stop strings ----


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """(transformers' model, our parameters, our config, transformers' tokenizer, ours) of a
    vocabulary of 300 byte-pair entries."""
    import transformers

    corpus = [
        "the cat sat on the mat, then the cats sat there — naïve café 東京 🙂 ",
        "stopped stop",
    ]
    tokenizer = data.train_tokenizer(corpus * 3, 300)
    size = tokenizer.get_vocab_size()
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    config = transformers.Qwen3Config(
        vocab_size=size, hidden_size=32, intermediate_size=56, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, head_dim=16,
    )  # fmt: skip
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    model = transformers.Qwen3ForCausalLM(config).float().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    folder = tmp_path_factory.mktemp("texts")
    model.save_pretrained(folder)
    return model, *io.load_qwen(folder), wrapped, tokenizer


def test_stop_strings_end_with_the_token_that_transformers_ends_with(texts):
    model, params, config, wrapped, tokenizer = texts
    prompts = np.random.default_rng(5).integers(1, config.vocab_size, (3, 6)).astype(np.int32)
    free, _ = theirs(model, prompts, max_new_tokens=40)
    strings = []
    for prompt, new in zip(prompts, free):
        text = tokenizer.decode(prompt.tolist())
        texts_of = [tokenizer.decode([*prompt, *new[:n]])[len(text) :] for n in range(1, 40)]
        clear = [t for t in texts_of if "\ufffd" not in t and len(t) > 5] or texts_of
        strings.append(clear[0][-3:].replace("\ufffd", "") or "zz")
    # One that begins in the prompt, and one that never comes.
    beginning = tokenizer.decode([*prompts[0], *free[0, :2]])
    cases = [strings, [strings[0]], ["never there"], [beginning[-4:].replace("\ufffd", "") or "q"]]
    stopped = 0
    for stop in cases:
        expected, _ = theirs(
            model, prompts, max_new_tokens=40, stop_strings=stop, tokenizer=wrapped, eos_token_id=9
        )
        out, ends = generate(
            params, prompts, config, max_new_tokens=40, stop_strings=stop, tokenizer=tokenizer,
            eos=9, generation=GenerationConfig(pad_token_id=60),
        )  # fmt: skip
        new = np.asarray(out)[:, 6:]
        np.testing.assert_array_equal(new[:, : expected.shape[1]], expected)
        assert (new[:, expected.shape[1] :] == 60).all()
        stopped += int((np.asarray(ends) < 46).sum())
        generation = GenerationConfig(max_new_tokens=40, stop_strings=stop, eos_token_id=9)
        found = list(
            models.stream(params, prompts[0], config, generation=generation, tokenizer=wrapped)
        )
        assert [t.token for t in found] == np.asarray(out)[0, 6 : int(ends[0])].tolist()
        if len(found) < 40 and found[-1].token != 9:
            assert found[-1].reason == "stop_string"
    assert stopped > 2


# ---- text out of tokens ----

SENTENCE = "the cats — naïve café 東京 🙂🙂 stopped,  there\n the mat"


def pieces(tokens, text):
    found = [text.push(t) for t in tokens]
    return [*found, text.finish()]


def sentencepiece():
    """A tokenizer with the decoder of Llama's: pieces with blanks, bytes, a stripped beginning."""
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE

    entries = ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)]]
    entries += ["▁", "▁the", "▁cat", "s", "▁sat", "e", "é", "naï", "▁▁"]
    tokenizer = Tokenizer(BPE({e: i for i, e in enumerate(entries)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])  # fmt: skip
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer, {e: i for i, e in enumerate(entries)}


def of_bytes(text):
    return [f"<0x{b:02X}>" for b in text.encode()]


def test_text_of_byte_pairs_comes_in_whole_characters(texts):
    tokenizer = texts[-1]
    tokens = tokenizer.encode(SENTENCE * 4).ids
    found = pieces(tokens, TextStream(tokenizer))
    assert "".join(found) == SENTENCE * 4 and "\ufffd" not in "".join(found)
    assert sum(bool(p) for p in found) > len(tokens) // 2
    assert "".join(pieces(tokens, TextStream(texts[-2]))) == SENTENCE * 4
    # Any tokens: what is no text is marked, as the tokenizer marks it.
    rng = np.random.default_rng(0)
    for _ in range(20):
        tokens = rng.integers(1, tokenizer.get_vocab_size(), 60).tolist()
        text = "".join(pieces(tokens, TextStream(tokenizer)))
        assert text == tokenizer.decode(tokens)


def test_text_of_sentence_pieces_keeps_its_blanks():
    tokenizer, ids = sentencepiece()
    words = [
        "▁the", "▁", "▁", *of_bytes("🙂東"), "▁cat", "s", "<s>", "▁sat", "▁▁", "▁the", "é",
        *of_bytes("京🙂"), "naï", "</s>", "▁cat", "▁",
    ]  # fmt: skip
    tokens = [ids[w] for w in words] * 5
    expected = tokenizer.decode(tokens, skip_special_tokens=True)
    found = pieces(tokens, TextStream(tokenizer))
    assert "".join(found) == expected and "\ufffd" not in expected
    assert "\ufffd" not in "".join(found)
    # Behind a prompt the first blank is one of the text.
    assert pieces([ids["▁cat"]], TextStream(tokenizer, prompt=[ids["▁the"]])) == [" cat", ""]
    assert pieces([ids["▁cat"]], TextStream(tokenizer)) == ["cat", ""]


@pytest.mark.parametrize("stop", [(), ("京🙂",), ("京東都",)], ids=str)
def test_a_prompt_is_cut_between_characters(stop):
    """Of bytes that follow one another this decoder marks all where the first is within a
    character."""
    tokenizer, ids = sentencepiece()
    new = [ids[w] for w in of_bytes("東都🙂")]
    for before in ["", "🙂", *["東" * n + "é🙂京" for n in range(9)]]:
        for some in range(3):
            prompt = [ids[w] for w in of_bytes(before)] + new[:some]
            text = TextStream(tokenizer, stop, prompt=prompt)
            found = "".join(pieces(new[some:], text))
            stopped = stop == ("京東都",) and before.endswith("京")
            assert (found, text.stopped) == ("" if stopped else "東都🙂", stopped)


def test_text_holds_back_what_may_begin_a_stop_string(texts):
    tokenizer = texts[-1]
    for stop in (["stopped"], ["mat", "opp"], ["zzz"], ["東京 🙂", "🙂🙂 s"], ["\n the mat!"]):
        for tokens in (tokenizer.encode(SENTENCE).ids, [
            t for c in SENTENCE for t in tokenizer.encode(c).ids
        ]):  # fmt: skip
            text = TextStream(tokenizer, stop)
            shown, ended = "", None
            for at, token in enumerate(tokens):
                shown += text.push(token)
                whole = tokenizer.decode(tokens[: at + 1])
                if any(s in whole for s in stop) and ended is None:
                    ended = at
                    assert text.stopped
                assert SENTENCE.startswith(shown)
                assert text.stopped == (ended is not None)
            shown += text.finish()
            first = [SENTENCE.index(s) for s in stop if s in SENTENCE]
            ends = sorted((SENTENCE.index(s) + len(s), s) for s in stop if s in SENTENCE)
            cut = ends[0][0] - len(ends[0][1]) if first else len(SENTENCE)
            assert shown == SENTENCE[:cut]
            assert text.push(tokens[0]) == ("" if text.stopped else tokenizer.decode(tokens[:1]))


def test_a_stop_string_of_the_prompt_alone_stops_nothing(texts):
    tokenizer = texts[-1]
    ids = lambda text: [t for c in text for t in tokenizer.encode(c).ids]
    text = TextStream(tokenizer, ["t", "ttt"], prompt=ids("att"))
    assert text.push(ids("e")[0]) == "e" and not text.stopped
    text = TextStream(tokenizer, ["tte"], prompt=ids("att"))
    assert text.push(ids("e")[0]) == "" and text.stopped


def test_a_special_token_may_stop_and_is_not_shown(texts):
    tokenizer = texts[-1]
    end = tokenizer.token_to_id(data.END)
    tokens = [*tokenizer.encode("the cat").ids, end, *tokenizer.encode("sat").ids]
    assert "".join(pieces(tokens, TextStream(tokenizer))) == "the catsat"
    text = TextStream(tokenizer, [data.END])
    assert "".join(pieces(tokens, text)) == "the cat" and text.stopped
    across = TextStream(tokenizer, [f"cat{data.END}s"])
    assert "".join(pieces(tokens, across)) == "the " and across.stopped
    with pytest.raises(ValueError, match="must not be empty"):
        TextStream(tokenizer, [""])


@pytest.mark.parametrize("kind", ["text", "marks", "blanks", "bytes"])
def test_a_token_of_a_long_text_costs_what_one_of_a_short_text_does(texts, kind):
    tokenizer, ids = (texts[-1], {}) if kind == "text" else sentencepiece()
    words = {"marks": ["<0xFF>"], "blanks": ["▁"], "bytes": of_bytes("東")}
    once = tokenizer.encode(SENTENCE).ids if kind == "text" else [ids[w] for w in words[kind]]

    class Counted:
        decoded = 0

        def decode(self, tokens, **options):
            self.decoded += len(tokens)
            return tokenizer.decode(tokens, **options)

    counted = Counted()
    tokens = once * (3000 // len(once))
    text = "".join(pieces(tokens, TextStream(counted, ["never"])))
    assert counted.decoded < 100 * len(tokens)
    if kind != "marks":
        assert text == tokenizer.decode(tokens)


# ---- configs ----


def test_configs_are_those_of_transformers(tmp_path):
    import transformers

    cases = [
        {}, dict(do_sample=True, temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.05,
                 eos_token_id=[3, 4], pad_token_id=3, bos_token_id=3),
        dict(max_new_tokens=7, num_beams=3, early_stopping="never", length_penalty=0.5,
             num_return_sequences=2, eos_token_id=3, stop_strings=["a", "b"]),
        dict(do_sample=True, min_p=0.1, typical_p=0.9, max_length=99, min_length=3,
             min_new_tokens=2),
    ]  # fmt: skip
    for values in cases:
        folder = tmp_path / str(len(values))
        transformers.GenerationConfig(**values).save_pretrained(folder)
        config = GenerationConfig.from_file(folder)
        assert config == GenerationConfig.from_dict(values)
        for name, value in values.items():
            found = getattr(config, name)
            assert found == (tuple(value) if isinstance(value, list) else value)
        written = config.to_dict()
        (folder / "generation_config.json").write_text(json.dumps(written))
        again = transformers.GenerationConfig.from_pretrained(folder)
        for name, value in written.items():
            assert getattr(again, name) == value
        assert GenerationConfig.from_file(folder / "generation_config.json") == config
    assert GenerationConfig(eos_token_id=[9, 4, 9]).ends == (4, 9)
    assert (GenerationConfig(eos_token_id=3).ends, GenerationConfig().ends) == ((3,), ())
    everything = GenerationConfig(top_k=None, presence_penalty=1.0, seed=5)
    assert everything.to_dict()["top_k"] == 0
    assert GenerationConfig.from_dict(everything.to_dict()) == everything
    # What transformers writes of all its fields is read.
    full = transformers.GenerationConfig(do_sample=True, top_k=5).to_dict()
    assert GenerationConfig.from_dict(full) == GenerationConfig(do_sample=True, top_k=5)


def test_special_tokens_of_a_models_config(tmp_path):
    with pytest.raises(io.FileError, match="no generation_config.json and no config.json"):
        GenerationConfig.from_file(tmp_path)
    (tmp_path / "config.json").write_text('{"eos_token_id": [7, 8], "bos_token_id": null, "x": 1}')
    assert GenerationConfig.from_file(tmp_path) == GenerationConfig(eos_token_id=(7, 8))
    # As in the first conversions of LLaMA.
    (tmp_path / "config.json").write_text('{"eos_token_id": [7, 8], "pad_token_id": -1}')
    assert GenerationConfig.from_file(tmp_path) == GenerationConfig(eos_token_id=(7, 8))
    own = tmp_path / "generation_config.json"
    own.write_text('{"temperature": 0.5, "eos_token_id": null}')
    expected = GenerationConfig(temperature=0.5, eos_token_id=(7, 8))
    assert GenerationConfig.from_file(tmp_path) == expected
    own.write_text('{"eos_token_id": 3}')
    assert GenerationConfig.from_file(tmp_path).eos_token_id == 3
    for text in ('{"temperature": "hot"}', '{"no_repeat_ngram_size": 2}', "[]", '{"a": 1}'):
        own.write_text(text)
        with pytest.raises(io.FileError, match="generation_config.json"):
            GenerationConfig.from_file(tmp_path)


def test_fields_of_a_models_config_hold_where_no_other_file_is(tmp_path):
    """As transformers reads them, which models had before there was a generation_config.json."""
    import transformers

    file = tmp_path / "config.json"
    shape = dict(
        model_type="qwen3", vocab_size=61, hidden_size=32, torch_dtype="float32", seed=None
    )
    older = dict(
        max_length=20, min_length=0, do_sample=False, early_stopping=False, num_beams=1,
        num_beam_groups=1, diversity_penalty=0.0, temperature=1.0, top_k=50, top_p=1.0,
        typical_p=1.0, repetition_penalty=1.0, length_penalty=1.0, no_repeat_ngram_size=0,
        encoder_no_repeat_ngram_size=0, bad_words_ids=None, num_return_sequences=1,
        output_scores=False, return_dict_in_generate=False, forced_bos_token_id=None,
        forced_eos_token_id=None, remove_invalid_values=False, suppress_tokens=None,
        begin_suppress_tokens=None, exponential_decay_length_penalty=None, tf_legacy_loss=False,
        eos_token_id=7, bos_token_id=1, pad_token_id=None,
    )  # fmt: skip
    cases = [
        {}, older, dict(repetition_penalty=5.0, max_length=7),
        dict(do_sample=True, temperature=0.3, top_k=4, top_p=0.5, min_p=0.2, typical_p=0.9),
        dict(min_length=3, min_new_tokens=2, max_new_tokens=9, stop_strings=["a"]),
        dict(num_beams=3, length_penalty=0.5, early_stopping=True, num_return_sequences=2),
        dict(eos_token_id=[7, 8], pad_token_id=0, bos_token_id=1),
    ]  # fmt: skip
    for values in cases:
        file.write_text(json.dumps({**shape, **values}))
        found = GenerationConfig.from_file(tmp_path)
        theirs = transformers.GenerationConfig.from_pretrained(
            tmp_path, config_file_name="config.json", _from_model_config=True
        )
        taken = {n: v for n, v in theirs.to_dict().items() if hasattr(found, n) and v is not None}
        assert {n for n, v in values.items() if v is not None and hasattr(found, n)} <= taken.keys()
        assert found == GenerationConfig(**taken)
    for name, value in {"suppress_tokens": [1, 2], "no_repeat_ngram_size": 2, "top_p": 7}.items():
        file.write_text(json.dumps({**shape, name: value}))
        with pytest.raises(io.FileError, match=f"config.json: .*{name} is"):
            GenerationConfig.from_file(tmp_path)
    # Beside a generation_config.json they are nothing.
    file.write_text(json.dumps({**shape, "repetition_penalty": 5.0, "suppress_tokens": [1]}))
    (tmp_path / "generation_config.json").write_text("{}")
    assert GenerationConfig.from_file(tmp_path) == GenerationConfig()


REFUSED = {
    "no_repeat_ngram_size": 3, "guidance_scale": 1.5, "bad_words_ids": [[1]], "max_time": 3.0,
    "renormalize_logits": True, "num_beam_groups": 2, "never_heard_of": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_fields_that_would_change_tokens_are_refused_by_name(name):
    with pytest.raises(ValueError, match=f"{name} is .*, (which|a field that) this library does"):
        GenerationConfig.from_dict({name: REFUSED[name]})
    assert GenerationConfig.from_dict({"use_cache": False, "cache_implementation": "hybrid"})


NUMBERS = {
    "max_new_tokens": -1, "max_length": 0, "min_new_tokens": 1.5, "min_length": -2,
    "do_sample": 1, "temperature": float("nan"), "top_k": -1, "top_p": 0.0, "min_p": 1.1,
    "typical_p": 1.5, "repetition_penalty": 0.0, "presence_penalty": float("inf"),
    "frequency_penalty": "a", "eos_token_id": [1, -1], "pad_token_id": True, "bos_token_id": 2**40,
    "stop_strings": [""], "num_beams": 0, "length_penalty": 10**400, "early_stopping": 2,
    "num_return_sequences": 2, "seed": -1,
}  # fmt: skip


def test_every_field_is_checked():
    assert {*NUMBERS} == {*GenerationConfig().__dict__}
    for name, value in NUMBERS.items():
        with pytest.raises(ValueError, match=f"{name} is"):
            GenerationConfig(**{name: value})
        with pytest.raises(ValueError, match=f"generation config: {name} is"):
            GenerationConfig.from_dict({name: value})


WRONG = {
    "no length": (dict(), "give max_new_tokens, or a generation config"),
    "min_new_tokens": (dict(max_new_tokens=1, min_new_tokens=-1), "min_new_tokens -1 must not be"),
    "repetition": (dict(max_new_tokens=1, repetition_penalty=0.0), "penalty 0.0 must be positive"),
    "nan": (dict(max_new_tokens=1, presence_penalty=float("nan")), "presence_penalty nan must be"),
    "min_p": (dict(max_new_tokens=1, min_p=2.0), "min_p must lie in"),
    "tokenizer": (dict(max_new_tokens=1, stop_strings=["a"]), "need a tokenizer"),
    "long": (dict(generation=GenerationConfig(max_length=12)), "prompt has 12 tokens, and max_len"),
    "eos": (dict(generation=GenerationConfig(eos_token_id=61)), "eos 61 is no token of a vocab"),
    "beams": (
        dict(generation=GenerationConfig(num_beams=2, do_sample=True)), "can neither be combined",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_settings_out_of_range_are_named(pair, name):
    options, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        generate(pair[1], TOKENS, pair[2], **options)


STREAMS = {
    "two rows": (dict(tokens=TOKENS), "must be .length., at least one"),
    "none": (dict(tokens=[]), "at least one"),
    "floats": (dict(tokens=[1.0]), "must be integers"),
    "outside": (dict(tokens=[1, 61]), "61 is no token of a vocabulary of 61"),
    "chunk": (dict(chunk=0), "chunk 0 must not be below 1"),
    "beams": (dict(generation=GenerationConfig(num_beams=2)), "num_beams 2"),
    "strings": (dict(generation=GenerationConfig(stop_strings="a")), "need a tokenizer"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_are_checked_at_once(pair, name):
    options, message = STREAMS[name]
    with pytest.raises((ValueError, TypeError), match=message):
        models.stream(pair[1], **{"tokens": [1, 2], "config": pair[2], **options})
    with pytest.raises(ValueError, match="capacity 0 must not be below 1"):
        Session(pair[1], pair[2], capacity=0)


GENERATES = {
    "config": [{}, None, 3], "params": [None, {}, [1]], "generation": [{"max_new_tokens": 3}, 3],
}  # fmt: skip
SETTINGS = {
    "max_new_tokens": [2.0, "2", True, 2**40], "min_new_tokens": [1.5, False],
    "eos": ["a", [1.5], [[1]], 1.0, True, {"a": 1}],
    "repetition_penalty": ["a", [1.0, 2.0], int], "presence_penalty": ["1"],
}  # fmt: skip
DRAWN = {
    "top_k": [2.5, "3", True, 2**40], "temperature": ["a", "1", True, [1.0, 2.0], 10**400],
    "top_p": ["x", 1j, [0.5, 0.5]], "min_p": ["x"], "typical_p": [{}],
}  # fmt: skip
# (how it is called, the name that errors have, {argument: values of the wrong kind})
KINDS = {
    "generate": (models.generate, {**GENERATES, **SETTINGS, **DRAWN, "tokenizer": ["x", 3]}),
    "beam_search": (models.beam_search, {
        **GENERATES, **SETTINGS, "num_beams": [2.0, "2", True], "num_return_sequences": [1.5],
    }),
    "stream": (models.stream, {
        **GENERATES, "chunk": [2.5, "8", True, 2**40], "tokenizer": ["x"],
        "tokens": [[1, [2]], 3, "ab", None],
    }),
    "Session": (Session, {
        "config": [{}, None], "params": [None, {}], "capacity": [2.5, "8", 2**40],
    }),
    "Session.stream": (None, {
        "generation": [{}], "chunk": [2.5], "tokenizer": ["x"], "tokens": [[1, [2]]],
    }),
    "sample": (models.sample, {**DRAWN, "logits": [1.0, [], np.zeros((3, 0))]}),
    "TextStream": (TextStream, {
        "tokenizer": ["x", None], "stop": [None, [1, 2], 3, [""]], "prompt": [3, ["a"], [-1]],
    }),
    "TextStream.push": (None, {"token": [None, -1, 1.5, "a", True]}),
}  # fmt: skip


@pytest.mark.parametrize("caller", KINDS)
def test_arguments_of_another_kind_are_named(pair, texts, caller):
    _, params, config = pair
    call, arguments = KINDS[caller]
    tokenizer = texts[-2]
    strings = GenerationConfig(max_new_tokens=2, stop_strings="a")
    right = {
        "generate": dict(params=params, tokens=TOKENS, config=config, max_new_tokens=2,
                         temperature=1.0),
        "beam_search": dict(params=params, tokens=TOKENS, config=config, num_beams=2,
                            max_new_tokens=2),
        "stream": dict(params=params, tokens=[1, 2], config=config),
        "Session": dict(params=params, config=config),
        "Session.stream": dict(tokens=[1, 2]),
        "sample": dict(key=random.key(0), logits=[0.0, 1.0]),
        "TextStream": dict(tokenizer=tokenizer),
        "TextStream.push": {},
    }[caller]  # fmt: skip
    if caller == "Session.stream":
        call = Session(params, config, capacity=40).stream
    if caller == "TextStream.push":
        call = TextStream(tokenizer).push
    for name, values in arguments.items():
        for value in values:
            given = {**right, name: value}
            if name == "tokenizer" and caller != "TextStream":
                given["generation"] = strings
            # Both, as the library's own errors are.
            with pytest.raises(ValueError, match=rf"^{caller}: .*{name}") as error:
                call(**given)
            assert isinstance(error.value, TypeError), (name, value)


def test_fields_may_be_numbers_of_numpy():
    given = GenerationConfig(
        do_sample=np.bool_(True), early_stopping=np.bool_(False), temperature=np.float32(0.5),
        top_k=np.int64(3), eos_token_id=np.array([7, 5]),
    )  # fmt: skip
    assert given == GenerationConfig(do_sample=True, temperature=0.5, top_k=3, eos_token_id=[7, 5])
    assert json.loads(json.dumps(given.to_dict())) == given.to_dict()
    assert GenerationConfig(eos_token_id={5, 7}).ends == given.ends == (5, 7)
    for bad in (np.array([1.5]), np.array([[1]]), {"a": 1}, "5"):
        with pytest.raises(ValueError, match="eos_token_id is"):
            GenerationConfig(eos_token_id=bad)


def test_a_dictionary_of_fields_is_one():
    for values in (None, [], "a", 3):
        with pytest.raises(ValueError, match="generation config: .* is no dictionary"):
            GenerationConfig.from_dict(values)


def test_no_rows_are_refused(pair):
    for call in (models.generate, models.beam_search):
        with pytest.raises(gf.errors.ShapeError, match="at least one row"):
            call(
                pair[1], TOKENS[:0], pair[2], generation=GenerationConfig(num_beams=1),
                max_new_tokens=2,
            )  # fmt: skip


PROMPTS = {
    "outside": ([[1, 61]], "61 is no token of a vocabulary of 61"),
    "negative": ([[1, 2], [-1, 2]], "-1 is no token"),
    "ragged": ([[1, 2], [3]], r"tokens \[\[1, 2\], \[3\]\] have rows of several lengths; pad"),
    "ragged arrays": ([np.array([1, 2]), np.array([3])], "rows of several lengths; pad"),
    "one row": ([1, 2], r"must be \[batch, length\]"),
    "text": ("ab", r"must be integers \[batch, length\]"),
    "texts": ([["a"]], "must be integers"),
    "an array of texts": (np.array([["a"]]), "must be integers"),
    "none": (None, "must be integers"),
    "wide": ([[2**40]], "must be integers"),
    "floats": ([[1.0]], "must be integers"),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_that_are_none_are_named(pair, name):
    tokens, message = PROMPTS[name]
    with pytest.raises(ValueError, match=f"^generate: .*{message}"):
        generate(pair[1], tokens, pair[2], max_new_tokens=2)
    with pytest.raises(ValueError, match=f"^beam_search: .*{message}"):
        models.beam_search(pair[1], tokens, pair[2], num_beams=2, max_new_tokens=2)


def test_a_token_outside_is_an_index_error_and_padding_is_any_number(pair):
    _, params, config = pair
    whole = lambda x, **options: generate(params, x, config, max_new_tokens=2, **options)[0]
    for way in (whole, gf.jit(whole)):
        with pytest.raises(IndexError):
            np.asarray(way(jnp.array([[1, 61]])))
    padded = whole([[1, 5], [2, -100], [3, 999]], lengths=[2, 1, 1])
    np.testing.assert_array_equal(padded, whole([[1, 5], [2, 0], [3, 0]], lengths=[2, 1, 1]))


def test_stop_strings_are_refused_where_parameters_are_traced(pair, texts):
    _, params, config = pair
    run = lambda p: generate(
        p, [[1, 2]], config, max_new_tokens=2, stop_strings="a", tokenizer=texts[-1]
    )[0]  # fmt: skip
    with pytest.raises(ValueError, match="the host reads text for stop_strings"):
        gf.jit(run)(params)


def test_nan_weights_raise_in_a_stream(pair):
    _, params, config = pair
    bad = {**params, "norm": {"weight": params["norm"]["weight"] * jnp.nan}}
    session = Session(bad, config, capacity=20)
    with pytest.raises(AssertionError, match="the logits are NaN"):
        list(session.stream([1, 2, 3], GenerationConfig(max_new_tokens=2)))
    assert StreamedToken(1, -0.5, False).reason == ""
