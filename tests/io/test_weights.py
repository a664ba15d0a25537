"""Models' folders: what transformers writes is read, what is written here transformers reads,
damage ends in one report, and no save that was ended leaves a mixture."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest
import torch

import genesis_fn.numpy as jnp
from genesis_fn import errors, io, models, random
from genesis_fn.core import tree
from genesis_fn.io import model_saving, read_ahead, shards
from genesis_fn.io.safetensors import flat_names, load_numpy

SIZES = dict(
    vocab_size=61, hidden_size=32, intermediate_size=56, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip
FAMILIES = {
    "Qwen2": {}, "Qwen3": dict(head_dim=16, tie_word_embeddings=True), "Llama": {}, "Mistral": {},
    "Qwen3Moe": dict(head_dim=16, moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2),
}  # fmt: skip
TOKENS = np.random.default_rng(0).integers(0, 61, (2, 9)).astype(np.int32)
CONFIG = models.DecoderConfig(17, 8, 8, 2, 2, 1, 4, tie_word_embeddings=False)
OTHER = models.DecoderConfig(17, 8, 8, 2, 2, 1, 4, tie_word_embeddings=False, rope_theta=5e3)


def reference(family):
    """A random model of transformers, with weights large enough to tell tokens apart."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, **FAMILIES[family], eos_token_id=60)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    model.generation_config.temperature = 0.7
    model.generation_config.do_sample = True
    return model


def there(folder):
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def same(a, b):
    return tree.structure(a) == tree.structure(b) and all(
        x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in zip(tree.leaves(a), tree.leaves(b))
    )


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request, tmp_path_factory):
    """(transformers' model, the folder that it saved in several files, that folder read here)."""
    model = reference(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder, max_shard_size="20KB")
    return model, folder, io.load_model(folder)


@pytest.fixture
def model(tmp_path):
    """A small folder to be damaged, and its parameters."""
    params = models.decoder.init(random.key(0), CONFIG)
    io.save_model(tmp_path / "model", params, CONFIG)
    return tmp_path / "model", params


# ---- transformers ----


def test_a_folder_of_transformers_computes_the_same(saved):
    model, folder, (params, config) = saved
    assert len(list(folder.glob("*.safetensors"))) > 1
    with torch.no_grad():
        expected = model(torch.from_numpy(TOKENS.astype(np.int64))).logits.numpy()
    ours = np.asarray(models.decoder.forward(params, jnp.asarray(TOKENS), config))
    assert np.abs(ours - expected).max() <= 1e-4 * np.abs(expected).max()
    assert sum(x.size for x in tree.leaves(params)) == config.size


def test_transformers_reads_what_is_saved_bit_for_bit(saved, tmp_path):
    model, folder, (params, config) = saved
    (folder / "merges.txt").write_text("a b")
    io.save_model(tmp_path, params, config, max_shard_size="20KB", source=folder)
    again = there(tmp_path)
    expected, found = model.state_dict(), again.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(x, found[n]) for n, x in expected.items())
    ours, theirs = again.config.to_dict(), model.config.to_dict()
    assert {n: v for n, v in theirs.items() if ours.get(n) != v and n != "_name_or_path"} == {}
    assert again.generation_config.to_dict() == model.generation_config.to_dict()
    tokens = torch.from_numpy(TOKENS.astype(np.int64))
    # How a float32 sum is rounded may depend on where the weights lie in memory. torch's products
    # of grouped rows, which experts take, have no float64.
    kind = torch.float32 if "moe" in model.config.model_type else torch.float64
    wide = [copy.deepcopy(m).to(kind) for m in (again, model)]
    with torch.no_grad():
        logits = [m(tokens).logits for m in wide]
    bound = 1e-5 if kind == torch.float32 else 1e-10
    torch.testing.assert_close(*logits, rtol=0, atol=bound * logits[0].abs().max().item())
    options = dict(max_new_tokens=6, do_sample=False, attention_mask=torch.ones_like(tokens))
    texts = [m.generate(tokens, pad_token_id=0, **options).tolist() for m in wide]
    assert texts[0] == texts[1]
    assert (tmp_path / "merges.txt").read_text() == "a b"
    sizes = [p.stat().st_size for p in tmp_path.glob("*.safetensors")]
    assert len(sizes) > 2 and max(sizes) < 20_000 + 4000  # with the header
    back, read = io.load_model(tmp_path)
    assert same(back, params) and read == config


