"""Parts of trees: selected by path, replaced, printed and shown in notebooks."""

from __future__ import annotations

import collections
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn import errors, optim, random, tree

Point = collections.namedtuple("Point", "x y")
PARAMS = {"layers": [{"weight": 1, "bias": 2}, {"weight": 3, "bias": 4}], "head": {"bias": 5}}


@tree.dataclass
class Layer:
    w: Any
    b: Any
    name: str = tree.static_field(default="layer")


# ---- select, mask ----


@pytest.mark.parametrize(
    "pattern, paths",
    [
        ("layers.*.weight", ["layers.0.weight", "layers.1.weight"]),
        ("**.bias", ["layers.0.bias", "layers.1.bias", "head.bias"]),
        ("layers.0.**", ["layers.0.weight", "layers.0.bias"]),
        ("layers.?.b*", ["layers.0.bias", "layers.1.bias"]),
        ("**.layers.1.bias", ["layers.1.bias"]),
        ("head.bias", ["head.bias"]),
        (re.compile(r"1\.|head"), ["layers.1.weight", "layers.1.bias", "head.bias"]),
    ],
)
def test_select(pattern: Any, paths: list[str]):
    found = tree.select(PARAMS, pattern)
    assert sorted(found) == sorted(paths) and tree.select(pattern)(PARAMS) == found
    everything = dict(zip(tree.select(PARAMS, "**"), tree.leaves(PARAMS)))
    assert found == {p: x for p, x in everything.items() if p in paths}
    assert list(found) == [p for p in everything if p in paths]
    assert tree.leaves(tree.mask(PARAMS, pattern)) == [p in paths for p in everything]
    assert tree.structure(tree.mask(pattern)(PARAMS)) == tree.structure(PARAMS)


def test_select_does_not_take_one_key_for_another():
    with pytest.raises(errors.TreeError, match="near it are 'head.bias'"):
        tree.select(PARAMS, "hed.bias")
    with pytest.raises(errors.TreeError, match=r"'layers.0.\*\*' matches the leaves in it"):
        tree.select(PARAMS, "layers.0")
    with pytest.raises(errors.TreeError, match="matches no leaf"):
        tree.select(PARAMS, "layers.*")
    with pytest.raises(errors.TreeError, match="paths are dotted"):
        tree.select(PARAMS, "['head']['bias']")
    with pytest.raises(errors.TreeError, match="two leaves have the dotted path 'a.b'"):
        tree.select({"a.b": 1, "a": {"b": 2}}, "**.b")
    with pytest.raises(errors.ArgumentError, match="got 3"):
        tree.select(PARAMS, 3)
    with pytest.raises(errors.TreeError, match="no leaves"):
        tree.select({}, "**")
    assert tree.select(Point(1, Layer(2, 3)), "y.b") == {"y.b": 3}


def test_masks_are_what_optimizers_take():
    params = {"a": {"weight": jnp.ones(2), "bias": jnp.ones(2)}}
    tx = optim.masked(optim.set_to_zero(), tree.mask("**.bias"))
    updates, _ = tx.update(params, tx.init(params), params)
    assert updates["a"]["weight"].tolist() == [1, 1] and updates["a"]["bias"].tolist() == [0, 0]


# ---- at ----


def test_at_replaces_one_of_equal_leaves_and_shared_objects():
    one = jnp.ones(2)
    t = {"a": [one, one], "b": (1, 1), "p": Point(one, None), "l": Layer(one, 1)}
    new = tree.at(lambda t: t["a"][1], t, 7)
    assert new["a"][0] is one and new["a"][1] == 7 and t["a"][1] is one
    new = tree.at(lambda t: (t["b"][0], t["l"].b, t["p"].x), t, (5, 6, 8))
    assert new["b"] == (5, 1) and new["l"].b == 6 and new["p"].x == 8 and new["l"].name == "layer"
    shared = [1, 2]
    assert tree.at(lambda t: t[1], (shared, shared), 0) == ([1, 2], 0)
    assert tree.at(lambda t: t, (1, 2), 0) == 0
    assert tree.at(lambda t: t["a"], {"a": (1, 2), "b": 3}, replace_fn=lambda x: x[::-1]) == {
        "a": (2, 1), "b": 3
    }  # fmt: skip
    assert tree.at(lambda t: t[1], [1, None], 7, is_leaf=lambda x: x is None) == [1, 7]
    assert tree.at(lambda t: [t[0], t[1]], [1, 2], [None, {}]) == [None, {}]
    state = gf.TrainState(params={"w": one}, step=1)
    assert tree.at(lambda s: s.params["w"], state, 3).params == {"w": 3}


