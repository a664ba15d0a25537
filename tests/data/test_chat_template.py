"""Chat templates and the tokenizers of folders: the texts and tokens of transformers, and one clear
error for templates that are wrong or hostile."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
import warnings

import pytest

from genesis_fn import data
from genesis_fn.data import chat_process, chat_worker
from genesis_fn.errors import ArgumentError, FileError

# Templates in the style of models' own, written for these tests.
CHATML = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
THINKING = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.name ~ '", "arguments": ' }}
            {%- if call.arguments is string %}
                {{- call.arguments }}
            {%- else %}
                {{- call.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
HEADERS = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%B %Y") %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string + "\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' }}
        {%- for name, value in call.arguments | items %}
            {{- name + '=' ~ value }}{%- if not loop.last %}, {% endif %}
        {%- endfor %}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- message.content | tojson + "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
INSTRUCT = """\
{{ bos_token }}{% for message in messages %}
{% if message['role'] == 'system' %}{% continue %}{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}
{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}
{% else %}
{{ raise_exception('Only user and assistant roles are supported, not ' + message['role']) }}
{% endif %}
{% if loop.index0 > 20 %}{% break %}{% endif %}
{% endfor %}
"""
MACROS = """\
{%- macro shown(x, depth=0) -%}
    {%- if x is mapping -%}
        {%- for k, v in x|dictsort -%}
            {{ "  " * depth }}{{ k }}:{{ shown(v, depth + 1) }};
        {%- endfor -%}
    {%- elif x is iterable and x is not string -%}
        [{{ x|map('string')|join(', ') }}]
    {%- else -%}
        {{ x }}
    {%- endif -%}
{%- endmacro -%}
{%- set d = dict(a=1, b=[1, 2]) -%}
{{ shown(d) }}|{{ 7 % 3 }}|{{ '%s-%02d' % ('a', 5) }}|{{ "<&'é\\">" | tojson }}|{{ unknown }}|
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ 1.5 }} {{ none }} {{ true }}
{{ messages[0].content[:3] | upper | replace('H', 'J') }} {{ (documents or []) | length }}
{% for m in messages %}{{ shown(m) }}
{% endfor %}
"""
TEMPLATES = {
    "chatml": CHATML, "thinking": THINKING, "headers": HEADERS, "instruct": INSTRUCT,
    "macros": MACROS, "crlf": CHATML.replace("\n", "\r\n"), "empty": "",
}  # fmt: skip
TOOLS = [{
    "type": "function",
    "function": {
        "name": "weather", "description": "The weather <now> at a place, in °C.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}]  # fmt: skip
HELLO = [{"role": "user", "content": "hello <|im_end|> there"}]
CONVERSATIONS = {
    "one": HELLO,
    "system": [{"role": "system", "content": " Be brief. \n"}, *HELLO],
    "turns": [*HELLO, {"role": "assistant", "content": "Oh, hi\u00e9\n"}, *HELLO],
    "thoughts": [
        *HELLO, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}, *HELLO,
        {"role": "assistant", "content": "no"},
    ],
    "reasoning": [
        *HELLO, {"role": "assistant", "content": "yes", "reasoning_content": "why"}, *HELLO,
        {"role": "assistant", "content": "no", "reasoning": "why not?"},
    ],
    "nulls": [{"role": "user", "content": "a", "name": None}, {"role": "user", "content": "b"}],
    "tools": [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": {"place": "Łódź"}}},
        ]},
        {"role": "tool", "name": "weather", "content": "21"},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    """A tokenizer.json with special tokens, one of which begins every text."""
    from tokenizers import AddedToken, processors

    texts = ["hello there, weather at a place: yes and no. " * 3, "user assistant system tool"]
    tokenizer = data.train_tokenizer(texts, 400)
    for token in ("<s>", "</s>", "<|im_start|>", "<|im_end|>"):
        tokenizer.add_special_tokens([AddedToken(token, special=True)])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    data.save_tokenizer(tokenizer, path)
    return path


@pytest.fixture
def folder(tokenizer_file, tmp_path):
    """A folder with a tokenizer and a tokenizer_config.json, which `configure` writes."""
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    configure(tmp_path)
    return tmp_path


def configure(folder, **fields):
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False, "rstrip": False,
                      "single_word": False, "normalized": False, "special": True},
        **fields,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def theirs(folder):
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder)


def renames_reasoning(tokenizer) -> bool:
    """Whether this transformers gives templates the reasoning under each of its names: 5.23 does,
    5.17 does not."""
    message = {"role": "assistant", "content": "", "reasoning": "why"}
    template = "{{ messages[0].thinking }}"
    text = tokenizer.apply_chat_template([message], chat_template=template, tokenize=False)
    return text == "why"


def template_of(folder, text):
    (folder / "chat_template.jinja").write_bytes(text.encode())
    return data.ChatTemplate.from_folder(folder)


# ---- as transformers ----


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_of_transformers(folder, name):
    ours = template_of(folder, TEMPLATES[name])
    reference = theirs(folder)
    texts = 0
    for kind, messages in CONVERSATIONS.items():
        if kind == "reasoning" and not renames_reasoning(reference):
            continue
        for tools in (None, [], TOOLS):
            for prompt in (False, True):
                for more in ({}, {"enable_thinking": False}, {"documents": [{"title": "t"}]}):
                    try:
                        expected = reference.apply_chat_template(
                            messages, tools=tools, add_generation_prompt=prompt, tokenize=False,
                            **more,
                        )  # fmt: skip
                    except Exception:
                        with pytest.raises((ArgumentError, FileError)):
                            ours.render(messages, tools=tools, add_generation_prompt=prompt, **more)
                        continue
                    texts += 1
                    assert expected == ours.render(
                        messages, tools=tools, add_generation_prompt=prompt, **more
                    )
    assert texts >= 36


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_has_every_name_that_templates_read(folder, name):
    ours = template_of(folder, "{{ messages[0].thinking }}, {{ messages[0].reasoning_content }}")
    assert ours.render([{"role": "assistant", "content": "no", name: "why"}]) == "why, why"


def test_tokens_of_transformers(folder):
    """Special tokens that stand in the text are found, and no other is added."""
    ours = template_of(folder, INSTRUCT)
    tokenizer, reference = data.load_tokenizer(folder), theirs(folder)
    messages = CONVERSATIONS["turns"]
    expected = reference.apply_chat_template(messages, tokenize=True)["input_ids"]
    found = ours.encode(tokenizer, messages, add_generation_prompt=False)
    assert found == expected
    bos, end = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    assert found.count(bos) == 1 and found[0] == bos and found.count(end) == 1
    assert tokenizer.encode("a").ids == reference("a")["input_ids"]  # here it adds its own


SOURCES = {
    "a text": dict(chat_template="one {{ messages[0].content }}"),
    "named": dict(chat_template=[
        {"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"},
        {"name": "rag", "template": "R"},
    ]),
    "without default": dict(chat_template=[{"name": "tool_use", "template": "T"}]),
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("files", [
    {}, {"chat_template.jinja": "F"}, {"additional_chat_templates/tool_use.jinja": "FT"},
    {"chat_template.jinja": "F", "additional_chat_templates/tool_use.jinja": "FT"},
])  # fmt: skip
def test_precedence_is_that_of_transformers(folder, source, files):
    configure(folder, **SOURCES[source])
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    ours, reference = data.ChatTemplate.from_folder(folder), theirs(folder)
    for tools in (None, [], TOOLS):
        try:
            expected = reference.apply_chat_template(HELLO, tools=tools, tokenize=False)
        except ValueError:
            with pytest.raises(FileError, match="no chat template of the name 'default'"):
                ours.render(HELLO, tools=tools)
        else:
            assert ours.render(HELLO, tools=tools) == expected


ALL = "".join(
    f"{name}={{{{ {name} }}}} "
    for name in ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "image_token")
)


@pytest.mark.parametrize("fields", [
    {}, {"bos_token": None}, {"pad_token": "</s>", "unk_token": {"content": "<u>"}},
    {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None},
    {"tokenizer_class": "Qwen2TokenizerFast", "pad_token": None},
    {"tokenizer_class": "GPT2Tokenizer"},
    {"added_tokens_decoder": {}},
])  # fmt: skip
@pytest.mark.parametrize("table", [None, {"bos_token": "<b>", "pad_token": {"content": "<p>"}}])
def test_special_tokens_are_those_of_transformers(folder, fields, table):
    configure(folder, **fields)
    if table is not None:
        (folder / "special_tokens_map.json").write_text(json.dumps(table))
    values = json.loads((folder / "tokenizer_config.json").read_text())
    for name, value in values.items():
        if isinstance(value, dict) and "content" in value:
            values[name] = {"__type": "AddedToken", **value}
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    ours = template_of(folder, ALL)
    reference = theirs(folder)
    expected = reference.apply_chat_template(HELLO, tokenize=False)
    assert ours.render(HELLO) == expected
    assert ours.render(HELLO, bos_token="mine").startswith("bos_token=mine ")
    tokenizer = data.load_tokenizer(folder)
    for text in (*ours.special_tokens.values(), "hello <s> there</s>"):
        got = tokenizer.encode(text, add_special_tokens=False).ids
        assert got == reference.encode(text, add_special_tokens=False)


# ---- wrong and hostile templates ----

HOSTILE = {
    "class": ("a\n{{ ''.__class__.__mro__ }}", "line 2: .*SecurityError: .*__class__"),
    "globals": ("{{ cycler.__init__.__globals__.os }}", "line 1: .*SecurityError"),
    "format": ("{{ '{0.__class__.__mro__[0].__subclasses__}'.format(1) }}", "line 1: .*Security"),
    "by name": ("{{ (messages|attr('__class__'))() }}", "line 1: .*(Security|Undefined)Error"),
    "namespace": ("{{ namespace(__class__=1) }}", "line 1: .*SecurityError"),
    "change": ("{{ messages.append(1) }}", "line 1: .*SecurityError"),
    "import": ("{% import 'os' as os %}", "line 1"),
    "loops": ("\n{% for i in range(99999) %}{% for j in range(99999) %}\n{% endfor %}{% endfor %}",
              "line [23]: .*takes more than 2 seconds|more than 16,777,216 characters"),
    "silent loops": ("{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% set k = j %}"
                     "{% endfor %}{% endfor %}", "line 1: .*(512 MiB|2 seconds)"),
    "range": ("{% for i in range(999999999) %}{% endfor %}", "line 1: .*Range too big"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "line 1: .*calls itself"),
    "copies": ("{{ 'a' * 10**10 }}", "line 1: .*(512 MiB|2 seconds)"),
    "doubling": ("{% set n = namespace(s='aa') %}{% for i in range(99) %}"
                 "{% set n.s = n.s ~ n.s %}{% endfor %}", "line 1: .*(512 MiB|2 seconds)"),
    "power": ("{{ (10**(10**9)) % 7 }}", "(512 MiB|2 seconds)"),
    "width": ("{{ '%0999999999d' % 3 }}", "(512 MiB|2 seconds)"),
    "output": ("{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}", "16,777,216 characters"),
    "syntax": ("\n\n{% if %}", "line 3: .*TemplateSyntaxError"),
    "unclosed": ("{% for m in messages %}\n", "TemplateSyntaxError"),
    "filter": ("{{ 1|nothing }}", "line 1: .*No filter named 'nothing'"),
    "undefined": ("\n{{ nothing.at.all }}", "line 2: .*UndefinedError: 'nothing' is undefined"),
    "sum": ("\n{{ nothing + 'x' }}", "line 2: .*UndefinedError"),
    "deep": ("{{ " + "(" * 9000 + "1" + ")" * 9000 + " }}", "nested too deeply|takes more than"),
    "zero": ("{{ 1 / 0 }}", "line 1: .*ZeroDivisionError"),
    "message": ("{{ undefined_" + "x" * 100_000 + ".a }}", "UndefinedError"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_ends_in_one_error(tmp_path, name):
    text, message = HOSTILE[name]
    began = time.monotonic()
    with pytest.raises(FileError, match=message) as error:
        template_of(tmp_path, text).render(HELLO)
    assert time.monotonic() - began < 30  # of a machine that does much else
    assert str(tmp_path / "chat_template.jinja") in str(error.value)
    assert len(str(error.value)) < 1500 and str(error.value).count("\n") < 6
    # And the next one is rendered.
    assert template_of(tmp_path, "{{ messages[0].role }}").render(HELLO) == "user"


def test_a_template_changes_no_other(tmp_path):
    first = template_of(tmp_path, "{% set x = 1 %}{% set n = namespace(a=1) %}{{ x }}{{ n.a }}")
    second = template_of(tmp_path, "{{ x }}{{ n }}")
    assert (first.render(HELLO), second.render(HELLO)) == ("11", "")


def test_no_code_of_the_folder_runs_and_no_file_is_written(tmp_path):
    (tmp_path / "jinja2.py").write_text("raise SystemExit('ran')")
    here = os.getcwd()
    chat_process.process.close()
    try:
        os.chdir(tmp_path)
        template_of(tmp_path, "fine")
        assert data.ChatTemplate.from_folder(tmp_path).render(HELLO) == "fine"
    finally:
        os.chdir(here)
    limits = "\n".join(
        line.split("  ")[0]
        for line in open(f"/proc/{chat_process.process._process.pid}/limits")
        if line.split()[-1] == "bytes" and line.split()[-2] == "0"
    )
    assert "Max file size" in limits


# ---- the worker, in this process ----


def test_the_worker_replies(monkeypatch):
    limits = resource.getrlimit(resource.RLIMIT_CPU), signal.getsignal(signal.SIGPROF)
    found = chat_worker.reply({"template": "{{ a }}", "variables": {"a": 1}})
    assert found == {"text": "1", "generated": []}
    found = chat_worker.reply({"template": "\n{{ raise_exception('no') }}", "variables": {}})
    assert found == {"error": "no", "line": 2, "refused": True}
    monkeypatch.setattr(chat_worker, "LARGEST_TEXT", 3)
    assert "more than 3 char" in chat_worker.reply({"template": "abcd", "variables": {}})["error"]
    # A limit that stayed would end this process later on, wherever it is then.
    assert limits == (resource.getrlimit(resource.RLIMIT_CPU), signal.getsignal(signal.SIGPROF))


def test_a_process_that_ends_is_started_anew(tmp_path):
    template = template_of(tmp_path, "{{ messages|length }}")
    assert template.render(HELLO) == "1"
    process = chat_process.process._process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert template.render(HELLO * 3) == "3"


def test_threads_share_the_process(tmp_path):
    template = template_of(tmp_path, "{{ messages[0].content }}")
    found = {}

    def work(i):
        found[i] = [template.render([{"role": "user", "content": f"{i}.{j}"}]) for j in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == {i: [f"{i}.{j}" for j in range(20)] for i in range(4)}


def test_a_fork_has_a_process_of_its_own(tmp_path):
    template = template_of(tmp_path, "{{ messages[0].content }}")
    template.render(HELLO)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = int(template.render([{"role": "user", "content": "c"}]) != "c")
            chat_process.process.close()
        finally:
            os._exit(status)
    assert template.render([{"role": "user", "content": "p"}]) == "p"
    assert os.waitpid(child, 0)[1] == 0


# ---- what `render` is asked for ----


def test_a_refusal_names_the_template_and_its_reason(tmp_path):
    template = template_of(tmp_path, INSTRUCT)
    with pytest.raises(ArgumentError, match="Only user and assistant .* not tool") as error:
        template.render([{"role": "tool", "content": ""}])
    assert str(tmp_path / "chat_template.jinja") in str(error.value)


@pytest.mark.parametrize(("messages", "options", "message"), [
    ([], {}, "messages is"), ("hello", {}, "messages is 'hello'"),
    ({"role": "user"}, {}, "messages is"), (["hello"], {}, r"messages\[0\] is 'hello'"),
    ([{"role": "user", "content": b"x"}], {}, r"messages\[0\]\['content'\] is b'x'"),
    ([{"role": "user", "content": [{"a": object()}]}], {}, r"messages\[0\]\['content'\]\[0\]\['a"),
    ([{1: "user"}], {}, r"messages\[0\] has the key 1"), (HELLO, {"x": {1, 2}}, "x is {1, 2}"),
    (5, {}, "messages is 5, expected a list"), (HELLO, {"tools": 5}, "tools is 5, expected a list"),
    (HELLO, {"tools": TOOLS[0]}, "tools is {"),
    ([{"role": "user", "content": 10**5000}], {},
     r"messages\[0\]\['content'\] is an integer of 16,610 bits"),
    ([{"role": "user", "content": "a\ud800"}], {}, r"messages\[0\]\['content'\] holds half a char"),
    ([{"role": "user", "\ud800": "a"}], {}, r"messages\[0\] has the key '\\ud800'"),
    (HELLO, {"tools": [len]}, "a tool is <built-in function len>"),
    (HELLO, {"continue_final_message": True}, "continue_final_message is not an option"),
    (HELLO, {"tokenize": False}, "tokenize is not an option"),
])  # fmt: skip
def test_bad_arguments(tmp_path, messages, options, message):
    with pytest.raises(ArgumentError, match=message):
        template_of(tmp_path, "x").render(messages, **options)


def test_a_text_with_half_a_character_is_the_template_s_fault(tmp_path):
    template = template_of(tmp_path, "{{ messages[0].role }}{{ '\\ud800' }}")
    with pytest.raises(FileError, match="chat_template.jinja: .* writes half a character"):
        template.render(HELLO)


def test_messages_nested_without_end(tmp_path):
    deep: list = []
    deep.append(deep)
    with pytest.raises(ArgumentError, match="nested too deeply"):
        template_of(tmp_path, "x").render([{"role": "user", "content": deep}])


def test_a_folder_without_a_template(folder):
    with pytest.raises(FileError, match=r"there is no chat template, neither [^\0]* write a chat_"):
        data.ChatTemplate.from_folder(folder)
    with pytest.raises(FileError, match="nowhere: no folder"):
        data.ChatTemplate.from_folder(folder / "nowhere")


@pytest.mark.parametrize(("fields", "message"), [
    ({"chat_template": 3}, "chat_template is 3, expected a text"),
    ({"chat_template": ["a"]}, "expected a text, or a list"),
    ({"chat_template": []}, "expected a text, or a list"),
    ({"chat_template": [{"name": 1, "template": "x"}]}, "expected a text, or a list"),
    ({"chat_template": "x\ud800"}, "expected a text, or a list"),
    ({"chat_template": [{"name": "default", "template": "\ud800"}]}, "expected a text, or a list"),
    ({"chat_template": "x", "bos_token": 3}, "bos_token is 3, expected a text"),
    ({"chat_template": "x", "eos_token": {"content": [1]}}, "eos_token is"),
])  # fmt: skip
def test_malformed_files(folder, fields, message):
    configure(folder, **fields)
    with pytest.raises(FileError, match=f"tokenizer_config.json: .*{message}"):
        data.ChatTemplate.from_folder(folder)
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match="chat_template.jinja: not UTF-8"):
        data.ChatTemplate.from_folder(folder)
    (folder / "chat_template.jinja").write_bytes(b"x" * (1 << 21))
    with pytest.raises(FileError, match="chat_template.jinja: 2,097,152 bytes, more than"):
        data.ChatTemplate.from_folder(folder)


STANDS_IN = """
import json, struct, sys
{}
text = json.dumps({{"jinja2": __version__}}).encode()
sys.stdout.buffer.write(struct.pack("<Q", len(text)) + text)
sys.stdout.buffer.flush()
sys.stdin.read()
"""


def test_a_missing_jinja2_is_named(tmp_path, monkeypatch):
    chat_process.process.close()
    monkeypatch.setattr(chat_process.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"jinja2 is not installed: pip install jinja2"):
        template_of(tmp_path, "x").render(HELLO)
    monkeypatch.undo()
    for text, message in (
        ("__version__ = '3.1.5'", "jinja2 3.1.5 is installed, whose sandbox has known holes"),
        ("raise RuntimeError('broken')", "jinja2, which fails: [^\\0]*RuntimeError: broken"),
    ):
        worker = tmp_path / "worker.py"
        worker.write_text(STANDS_IN.format(text))
        monkeypatch.setattr(chat_worker, "__file__", str(worker))
        with pytest.raises(ImportError, match=message):
            template_of(tmp_path, "x").render(HELLO)


# ---- tokenizers of folders ----


@pytest.mark.parametrize("kind", ["Qwen2Tokenizer", "Qwen2TokenizerFast", "GPT2Tokenizer"])
@pytest.mark.parametrize("listed", [False, True])
def test_vocabulary_and_merges_as_transformers_reads_them(folder, kind, listed):
    tokenizer = data.load_tokenizer(folder)
    tokenizer.model.save(str(folder))
    os.unlink(folder / "tokenizer.json")
    size = len(json.loads((folder / "vocab.json").read_text()))
    fields: dict = {"tokenizer_class": kind, "bos_token": None, "eos_token": "<|im_end|>"}
    if listed:
        tokens = ["<|im_start|>", "<|im_end|>", "<think>"]
        fields["added_tokens_decoder"] = {
            str(size + i): {"content": t, "special": t != "<think>", "normalized": False,
                            "lstrip": False, "rstrip": False, "single_word": False}
            for i, t in enumerate(tokens)
        }  # fmt: skip
    configure(folder, **fields)
    ours, reference = data.load_tokenizer(folder), theirs(folder)
    for text in (
        "hello there", "  a\n\n b  12345 it's  I'LL\t", "e\u0301 \u00e9 日本語 ☃\u200d", "", " ",
        "<|im_start|>user\nyes<|im_end|>\n<think>x", "<|endoftext|>", "\r\n\r\n x!?\n",
    ):  # fmt: skip
        found = ours.encode(text, add_special_tokens=False).ids
        assert found == reference.encode(text, add_special_tokens=False)
        assert ours.decode(found) == reference.decode(found, skip_special_tokens=True)
    assert ours.get_vocab() == reference.get_vocab()


def test_tokens_beside_tokenizer_json(folder):
    size = data.load_tokenizer(folder).get_vocab_size()
    token = {"content": "<|call|>", "special": True, "normalized": False, "lstrip": False,
             "rstrip": False, "single_word": False}  # fmt: skip
    configure(folder, added_tokens_decoder={str(size): token})
    ours, reference = data.load_tokenizer(folder), theirs(folder)
    text = "hello<|call|>there"
    found = ours.encode(text, add_special_tokens=False).ids
    assert size in found and found == reference.encode(text, add_special_tokens=False)
    configure(folder, added_tokens_decoder={str(size + 5): token})
    with pytest.raises(FileError, match=rf"'<\|call\|>' has the number {size + 5}, and in the"):
        data.load_tokenizer(folder)


def test_texts_are_not_cut(folder):
    tokenizer = data.load_tokenizer(folder)
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=10)
    data.save_tokenizer(tokenizer, folder / "tokenizer.json")
    text = "hello there, weather at a place"
    found = data.load_tokenizer(folder).encode(text, add_special_tokens=False).ids
    assert len(found) > 3 and data.load_tokenizer(folder).decode(found) == text
    assert len(data.load_tokenizer(folder).encode("a", add_special_tokens=False).ids) == 1


@pytest.mark.parametrize(("files", "message"), [
    ({"tokenizer.model": b"x"}, "tokenizer.model is not read; let transformers write one"),
    ({"vocab.json": b"{}"}, "vocab.json is not read"),
    ({"vocab.json": b"{}", "merges.txt": b""}, "known tokenizer_class .* is None; let transf"),
    ({"vocab.json": b"[]", "merges.txt": b"", "k": b""}, "vocab.json is not a JSON object"),
    ({"vocab.json": b'{"a": "b"}', "merges.txt": b"", "k": b""}, "'a' has the number 'b'"),
    ({"vocab.json": b'{"a": 1, "b": 1}', "merges.txt": b"", "k": b""}, "two tokens have one"),
    ({"vocab.json": b'{"a": 0}', "merges.txt": b"a b c", "k": b""}, "line 1 is 'a b c'"),
    ({"vocab.json": b'{"a": 0}', "merges.txt": b"a b", "k": b""}, "merges.txt: .*out of voc"),
    ({"vocab.json": b'{"a": 0}', "merges.txt": b"\xff", "k": b""}, "merges.txt: not UTF-8"),
])  # fmt: skip
def test_tokenizers_that_are_refused(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    if "k" in files:
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    with pytest.raises(FileError, match=message):
        data.load_tokenizer(tmp_path)


def test_a_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(FileNotFoundError, match="tokenizer.json"):
        data.load_tokenizer(tmp_path)