def test_packed_experts_are_the_same_model(tmp_path):
    model = reference("Qwen3Moe")
    model.save_pretrained(tmp_path / "each")
    params, config = io.load_model(tmp_path / "each")
    packed = {n: x.numpy() for n, x in model.state_dict().items()}
    assert any(n.endswith("experts.gate_up_proj") for n in packed)
    (tmp_path / "packed").mkdir()
    shutil.copy(tmp_path / "each" / "config.json", tmp_path / "packed")
    io.save_file(packed, tmp_path / "packed" / "model.safetensors")
    again, _ = io.load_model(tmp_path / "packed")
    assert same(again, params)
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    arrays = io.load_file(tmp_path / "each" / "model.safetensors")
    rows = np.asarray(params["layers"][1]["mlp"]["experts"]["up_proj"]["weight"])[3]
    np.testing.assert_array_equal(arrays[name], rows)
    half = np.asarray(arrays[name]).astype(np.float16)
    io.save_file({**arrays, name: half}, tmp_path / "each" / "model.safetensors")
    with pytest.raises(io.FileError, match="up_proj.weight has experts of dtypes float16 and floa"):
        io.load_model(tmp_path / "each")


# ---- reading ----


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes(tmp_path, name):
    config = models.DecoderConfig(17, 8, 8, 1, 2, 1, 4)
    params = models.decoder.init(random.key(0), config, "float16")
    io.save_model(tmp_path, params, config)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "float16"
    found, _ = io.load_model(tmp_path, dtype=name, device="cpu")
    for x, y in zip(tree.leaves(params), tree.leaves(found)):
        expected = torch.from_numpy(np.array(x)).to(getattr(torch, name)).float().numpy()
        assert str(y.dtype) == name and y.device.kind == "cpu"
        np.testing.assert_array_equal(np.asarray(y).astype(np.float32), expected)


@pytest.mark.parametrize("name", ["int8", "float8_e4m3fn", "complex64"])
def test_only_floats_are_parameters(model, name):
    with pytest.raises(errors.ArgumentError, match=f"dtype is {name}, expected float16"):
        io.load_model(model[0], dtype=name)


def test_the_same_weights_from_any_cut_into_reads(model, monkeypatch):
    monkeypatch.setattr(read_ahead, "_CHUNK", 100)
    monkeypatch.setattr(read_ahead, "_AHEAD", 1000)
    assert same(io.load_model(model[0])[0], model[1])


def test_arrays_do_not_depend_on_the_file(model):
    """A program may overwrite a folder that it has loaded."""
    params, _ = io.load_model(model[0])
    with open(model[0] / "model.safetensors", "r+b") as f:
        f.seek(-1000, os.SEEK_END)
        f.write(b"\xff" * 1000)
    assert same(params, model[1])


MEASURE = """
import resource, sys
from genesis_fn import io
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
io.load_model(sys.argv[1])
before = peak()
params, _ = io.load_model(sys.argv[2])
print(peak() - before)
"""