def test_at_takes_patterns():
    assert tree.at("head.bias", PARAMS, 0)["head"] == {"bias": 0}
    doubled = tree.at("**.bias", PARAMS, replace_fn=lambda x: 10 * x)
    assert tree.select(doubled, "**") == {
        p: 10 * x if "bias" in p else x for p, x in tree.select(PARAMS, "**").items()
    }
    weights = tree.select(PARAMS, "**.weight")
    assert tree.at("**.weight", doubled, {p: -x for p, x in weights.items()})["layers"][1] == {
        "weight": -3, "bias": 40
    }  # fmt: skip
    with pytest.raises(errors.TreeError, match="left out"):
        tree.at("**.weight", PARAMS, {"layers.0.weight": 1})
    with pytest.raises(errors.TreeError, match="selects 2 nodes.*not a int"):
        tree.at("**.weight", PARAMS, 1)


def test_at_under_tracing():
    def f(t: Any) -> Any:
        return tree.at(lambda t: t["w"], t, replace_fn=lambda w: w * t["b"])

    t = {"w": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)}
    np.testing.assert_array_equal(gf.jit(f)(t)["w"], [3, 6])
    g = gf.grad(lambda t: f(t)["w"].sum())(t)
    assert g["w"].tolist() == [3, 3] and g["b"].tolist() == 3
    assert gf.vmap(f, ({"w": 0, "b": None},))(t)["w"].tolist() == [3, 6]


@pytest.mark.parametrize(
    "where, t, said",
    [
        (lambda t: t[1], [1, None], "selects a None"),
        (lambda t: (t[0], t[0]), [1, 2], "one node twice"),
        (lambda t: (t[0], t[0][0]), [[1], 2], "one inside of it"),
        (lambda t: [], [1], "empty sequence"),
        (lambda t: 3, [3], "no node of the tree"),
        (lambda t: {"new": t[0]}, [3], "no node of the tree"),
        (lambda t: t[0], [(), ()], "one object of"),
        (lambda t: t[0] + 1, [1], r"looks into the leaf \[0\]"),
        (lambda t: t[0] if t[1] > 0 else t[1], [1, 2], r"looks into the leaf \[1\]"),
        (lambda t: t[0] if t[1] == 2 else t[1], [1, 2], "looks into the leaf"),
        (lambda t: t[0].shape, [jnp.ones(2)], "looks into the leaf"),
        (lambda t: t[0] if isinstance(t[0], int) else t[1], [3, 4], "when it sees what"),
    ],
)
def test_at_refuses(where: Any, t: Any, said: str):
    with pytest.raises(errors.TreeError, match=said):
        tree.at(where, t, 0)


def test_at_takes_one_of_two_ways():
    with pytest.raises(errors.ArgumentError, match="one of replace= and replace_fn="):
        tree.at(lambda t: t[0], [1])
    with pytest.raises(errors.ArgumentError, match="one of replace= and replace_fn="):
        tree.at(lambda t: t[0], [1], 2, replace_fn=abs)
    with pytest.raises(errors.TreeError, match="selects 2 nodes"):
        tree.at(lambda t: (t[0], t[1]), [1, 2], (3,))


# ---- pformat ----


