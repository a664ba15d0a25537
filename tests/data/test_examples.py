"""Records to examples: tokens and learned tokens beside transformers', for kinds of templates."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from genesis_fn import data
from genesis_fn.data import ChatTemplate, Example, ExampleCounts, Examples, Mapped, RecordFiles
from genesis_fn.data.chat_files import TemplateText
from genesis_fn.errors import ArgumentError, FileError
from tests.data.test_chat_template import CHATML, HEADERS, INSTRUCT, THINKING, TOOLS, theirs

ASSISTANT = "{{- '<|im_start|>assistant\\n' }}\n        {%- if loop"
# The same templates with the answers marked by hand, as transformers finds them.
MARKED = {
    "chatml": (CHATML, """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' -}}
    {%- if message['role'] == 'assistant' -%}
        {%- generation -%}{{ message['content'] + '<|im_end|>' }}{%- endgeneration -%}
    {%- else -%}
        {{ message['content'] + '<|im_end|>' }}
    {%- endif -%}
    {{ '\\n' }}
{%- endfor -%}
"""),
    "thinking": (THINKING, THINKING.replace(
        ASSISTANT, ASSISTANT.replace("{%- if", "{%- generation %}\n        {%- if")
    ).replace(
        "{%- endfor %}\n        {{- '<|im_end|>\\n' }}",
        "{%- endfor %}\n        {{- '<|im_end|>' }}\n{%- endgeneration %}\n{{- '\\n' }}",
    )),
    "headers": (
        HEADERS.replace('"%B %Y"', '"2026"'),
        HEADERS.replace('"%B %Y"', '"2026"').replace(
            "{{- message['content'] | trim + '<|eot_id|>' }}",
            "{%- if message['role'] == 'assistant' %}"
            "{%- generation %}{{- message['content'] | trim + '<|eot_id|>' }}{%- endgeneration %}"
            "{%- else %}{{- message['content'] | trim + '<|eot_id|>' }}{%- endif %}",
        ),
    ),
    "instruct": (INSTRUCT, INSTRUCT),
    # Without a prompt of the model's turn, and with blanks in front of an answer.
    "plain instruct": (
        INSTRUCT.replace("{% generation", "{% if true").replace("{% endgeneration", "{% endif"),
        INSTRUCT,
    ),
    # The prompt begins a thought that the text of a finished answer does not have.
    "prompted": (
        CHATML.replace("assistant\\n' }}{%- endif", "assistant\\n<think>\\n' }}{%- endif"), None,
    ),
}  # fmt: skip
MARKED["prompted"] = (MARKED["prompted"][0], MARKED["chatml"][1])
WORDS = (
    "yes", "no", "", " ", "\n", "hello there", "  spaces  ", "\u00e9\u00df",
    "\U0001f600", "<think>", "assistant", "</think>", "<|im_start|>assistant", "user\n",
    "weather at a place", "[INST]", "\u2603\u2603\u2603",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from tokenizers import AddedToken

    texts = ["hello there, weather at a place: yes and no. " * 3, "user assistant system tool"]
    tokenizer = data.train_tokenizer(texts, 400)
    names = "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|eot_id|>"
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    path = tmp_path_factory.mktemp("model")
    data.save_tokenizer(tokenizer, path / "tokenizer.json")
    (path / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
    }))  # fmt: skip
    return path


def template(text):
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatTemplate({"default": TemplateText(text, "here")}, tokens)


def examples(folder, text, **options):
    return Examples(data.load_tokenizer(folder), 0, template(text), **options)


def conversation(chance, name):
    """Turns of random words. Of a template that has no word for it, no system prompt."""
    words = [w for w in WORDS if name != "thinking" or "think" not in w]
    say = lambda: "".join(chance.choices(words, k=chance.randint(0, 4)))
    said = [{"role": "system", "content": "s" + say()}] if chance.random() < 0.3 else []
    for _ in range(chance.randint(1, 4)):
        said += [{"role": "user", "content": say()}, {"role": "assistant", "content": say()}]
        if name == "thinking" and chance.random() < 0.4:
            said[-1]["reasoning_content"] = "because of " + chance.choice(words).strip()
    return said


@pytest.mark.parametrize("name", MARKED)
def test_answers_are_those_of_transformers(folder, name):
    ours, marked = MARKED[name]
    chance = random.Random(name)
    peer, build = theirs(folder), examples(folder, ours)
    everything = examples(folder, ours, train_on="all")
    learned = 0
    for _ in range(40):
        said = conversation(chance, name)
        found = build({"messages": said})
        wanted = peer.apply_chat_template(
            said, chat_template=marked, tokenize=True, return_dict=True,
            return_assistant_tokens_mask=True,
        )  # fmt: skip
        mask = np.asarray(wanted["assistant_masks"], bool)
        if found is None:
            assert not mask[1:].any()
            continue
        plain = peer.apply_chat_template(said, chat_template=ours, return_dict=True)["input_ids"]
        assert found.tokens.tolist() == plain == wanted["input_ids"]
        text = [peer.convert_ids_to_tokens(int(t)) for t in found.tokens]
        shown = [(t, bool(a), bool(b)) for t, a, b in zip(text, found.counted, mask)]
        assert np.array_equal(found.counted, mask), (said, shown)
        assert everything({"messages": said}).counted.all()
        learned += found.counted.sum()
    assert learned > 100


def test_calls_of_tools_are_answers_and_their_results_are_not(folder):
    said = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": {"place": "Rome"}}},
        ]},
        {"role": "tool", "name": "weather", "content": "21 degrees"},
        {"role": "assistant", "content": "It is warm."},
    ]  # fmt: skip
    found = examples(folder, THINKING)({"messages": said, "tools": TOOLS})
    peer = theirs(folder)
    wanted = peer.apply_chat_template(
        said, tools=TOOLS, chat_template=MARKED["thinking"][1], tokenize=True, return_dict=True,
        return_assistant_tokens_mask=True,
    )  # fmt: skip
    assert found.tokens.tolist() == wanted["input_ids"]
    assert found.counted.tolist() == [bool(x) for x in wanted["assistant_masks"]]
    text = peer.decode(found.tokens[found.counted])
    assert '"place": "Rome"' in text and "21 degrees" not in text and "It is warm." in text


def learned(folder, example):
    return data.load_tokenizer(folder).decode(
        example.tokens[example.counted].tolist(), skip_special_tokens=False
    )


def test_messages_are_left_out_by_train_and_weight(folder):
    said = [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "yes", "train": False},
        {"role": "user", "content": "b"}, {"role": "assistant", "content": "no"},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "well", "weight": 0},
    ]  # fmt: skip
    for text in (CHATML, MARKED["chatml"][1], INSTRUCT):
        found = examples(folder, text)({"messages": said})
        assert learned(folder, found).strip() in ("no<|im_end|>", "no</s>")
    said[3]["weight"] = 0
    assert examples(folder, CHATML)({"messages": said}) is None


def test_texts_prompts_and_completions(folder):
    build = examples(folder, CHATML)
    tokenizer = data.load_tokenizer(folder)
    ids = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    text = build({"text": "hello there"})
    assert text.tokens.tolist() == [*ids("hello there"), 0] and text.counted.all()
    assert build({"text": "hello", "ends": False}).tokens.tolist() == ids("hello")
    assert build({"text": "", "id": 3}) is None
    found = build({"prompt": "hello ", "completion": "there"})
    assert found.tokens.tolist() == [*ids("hello there"), 0]
    assert learned(folder, found) == " there<|endoftext|>"  # the blank is of a learned token
    both = [{"role": "user", "content": "a"}], [{"role": "assistant", "content": "b"}]
    chat = build({"prompt": both[0], "completion": both[1]})
    as_messages = build({"messages": both[0] + both[1]})
    assert chat.tokens.tolist() == as_messages.tokens.tolist()
    assert learned(folder, chat) == "b<|im_end|>"
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    assert build({"conversations": turns}).tokens.tolist() == as_messages.tokens.tolist()


def test_a_first_token_of_the_tokenizer_begins_texts_and_no_chats(folder):
    from tokenizers import processors

    tokenizer = data.load_tokenizer(folder)
    begin = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", begin)]
    )
    build = Examples(tokenizer, 0, template(CHATML))
    long = "x" * 1000  # encoded in parts
    assert build({"text": "hello"}).tokens[0] == begin
    assert build({"text": long}).tokens.tolist().count(begin) == 1
    prompted = build({"prompt": "hello", "completion": " you"})
    assert prompted.tokens[0] == begin and not prompted.counted[0]
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert begin not in build({"messages": said}).tokens


def test_truncation_is_counted_and_what_has_no_answer_left_is_dropped(folder):
    said = [{"role": "user", "content": "hello " * 5}, {"role": "assistant", "content": "yes " * 9}]
    whole = examples(folder, CHATML)({"messages": said})
    counts = ExampleCounts()
    size = whole.tokens.size
    first = int(np.argmax(whole.counted))
    for length in (size + 1, size, size - 1, first + 1, first, 2):
        found = examples(folder, CHATML, length=length)({"messages": said})
        counts([] if found is None else [found])
        if length <= first:
            assert found is None
            continue
        assert found.tokens.tolist() == whole.tokens[:length].tolist()
        assert found.counted.tolist() == whole.counted[:length].tolist()
    kept = [size, size, size - 1, first + 1]
    assert vars(counts) == {
        "examples": 4, "tokens": sum(kept), "empty": 2, "truncated": 2, "longest": size,
        "lost": 1 + size - first - 1,
        "learned": sum(int(whole.counted[:n].sum()) for n in kept),
    }  # fmt: skip
    for part in ("4 examples", "2 were truncated", "2 without a token to learn"):
        assert part in str(counts)
    # Texts are not cut: a packer lets them go on in the next row.
    assert examples(folder, CHATML, length=2)({"text": "hello there you"}).tokens.size > 2


@pytest.mark.parametrize("record, message", [
    ({}, "this one has nothing"), ({"question": "?"}, "this one has question"),
    ({"text": "a", "prompt": "b"}, "has prompt, text"), ({"text": 3}, "text is 3"),
    ({"messages": []}, "list of messages"), ({"messages": "hello"}, "list of messages"),
    ({"messages": ["hello"]}, r"messages\[0\] is 'hello'"),
    ({"messages": [{"content": "a"}]}, "role is None"),
    ({"messages": [{"role": "user", "content": 3}]}, "content is 3"),
    ({"messages": [{"role": "user", "content": "a"}]}, "no answer of the role assistant"),
    ({"prompt": "a"}, "completion is None"), ({"prompt": ["a"], "completion": []}, "'a'"),
    ({"conversations": [{"from": "nobody", "value": "a"}]}, "from is 'nobody'"),
    ({"messages": [{"role": "system", "content": "a"}, {"role": "assistant", "content": "b"}]},
     "the template refuses"),
])  # fmt: skip
def test_a_malformed_record_is_named_with_its_line(folder, tmp_path, record, message):
    refusing = (
        CHATML + "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    )
    build = examples(folder, refusing)
    with pytest.raises(ArgumentError, match=message):
        build(record)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + json.dumps(record) + "\n")
    stream = Mapped(RecordFiles([path]), build)
    assert isinstance(next(stream), Example)
    with pytest.raises(FileError, match=rf"a.jsonl: line 2: .*{message}"):
        next(stream)


def test_an_answer_that_cannot_be_found_is_said(folder):
    said = [{"role": "user", "content": "aaa"}, {"role": "assistant", "content": "b"}]
    backwards = "{% for m in messages | reverse %}{{ m.content | length }}{% endfor %}"
    with pytest.raises(
        ArgumentError, match=r"messages\[1\]: the chat template does not show where"
    ):
        examples(folder, backwards)({"messages": said})
    with pytest.raises(ArgumentError, match="needs a chat template"):
        Examples(data.load_tokenizer(folder), 0)({"messages": said})


def test_arguments(folder):
    tokenizer = data.load_tokenizer(folder)
    with pytest.raises(ArgumentError, match="train_on"):
        Examples(tokenizer, 0, train_on="questions")
    with pytest.raises(ArgumentError, match="length must be 2"):
        Examples(tokenizer, 0, length=1)