@pytest.mark.cpu
def test_the_host_holds_the_weights_once(model, tmp_path):
    config = models.DecoderConfig(25_000, 512, 8, 1, 2, 1, 4, tie_word_embeddings=False)
    shapes = io.huggingface.parameter_shapes(config)
    params = tree.map(lambda s: np.ones(s.shape, np.float32), shapes)
    io.save_model(tmp_path / "big", params, config)
    size = (tmp_path / "big" / "model.safetensors").stat().st_size / 1024
    assert size > 90_000
    command = [sys.executable, "-c", MEASURE, model[0], tmp_path / "big"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert int(done.stdout) < 1.3 * size


def test_a_file_that_changes_while_it_is_read(model, monkeypatch):
    file = model[0] / "model.safetensors"

    def late(change):
        def read(folder):
            found = shards.read_folder(folder)
            change()
            return found

        monkeypatch.setattr(io.model_reading, "read_folder", read)
        with pytest.raises(io.FileError, match=r"model\.safetensors: (changed|cut short) while"):
            io.load_model(model[0])

    late(lambda: os.truncate(file, file.stat().st_size - 500))
    io.save_model(model[0], model[1], CONFIG)
    late(lambda: io.save_model(model[0], model[1], CONFIG))


def test_tables_of_old_files_are_not_missed(model):
    file = model[0] / "model.safetensors"
    arrays = {n: np.array(x) for n, x in load_numpy(file).items()}
    arrays["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)
    io.save_file(arrays, file)
    assert same(io.load_model(model[0])[0], model[1])


# ---- what does not fit ----


def damaged(model, **changes):
    """The message about the model's arrays, some of which are changed; None removes one."""
    file = model[0] / "model.safetensors"
    arrays = {n: np.array(x) for n, x in load_numpy(file).items()}
    for name, change in changes.items():
        if change is None:
            del arrays[name]
        else:
            arrays[name] = change(arrays.get(name))
    io.save_file(arrays, file)
    with pytest.raises(io.FileError) as error:
        io.load_model(model[0])
    return str(error.value)


def test_one_report_of_all_that_does_not_fit(model):
    first, second = "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"
    message = damaged(model, **{
        first: None, second: None, "lm_head.weight": None,
        "model.norm.weight": lambda x: x[:3],
        "model.embed_tokens.weight": lambda x: x.view(np.int32),
        "model.layers.0.mlp.up_proj.bias": lambda _: np.ones(8, np.float32),
    })  # fmt: skip
    assert str(model[0]) in message and len(message) < 1500 and message.count("\n") < 6
    assert "missing model.layers.*.mlp.up_proj.weight (2 arrays), lm_head.weight\n" in message
    assert "unexpected model.layers.0.mlp.up_proj.bias\n" in message
    assert "model.norm.weight has shape [3], the config asks for [8]\n" in message
    assert "model.embed_tokens.weight is of dtype int32" in message


def test_layers_that_are_missing_are_in_the_same_report(model):
    file = model[0] / "model.safetensors"
    layer = [n for n in load_numpy(file) if n.startswith("model.layers.1.")]
    message = damaged(
        model, **dict.fromkeys(layer), **{
            "model.layers.0.mlp.gate_proj.weight": lambda x: x[:, :5],
            "more.weight": lambda _: np.ones(3, np.float32),
        }
    )  # fmt: skip
    assert "num_hidden_layers 2, the arrays are of 1 layers\n" in message
    assert "missing model.layers.1." in message and f" and {len(layer) - 3} more\n" in message
    assert "unexpected more.weight\n" in message
    assert "gate_proj.weight has shape [8, 5], the config asks for [8, 8]" in message


def test_a_config_of_more_layers_than_the_files_have(model):
    path = model[0] / "config.json"
    values = json.loads(path.read_text())
    for count, names in ((3, 11), (10_000, 1100)):
        path.write_text(json.dumps({**values, "num_hidden_layers": count}))
        began = time.process_time()
        with pytest.raises(io.FileError, match=f"has num_hidden_layers {count}, ") as error:
            io.load_model(model[0])
        assert time.process_time() - began < 2
        listed, more = re.search(r"missing (.*) and ([\d,]+) more", str(error.value)).groups()
        counts = re.findall(r"\((\d+) arrays\)", listed)
        assert int(more.replace(",", "")) + (sum(map(int, counts)) or 3) == names


def test_an_output_layer_that_is_not_tied_is_in_the_same_report(model):
    path = model[0] / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "tie_word_embeddings": True}))
    message = damaged(model, **{"model.norm.weight": lambda x: x[:3]})
    assert "config.json has tie_word_embeddings true, but lm_head.weight is another" in message
    assert "model.norm.weight has shape [3], the config asks for [8]" in message