def test_pformat():
    t = {"p": Point(jnp.ones((2, 3)), None), "l": Layer(jnp.ones(2, "bfloat16"), "text  # x")}
    assert tree.pformat(t) == (
        "{'p': Point(x=f32[2,3], y=None), 'l': Layer(w=bf16[2], b='text  # x', name='layer')}"
    )
    assert tree.pformat((np.ones(2), 1, [], ())) == "(np:f64[2], 1, [], ())"
    assert tree.pformat((1,)) == "(1,)" and tree.pformat(jnp.ones(3)) == "f32[3]"
    assert tree.pformat({"b": jnp.arange(9.0)}, values=True) == (
        "{'b': f32[9] = [0., 1., 2., 3., 4., 5., ...]}"
    )
    assert tree.pformat({"a": {"b": jnp.ones(5)}}, depth=1, width=200) == (
        "{  # 1 leaf, 5 elements, 20 B\n  'a': {...},  # 1 leaf, 5 elements, 20 B\n}"
    )
    with pytest.raises(errors.ArgumentError, match="depth is -1"):
        tree.pformat(t, depth=-1)


def test_pformat_folds_and_is_bounded(capsys: Any):
    layers = [{"w": jnp.ones((2, 2)), "b": jnp.ones(2)} for _ in range(28)]
    text = tree.pformat({"layers": layers}, width=60)
    assert "[0] ... [27]: 28 alike" in text and len(text.splitlines()) < 10
    assert "168 elements, 672 B" in text
    different = {f"k{i}": [jnp.ones(i + 1), {"x": jnp.ones(i)}] for i in range(3000)}
    text = tree.pformat(different)
    assert "3000 entries in all" in text and len(text.splitlines()) < 100
    deep = {f"a{i}": {f"b{j}": jnp.ones(j + 1) for j in range(60)} for i in range(60)}
    text = tree.pformat(deep, width=20)
    assert len(text.splitlines()) <= 1001 and "in all" in text.splitlines()[-1]
    assert tree.pprint([1, 2]) is None and capsys.readouterr().out == "[1, 2]\n"


def test_pformat_of_tracers():
    seen = []

    @gf.jit
    def f(t: Any) -> Any:
        seen.extend([tree.pformat(t, values=True), tree.show(t)._repr_html_()])
        return t["x"]

    f({"x": jnp.ones(2)})
    assert seen[0] == "{'x': f32[2]}" and "f32[2]" in seen[1]


# ---- HTML ----


class Checked(HTMLParser):
    """Counts the tags of a page and refuses those that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts = collections.Counter[str]()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.counts[tag] += 1
        if tag not in ("path",):
            self.open.append(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.counts[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_says_what_arrays_hold():
    x = jnp.array([1.0, jnp.nan, jnp.inf, -jnp.inf, 4.0, 2.0])
    text = tree.show(
        {"x": x, "n": None, "s": 3, "i": jnp.arange(5), "k": random.key(0)}
    )._repr_html_()
    page = Checked(text)
    assert "min 1 max 4 mean 2.333" in text and ">NaN 1<" in text and ">Inf 2<" in text
    assert page.counts["details"] == 1 and page.counts["svg"] == 2 and page.counts["script"] == 0
    assert (
        f"f32[6] · 24 B · {str(x.device).removesuffix('()')}" in text
        and "min 0 max 4 mean 2" in text
    )
    assert repr(tree.show({"s": 3})) == "{'s': 3}"
    for odd in (jnp.zeros((0, 2)), jnp.array(True), jnp.array([1e38, -1e38]), jnp.array(1 + 2j)):
        Checked(tree.show([odd])._repr_html_())
    assert "min 2.236" in tree.show([jnp.array([1 + 2j])])._repr_html_()


def test_html_is_escaped():
    bad = "<script>alert(1)</script>&"
    text = tree.show({bad: jnp.ones(1), "v": bad, "c": Layer(bad, jnp.ones(1), bad)})._repr_html_()
    assert Checked(text).counts["script"] == 0 and "&lt;script&gt;" in text


def test_html_is_bounded_and_says_so():
    big = random.normal(random.key(0), (1000, 512))
    text = big._repr_html_()
    Checked(text)
    found = re.search(r"of ([\d,]+) of 512,000 elements", text)
    assert found and 8192 < int(found[1].replace(",", "")) <= 32768 and "evenly spaced" in text
    low, high = (float(re.search(rf"{n} (\S+)", text)[1]) for n in ("min", "max"))  # type: ignore[index]
    assert float(big.min()) <= low < -2 and 2 < high <= float(big.max()) + 1e-3
    columns = jnp.tile(jnp.arange(512.0), (1000, 1))  # not one column is read, but all
    assert "min 0 max 511 " in columns._repr_html_()
    many = [jnp.ones(1) * i for i in range(3000)]
    text = tree.show(many)._repr_html_()
    assert "2800 more entries are not shown" in text and len(text) < 200_000
    Checked(text)
    text = tree.show([[jnp.ones(1)] * 150 for _ in range(30)])._repr_html_()
    assert "more arrays were not read" in text and "not shown" in text
    Checked(text)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64"])
def test_every_nan_of_a_large_array_is_counted(dtype: str, monkeypatch: Any):
    """A sample passed over most."""
    x = np.ones((400, 300), np.float32)
    x.reshape(-1)[[7, 119_998, 60_001]] = np.nan
    x[3, 5] = -np.inf
    y = jnp.asarray(x).astype(dtype)
    for text in (y._repr_html_(), tree.show({"w": y, "n": x})._repr_html_()):
        assert ">NaN 3<" in text and ">Inf 1<" in text and "min 1 max 1 mean 1" in text
        Checked(text)
    whole = tree.show([jnp.arange(120_000), np.full(50_000, np.nan)])._repr_html_()
    Checked(tree.show([np.full(50_000, 3, object), np.zeros(50_000, "M8[s]")])._repr_html_())
    assert "NaN 0 Inf 0" in whole and ">NaN 50,000<" in whole

    monkeypatch.setattr("genesis_fn.core.trees.html.COUNTED", 130_000)
    text = tree.show([y, y])._repr_html_()
    assert text.count(">NaN 3<") == 1 and "NaNs that were counted of 1 of them" in text
    assert "NaNs that" not in tree.show([y])._repr_html_()


def test_nodes_arrays_and_states_have_html():
    state = gf.TrainState(params={"w": jnp.ones(3)}, step=jnp.array(0))
    for x in (jnp.ones(3), Layer(jnp.ones(3), 1), state):
        assert "f32[3]" in x._repr_html_()

    @tree.dataclass
    class Own:
        w: Any

        def _repr_html_(self) -> str:
            return "own"

    assert Own(1)._repr_html_() == "own"
    gone = jnp.ones(3) + 1
    gone.delete()
    assert "deleted" in gone._repr_html_() and "deleted" in tree.show([gone])._repr_html_()
    assert "f32[3]" in tree.pformat([gone], values=True)


def test_notebooks_load_the_formatters():
    class Formatter:
        def __init__(self) -> None:
            self.of: dict[type, Any] = {}

        def for_type(self, kind: type, function: Any) -> None:
            self.of[kind] = function

    class Shell:
        class display_formatter:
            formatters = {"text/html": Formatter()}

    gf.load_ipython_extension(Shell)
    of = Shell.display_formatter.formatters["text/html"].of
    assert set(of) == {dict, list, tuple}
    assert "f32[2]" in of[dict]({"x": jnp.ones(2)}) and of[list]([1, "a"]) is None
    within: list[Any] = []
    within.append(within)
    assert of[list](within) is None


def test_histograms_are_those_of_numpy():
    x = np.random.default_rng(0).normal(size=500)
    text = tree.show([jnp.array(x)])._repr_html_()
    bars = re.search(r'path d="([^"]+)"', text)[1]  # type: ignore[index]
    heights = [float(h) for h in re.findall(r"v-([\d.]+)h", bars)]
    counts = np.histogram(x, 24)[0]
    want = [max(1.0, n / counts.max() * 18) for n in counts if n]
    np.testing.assert_allclose(heights, want, atol=0.5)