def test_files_of_an_index(model):
    """All that are missing are named, and every disagreement with the index."""
    folder = model[0]
    io.save_model(folder, model[1], CONFIG, max_shard_size="1KB")
    files = sorted(n for n in os.listdir(folder) if n.endswith(".safetensors"))
    path = folder / shards.INDEX
    index = json.loads(path.read_text())
    names = {file: [n for n, f in index["weight_map"].items() if f == file] for file in files}
    kept = {file: (folder / file).read_bytes() for file in files}
    for file in files[1:]:
        os.unlink(folder / file)
    with pytest.raises(io.FileError, match="missing, and .* names it") as error:
        io.load_model(folder)
    assert all(file in str(error.value) for file in files[1:4])
    for file, content in kept.items():
        (folder / file).write_bytes(content)
    gone = names[files[0]][0]
    first = {n: np.array(x) for n, x in load_numpy(folder / files[0]).items() if n != gone}
    io.save_file({**first, "other": np.ones(3)}, folder / files[0])
    unlisted = names[files[2]][0]
    left = {n: f for n, f in index["weight_map"].items() if n != unlisted}
    path.write_text(json.dumps({**index, "weight_map": left}))
    with pytest.raises(io.FileError) as error:
        io.load_model(folder)
    assert str(error.value).splitlines() == [
        f"{path}: does not list 'other', which {files[0]} holds; and 1 more",
        f"  lists '{gone}', which {files[0]} does not hold",
    ]
    for name in ("a\nb", "\ud800", "\x1b[2J"):  # which would go to a terminal
        changed = {**index["weight_map"], gone: name}
        path.write_text(json.dumps({**index, "weight_map": changed}))
        with pytest.raises(io.FileError, match="which is not a plain file name") as error:
            io.load_model(folder)
        assert str(error.value).isprintable()


def test_many_of_one_kind_are_counted(model):
    message = damaged(
        model, **{f"{k}{i}.bias": lambda _: np.ones(1) for i in range(300) for k in "abcde"}
    )
    assert len(message) < 1500 and message.count("\n") < 6
    assert re.search(r"unexpected a0\.bias, .* and 1,497 more", message)


@pytest.mark.parametrize("name", ["qweight", "scales", "weight_scale_inv", "absmax"])
def test_quantized_models_are_named(model, name):
    message = damaged(
        model, **{f"model.layers.0.mlp.up_proj.{name}": lambda _: np.ones(3, np.float32)}
    )
    assert "quantized" in message and name in message


def test_more_experts_than_the_files_have(tmp_path):
    config = models.DecoderConfig(17, 8, 8, 1, 2, 1, 4, num_experts=3, num_experts_per_tok=1)
    io.save_model(tmp_path, models.decoder.init(random.key(0), config), config)
    values = json.loads((tmp_path / "config.json").read_text())
    for count in (4, 9_000):
        (tmp_path / "config.json").write_text(json.dumps({**values, "num_experts": count}))
        with pytest.raises(io.FileError, match="missing model.*experts") as error:
            io.load_model(tmp_path)
        assert len(str(error.value)) < 1500


def test_folders_without_weights(model, tmp_path):
    file = model[0] / "model.safetensors"
    os.rename(file, model[0] / "model-00001-of-00002.safetensors")
    with pytest.raises(io.FileError, match="model.safetensors.index.json is missing"):
        io.load_model(model[0])
    os.rename(model[0] / "model-00001-of-00002.safetensors", model[0] / "pytorch_model.bin")
    with pytest.raises(io.FileError, match="'pytorch_model.bin' is not read: pickles run code"):
        io.load_model(model[0])
    os.unlink(model[0] / "pytorch_model.bin")
    with pytest.raises(io.FileError, match="there is no model.safetensors"):
        io.load_model(model[0])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        io.load_model(tmp_path / "nowhere")


# ---- saving ----


def test_sizes_of_files(model, tmp_path):
    params = model[1]
    for size, count in ((1, 25), ("1KB", 4), ("0.001 MiB", 4), (10**9, 1), ("5GB", 1)):
        io.save_model(tmp_path, params, CONFIG, max_shard_size=size)
        files = {n for n in os.listdir(tmp_path) if n.endswith(".safetensors")}
        assert (len(files) == 1) == (count == 1) and len(files) >= count
        assert (tmp_path / shards.INDEX).exists() == (count > 1)
        assert same(io.load_model(tmp_path)[0], params)
    for size in ("5", "GB", "-1GB", 0, -5, 1.5, True, None, "1e9999GB"):
        with pytest.raises(errors.ArgumentError, match="max_shard_size is"):
            io.save_model(tmp_path, params, CONFIG, max_shard_size=size)


def test_parameters_of_another_config_are_refused(model, tmp_path):
    params = model[1]
    tied = models.DecoderConfig(17, 8, 8, 2, 2, 1, 4)
    longer = models.DecoderConfig(18, 8, 8, 3, 2, 1, 4, tie_word_embeddings=False)
    for other, message in ((tied, "unexpected lm_head.weight"), (longer, "missing layers.2.in")):
        with pytest.raises(errors.ArgumentError, match=message):
            io.save_model(tmp_path / "new", params, other)
    integers = tree.map(lambda x: np.asarray(x).astype(np.int8), params)
    with pytest.raises(errors.ArgumentError, match="is of dtype int8"):
        io.save_model(tmp_path / "new", integers, CONFIG)
    assert not (tmp_path / "new").exists()


def test_what_is_kept_of_a_source(model, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(model[0], source)
    kept = {
        "tokenizer.json": "{}", "tokenizer_config.json": "{}", "generation_config.json": "{}",
        "chat_template.jinja": "x", "special_tokens_map.json": "{}", "vocab.json": "{}",
        "merges.txt": "", "added_tokens.json": "{}", "README.md": "r", "LICENSE": "l",
        "additional_chat_templates/tool_use.jinja": "t",
    }  # fmt: skip
    others = ["model.py", "pytorch_model.bin", "adapter.safetensors", ".hidden", "deep/a.json"]
    for name, text in {**kept, **dict.fromkeys(others, "no")}.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    values = json.loads((source / "config.json").read_text())
    extra = {"eos_token_id": [1, 2], "bos_token_id": 0, "use_cache": True, "torch_dtype": "float16"}
    changed = {"rope_theta": 123.0, "logits_soft_cap": 30.0, "quantization_config": {"bits": 4}}
    (source / "config.json").write_text(json.dumps({**values, **extra, **changed}))
    io.save_model(target, model[1], CONFIG, source=source)
    found = {str(p.relative_to(target)): p for p in target.rglob("*") if p.is_file()}
    assert {*found} == {*kept, "config.json", "model.safetensors"}
    assert all(found[n].read_text() == text for n, text in kept.items())
    expected = {**values, **extra, "torch_dtype": "float32"}
    assert json.loads(found["config.json"].read_text()) == expected
    # Into the same folder: what else it holds stays.
    (source / "config.json").write_text(json.dumps({**values, **extra}))
    io.save_model(source, model[1], OTHER, source=source, max_shard_size="1KB")
    assert (source / "model.py").exists() and (source / "tokenizer.json").exists()
    assert json.loads((source / "config.json").read_text())["eos_token_id"] == [1, 2]
    assert io.load_model(source)[1].rope_theta == 5e3
    for bad in (tmp_path / "nowhere", source / "README.md"):
        with pytest.raises(io.FileError, match="source is no folder"):
            io.save_model(target, model[1], CONFIG, source=bad)
    os.mkfifo(source / "NOTICE")
    with pytest.raises(io.FileError, match="NOTICE: not a plain file"):
        io.save_model(target, model[1], CONFIG, source=source)
    assert same(io.load_model(target)[0], model[1]) and io.load_model(target)[1] == CONFIG


@pytest.mark.parametrize(("family", "fields"), [
    ("Qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 28,
               "layer_types": ["sliding_attention", "full_attention"]}),
    ("Qwen3", {"use_sliding_window": False, "sliding_window": 99, "max_window_layers": 3}),
    ("Llama", {"rope_theta": 3e4, "rope_scaling": {"type": "linear", "factor": 2}}),
    ("Mistral", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 3e4, "factor": 2.0,
                                     "original_max_position_embeddings": 32}}),
])  # fmt: skip
def test_a_config_file_of_the_same_model_is_kept_as_it_is(tmp_path, family, fields):
    model_type, source, target = family.lower(), tmp_path / "source", tmp_path / "target"
    values = {"model_type": model_type, **SIZES, **FAMILIES[family], **fields, "dtype": "float16",
              "architectures": ["Other"], "eos_token_id": 3}  # fmt: skip
    config = models.DecoderConfig.from_dict(values)
    params = models.decoder.init(random.key(0), config)
    source.mkdir()
    (source / "config.json").write_text(json.dumps(values))
    io.save_model(target, params, config, source=source)
    kept = {n: v for n, v in values.items() if n not in ("dtype", "architectures")}
    found = json.loads((target / "config.json").read_text())
    assert found == {
        **kept, "torch_dtype": "float32", "architectures": [f"{family}ForCausalLM"]
    }  # fmt: skip
    assert io.load_model(target)[1] == config


def test_a_save_that_fails_leaves_no_folder(model, tmp_path):
    os.mkfifo(model[0] / "LICENSE")
    (tmp_path / "there").mkdir()
    for folder in ("new", "new/deep/deeper", "there", "there/new"):
        with pytest.raises(io.FileError, match="LICENSE: not a plain file"):
            io.save_model(tmp_path / folder, model[1], CONFIG, source=model[0])
    assert sorted(os.listdir(tmp_path)) == ["model", "there"]
    assert os.listdir(tmp_path / "there") == []
    with pytest.raises(errors.ArgumentError, match='folder is "", expected the name of one'):
        io.save_model("", model[1], CONFIG)


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("sizes", [("1KB", "2KB"), ("5GB", "1KB"), ("1KB", "5GB"), ("5GB", "5GB")])
def test_a_save_that_is_killed_leaves_no_mixture(tmp_path, monkeypatch, sizes):
    old, new = [models.decoder.init(random.key(i), CONFIG) for i in range(2)]
    monkeypatch.setattr(os, "fsync", lambda _: None)  # for speed
    ended, seen = 0, set()

    def dying(function, left):
        def call(*args, **kwargs):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return function(*args, **kwargs)

        return call

    while True:
        folder = tmp_path / str(ended)
        io.save_model(folder, old, CONFIG, max_shard_size=sizes[0])
        left = [ended]
        with monkeypatch.context() as patch:
            for name in ("replace", "unlink"):
                patch.setattr(os, name, dying(getattr(os, name), left))
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # nobody cleans up
            try:
                io.save_model(folder, new, OTHER, max_shard_size=sizes[1])
            except Killed:
                ended += 1
            else:
                break
        try:
            found, config = io.load_model(folder)
        except (io.FileError, OSError) as error:
            seen.add("none")
            assert "config.json" in str(error)
        else:
            is_old = config == CONFIG
            seen.add("old" if is_old else "new")
            assert same(found, old if is_old else new) and config in (CONFIG, OTHER)
        io.save_model(folder, new, OTHER, max_shard_size=sizes[1])
        assert same(io.load_model(folder)[0], new) and io.load_model(folder)[1] == OTHER
        assert not [n for n in os.listdir(folder) if n.startswith(".")]
    assert ended > 4 and seen == {"old", "none"}


def test_ctrl_c_while_files_are_exchanged(model, monkeypatch):
    count = [0]
    rename = model_saving._rename

    def interrupted(*args):
        count[0] += 1
        if count[0] == 1:
            raise KeyboardInterrupt
        rename(*args)

    monkeypatch.setattr(model_saving, "_rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        io.save_model(model[0], model[1], OTHER)
    assert io.load_model(model[0])[1] == OTHER


def test_a_full_disk_leaves_the_model(model, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        io.save_model(model[0], model[1], OTHER)
    assert io.load_model(model[0])[1] == CONFIG
    assert sorted(os.listdir(model[0])) == ["config.json", "model.safetensors"]


def test_saves_at_once_wait_for_each_other(model):
    params = [models.decoder.init(random.key(i), CONFIG) for i in range(3)]
    sizes = ["1KB", "2KB", "5GB"]
    save = lambda p, size: io.save_model(model[0], p, CONFIG, max_shard_size=size)
    threads = [threading.Thread(target=save, args=pair) for pair in zip(params, sizes)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    found, _ = io.load_model(model[0])
    assert sum(same(found, p) for p in params) == 1


def test_bfloat16_stays(tmp_path):
    params = models.decoder.init(random.key(0), CONFIG, "bfloat16")
    io.save_model(tmp_path, params, CONFIG)
    assert same(io.load_model(tmp_path)[0], params)
    model = there(tmp_path)
    assert model.dtype == torch.bfloat16
    for name, x in flat_names(params).items():
        theirs = model.state_dict()[io.huggingface.hf_name(name)]
        assert theirs.view(torch.int16).numpy().tobytes() == np.asarray(x).tobytes()
        assert np.asarray(x).dtype == ml_dtypes.bfloat16
