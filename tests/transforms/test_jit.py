"""jit: what is traced, cached, static and donated, and what its messages say."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import math
import threading
import time
import warnings
import weakref
from collections import OrderedDict, defaultdict, deque

import numpy as np
import pytest

import genesis_fn.numpy as jnp
from genesis_fn.core import errors, tree
from genesis_fn.core.array import ArrayImpl
from genesis_fn.core.configuration import config
from genesis_fn.transforms.autodiff.derivatives import grad
from genesis_fn.transforms.batching.mapped_axes import vmap
from genesis_fn.transforms.jitting import clear_caches, jit, jit_cache
from genesis_fn.transforms.jitting.jit_cache import LARGE, SHARED
from genesis_fn.transforms.jitting.retrace import RecompilationWarning
from genesis_fn.transforms.staging.shape_dtype_struct import ShapeDtypeStruct
from genesis_fn.transforms.staging.tracing import eval_shape, make_jaxpr
from tests.transforms.both import agree, normal, ours

A, V = normal(3, 4), normal(4, seed=2)


def counted(f):
    """(function, list that grows with every trace)."""
    traces = []

    def g(*args, **kwargs):
        traces.append(1)
        return f(*args, **kwargs)

    return g, traces


def test_traced_once_per_signature():
    f, traces = counted(lambda x, y: x @ y)
    g = jit(f)
    for k in range(3):
        np.testing.assert_allclose(np.asarray(g(ours(A), ours(V * k))), A @ V * k)
    assert len(traces) == 1 and g.cache_size() == 1
    g(ours(A.astype(np.float32)), ours(V.astype(np.float32)))
    assert len(traces) == 2
    g.clear_cache()
    g(ours(A), ours(V))
    assert len(traces) == 3


def test_pytrees_in_and_out():
    @tree.dataclass
    class State:
        w: ArrayImpl
        step: ArrayImpl
        name: str = tree.static_field(default="s")

    @jit
    def f(s, *rest, flag=None, **more):
        out = {"s": s, "l": [rest, None], "t": (), "m": more["k"] * 2}
        return out

    s = State(ours(V), ours(np.array(1)))
    for _ in range(2):
        out = f(s, ours(A), (), None, k=ours(V), flag=None)
        assert out["s"].name == "s" and out["t"] == () and out["l"][1] is None
        np.testing.assert_allclose(np.asarray(out["m"]), V * 2)
        np.testing.assert_allclose(np.asarray(out["l"][0][0]), A)


@pytest.mark.parametrize(
    "make",
    [lambda x: deque([x, x], maxlen=3), lambda x: OrderedDict(b=x, a=x),
     lambda x: defaultdict(list, {2: x, "a": x}), lambda x: time.struct_time([x] * 9)],
    ids=["deque", "OrderedDict", "defaultdict", "struct_time"],
)  # fmt: skip
def test_every_node_type_has_a_generated_call(make):
    f, traces = counted(lambda t: tree.map(lambda x: x + 1.0, t))
    f = jit(f)
    for _ in range(3):
        got = f(make(ours(V)))
        assert type(got) is type(make(0)) and len(f.cache.fast) == 1
        np.testing.assert_array_equal(np.asarray(tree.leaves(got)[0]), V + 1.0)
    assert len(traces) == 1
    assert getattr(got, "maxlen", 3) == 3
    f(deque([ours(V), ours(V)]))
    assert len(traces) == 2 and f(deque([ours(V), ours(V)])).maxlen is None


def test_two_learning_rates_one_trace():
    f, traces = counted(lambda x, lr: x - lr * x)
    g = jit(f)
    for lr in (0.1, 0.01, 3.0):
        np.testing.assert_allclose(np.asarray(g(ours(V), lr)), V - lr * V, rtol=1e-6)
    assert len(traces) == 1
    g(ours(V), 1)  # an int is another type
    assert len(traces) == 2


def test_weak_scalars_follow_arrays():
    half = ours(V.astype(np.float16))
    assert jit(lambda x, s: x * s)(half, 2.0).dtype == np.float16
    assert jit(lambda x, s: x * (s + 1))(half, 2.0).dtype == np.float16
    assert jit(lambda s: s * 2)(2).dtype == np.int32


def test_ndarrays_and_numpy_scalars():
    f = jit(lambda x, y: x * y)
    np.testing.assert_allclose(np.asarray(f(V, np.float32(2))), V * 2, rtol=1e-6)
    assert f(V, np.float32(2)).dtype == np.float32


@pytest.mark.filterwarnings("ignore::genesis_fn.transforms.jitting.retrace.RecompilationWarning")
def test_static_arguments():
    f, traces = counted(lambda x, n, *, mode="a": x * n if mode == "a" else x - n)
    by_number = jit(lambda x, n: f(x, n), static_argnums=1)
    assert float(by_number(2.0, 3)) == 6.0 and float(by_number(2.0, 4)) == 8.0
    assert len(traces) == 2
    by_name = jit(lambda x, n=2, mode="a": f(x, n, mode=mode), static_argnames=("n", "mode"))
    assert float(by_name(2.0)) == 4.0
    assert float(by_name(2.0, n=3)) == 6.0 and float(by_name(2.0, 3)) == 6.0
    assert float(by_name(2.0, 3, mode="b")) == -1.0
    negative = jit(lambda x, n: x * len(range(n)), static_argnums=-1)
    assert float(negative(2.0, 3)) == 6.0
    with pytest.raises(ValueError, match="static_argnums=5"):
        jit(lambda x: x, static_argnums=5)
    with pytest.raises(ValueError, match="no argument 'k'"):
        jit(lambda x: x, static_argnames="k")


@pytest.mark.filterwarnings("ignore::genesis_fn.transforms.jitting.retrace.RecompilationWarning")
def test_automatic_static_leaves():
    @dataclasses.dataclass(frozen=True)
    class Config:
        n: int

    f, traces = counted(lambda c, x, kind: x * c.n if kind == "mul" else x + c.n)
    g = jit(f)
    assert float(g(Config(2), 3.0, "mul")) == 6.0
    assert float(g(Config(2), 4.0, "mul")) == 8.0
    assert float(g(Config(2), 3.0, "add")) == 5.0
    assert float(g(Config(3), 3.0, "add")) == 6.0
    assert len(traces) == 3
    with pytest.raises(TypeError, match="neither an array nor hashable"):
        g(object.__new__(type("Unhashable", (), {"__hash__": None})), 3.0, "add")
    with pytest.raises(TypeError, match="static argument 'n'"):
        jit(lambda x, n: x, static_argnames="n")(1.0, n=[1])


SCALE = 1.0


def test_equal_lambdas_share_programs():
    settings = {"k": (2, 3)}
    made = [jit(lambda x: jnp.sin(x) * settings["k"][0]) for _ in range(3)]
    for f in made:
        assert float(f(0.0)) == 0.0
    assert len({id(p) for f in made for p in f.cache.programs}) == 1


def test_large_captured_arrays_go_with_their_function():
    def use():
        rows = jnp.zeros((LARGE // 4096 + 1, 1024))
        f, again = [jit(lambda x: rows[0] + x) for _ in range(2)]
        with pytest.warns(UserWarning, match="captured 64 MiB"):
            f(1.0)
        return weakref.ref(rows.data)

    memory = use()
    gc.collect()
    assert memory() is None


def test_new_lambdas_read_what_changed():
    """A new function object is traced again where anything that it reads is another: a closed-over
    variable, a global one, an attribute of an object, a module or a class, an entry of a list."""
    global SCALE

    class Holder:
        k = 0.0

    holder, items, helper = Holder(), [0.0], lambda x: x * SCALE
    seen = []
    for k in (1.0, 2.0, 3.0, 2.0):
        SCALE = holder.k = Holder.k = items[0] = math.scale = k
        functions = [
            lambda x: x * k,
            lambda x: x * SCALE,
            lambda x: x * holder.k,
            lambda x: x * Holder.k,
            lambda x: x * items[0],
            lambda x: x * math.scale,
            lambda x: helper(x),
        ]
        seen.append([float(jit(f)(1.0)) for f in functions])
    del math.scale
    assert seen == [[k] * 7 for k in (1.0, 2.0, 3.0, 2.0)]


def test_a_trace_after_a_change_is_nobody_elses():
    global SCALE
    SCALE = 1.0
    make = lambda: jit(lambda x: x * SCALE)
    early = make()
    SCALE = 2.0
    assert float(early(1.0)) == 2.0
    SCALE = 1.0
    assert float(make()(1.0)) == 1.0


def test_methods_of_two_objects():
    class Model:
        def __init__(self, k):
            self.k = k

        def apply(self, x):
            return x * self.k

    assert [float(jit(Model(k).apply)(1.0)) for k in (2.0, 3.0)] == [2.0, 3.0]


def test_an_attribute_that_is_always_new_is_traced_at_every_call():
    class Counts:
        def __getattr__(self, name):
            if name != "scale":
                raise AttributeError(name)
            return next(numbers)

        def __call__(self, x):
            traces.append(1)
            return x * self.scale

    numbers, traces = itertools.count(1.0), []
    f = jit(Counts())
    found = [float(f(ours(np.array(1.0)))) for _ in range(2)]
    assert len(traces) == 2 and found == sorted(set(found))


def test_methods_and_decorators():
    class Model:
        def __init__(self, k):
            self.k = k

        @jit
        def __call__(self, x):
            return x * self.k

        @jit(static_argnames=("n",))
        def power(self, x, n):
            return x**n * self.k

    assert float(Model(2)(3.0)) == 6.0 and float(Model(5)(3.0)) == 15.0
    assert float(Model(2).power(3.0, n=2)) == 18.0
    assert repr(Model.power).startswith("<jit of power")


def test_captures_are_inputs_and_listed():
    big = ours(A)
    f = jit(lambda x: x * big.sum() + big[0, 0])
    f(ours(V))
    (found,) = f.captures
    assert found[:3] == ("big", "f64[3,4]", 96)
    assert "test_jit.py:" in found.line and "f = jit(lambda x: x * big.sum()" in found.line
    (program,) = f.cache.programs
    assert program.jaxpr.labels[0] == "captured f64[3,4]"
    with pytest.warns(UserWarning, match="captured 64 MiB|captured 65 MiB"):
        large = jnp.zeros((65, 1 << 18), "float32")
        jit(lambda x: x + large[0, 0])(1.0)


def test_captured_tracers_are_not_cached():
    f, traces = counted(lambda y, x: y * x)

    def outer(x):
        g = jit(lambda y: f(y, x))
        return g(x).sum() + g(x).sum()

    np.testing.assert_allclose(np.asarray(grad(outer)(ours(V))), 4 * V)
    np.testing.assert_allclose(np.asarray(vmap(outer)(ours(A))), 2 * (A**2).sum(1))
    np.testing.assert_allclose(np.asarray(grad(outer)(ours(V + 1))), 4 * (V + 1))


def test_inner_jit_is_one_trace_for_many_layers():
    f, traces = counted(lambda x, w: jnp.tanh(x * w))
    layer = jit(f)
    out = jit(lambda x, ws: [x := layer(x, w) for w in ws][-1])(ours(V), [ours(V)] * 12)
    assert out.shape == (4,) and len(traces) == 1


def test_retrace_warning_names_the_leaf():
    f = jit(lambda params, x: params["w"] * x.sum())
    with pytest.warns(RecompilationWarning) as caught:
        for n in (2, 3, 4):
            f({"w": ours(V)}, ours(np.zeros(n)))
    text = str(caught[0].message)
    assert "has been traced 3 times" in text
    assert "x: f64[3] -> f64[4]" in text and "test_jit.py" in text
    assert len(text.splitlines()) <= 6


def test_retrace_warning_of_static_values_and_structure():
    f = jit(lambda x, n: x * n, static_argnames="n")
    with pytest.warns(RecompilationWarning, match="static .*n.*: 2 -> 3; pass it as an array"):
        for n in (1, 2, 3):
            f(1.0, n=n)
    g = jit(lambda d: sum(d.values()))
    with pytest.warns(RecompilationWarning, match=r"new leaf d\['c'\]"):
        for keys in ("a", "ab", "abc"):
            g({k: 1.0 for k in keys})


def test_max_traces():
    f = jit(lambda x: x * 2, max_traces=1)
    f(ours(V))
    with pytest.raises(errors.GenesisError, match=r"max_traces=1\n  x: f64\[4\] -> f64\[3,4\]"):
        f(ours(A))
    f(ours(V))
    assert len(f.traces) == 1 and f.traces[0] == {"x": "f64[4]"}


def test_donation():
    f = jit(lambda state, x: {"w": state["w"] + x}, donate_argnums=0)
    state = {"w": ours(V)}
    old = state["w"]
    state = f(state, ours(V))
    np.testing.assert_allclose(np.asarray(state["w"]), 2 * V)
    assert old.is_deleted() and not state["w"].is_deleted()
    with pytest.raises(errors.DonatedError) as error:
        old + 1
    text = str(error.value)
    assert "state['w'] was donated to" in text and len(text.splitlines()) <= 6
    with pytest.raises(errors.DonatedError):
        f({"w": old}, ours(V))
    with pytest.raises(errors.DonatedError):
        jit(lambda x: x * 2)(old)


@pytest.mark.parametrize("held", ["nothing", "array", "container", "weak reference"])
def test_donated_arrays_that_nobody_has_are_used_again(held):
    f = jit(lambda state, x: ({"w": state["w"] + x, "n": state["n"] + 1}, x * 2), donate_argnums=0)
    state, one = {"w": ours(np.zeros(4)), "n": ours(np.array(0))}, ours(np.ones(4))
    holds = {
        "nothing": lambda s: None,
        "array": lambda s: s["w"],
        "container": lambda s: s,
        "weak reference": lambda s: weakref.ref(s["w"]),
    }
    ids = []
    kept = None
    for k in range(6):
        ids.append([id(x) for x in state.values()])
        kept = holds[held](state) if k == 2 else kept
        old = state["w"]
        state, other = f(state, one)
        why = old.data.why
        del old
        assert "state['w'] was donated to" in why
        np.testing.assert_array_equal(np.asarray(state["w"]), np.full(4, k + 1.0))
        assert int(state["n"]) == k + 1
        np.testing.assert_array_equal(np.asarray(other), np.full(4, 2.0))
        if kept is not None:  # whoever has the third call's array never finds another's values
            found = {"array": lambda: kept, "container": lambda: kept["w"]}.get(held, kept)()
            gone = found is None or found.is_deleted()
            del found
            assert gone
    if held == "nothing":
        assert ids[1:4] == ids[3:]  # the first call had none to keep


def test_donation_by_name_and_refusals():
    f = jit(lambda a, b: (a * 2, b), donate_argnames="b", on_unusable_donation="ignore")
    b = ours(V)
    f(ours(V), b)
    assert b.is_deleted()
    with pytest.raises(
        errors.DonatedError, match=r"donated twice, as state\[0\] and as state\[1\]"
    ):
        x = ours(V)
        jit(lambda state: [s + 1 for s in state], donate_argnums=0)([x, x])
    with pytest.raises(ValueError, match="no argument 'z'"):
        jit(lambda x: x, donate_argnames="z")
    with pytest.raises(ValueError, match="on_unusable_donation"):
        jit(lambda x: x, on_unusable_donation="no")


def test_unusable_donation():
    with pytest.warns(UserWarning, match=r"donated inputs cannot be reused: x"):
        jit(lambda x: x.sum(), donate_argnums=0)(ours(V))
    f = jit(lambda x: x.sum(), donate_argnums=0, on_unusable_donation="error")
    for call in (f, lambda x: f.lower(x).compile()):
        with pytest.raises(errors.DonatedError, match="cannot be reused"):
            call(ours(V))


def test_negative_positions_count_from_the_end():
    f = jit(lambda a, b=1: (a * b, b), donate_argnums=-1)
    x, y = ours(V), ours(V)
    f(x)
    assert not x.is_deleted()  # the last argument is `b`, which this call leaves out
    f(x, y)
    assert y.is_deleted() and not x.is_deleted()
    g = jit(lambda *args: args[0] * args[-1], static_argnums=-1)
    np.testing.assert_array_equal(np.asarray(g(x, 2)), V * 2)
    assert g.traces[0]["argument 1"] == "2"


def test_ahead_of_time():
    f = jit(lambda p, x, n: {"y": p["w"] @ x * n}, static_argnames="n")
    lowered = f.lower(
        {"w": ShapeDtypeStruct((3, 4), "float64")}, ShapeDtypeStruct((4,), "float64"), n=2
    )
    assert "dot_general" in lowered.as_text() and lowered.lower() is lowered
    assert repr(lowered.out_info["y"]) == "ShapeDtypeStruct(shape=(3,), dtype=float64)"
    cost = lowered.cost_analysis()
    assert cost["flops"] >= 24 and lowered.memory_analysis()
    compiled = lowered.compile()
    out = compiled({"w": ours(A)}, ours(V), n=2)
    np.testing.assert_allclose(np.asarray(out["y"]), A @ V * 2)
    assert compiled.cost_analysis() == cost and compiled.as_text()
    memory = compiled.memory_analysis()
    for name in ("argument_size_in_bytes", "output_size_in_bytes"):
        assert memory[name] == lowered.memory_analysis()[name]
    with pytest.raises(errors.TreeError, match="was compiled for"):
        compiled(ours(A), ours(V), n=2)
    with pytest.raises(errors.ShapeError, match="takes f64"):
        compiled({"w": ours(V)}, ours(V), n=2)


def test_shapes_within_a_traced_function_that_captures_its_values():
    def f(x):
        assert eval_shape(lambda i: x[i], 0) == ShapeDtypeStruct((4,), "float32")
        assert make_jaxpr(lambda i: x + i)(0).eqns
        return x * eval_shape(lambda: x @ x.T).size

    x = ours(np.ones((3, 4), np.float32))
    assert np.asarray(jit(f)(x)).tolist() == [[9.0] * 4] * 3


def test_shapes_without_computing():
    f = jit(lambda x, y: (x @ y, {"s": x.sum()}))
    shapes = f.eval_shape(ShapeDtypeStruct((3, 4), "float32"), np.zeros(4, np.float32))
    assert shapes[0] == ShapeDtypeStruct((3,), "float32") and shapes[1]["s"].ndim == 0
    assert hash(shapes[0]) == hash(ShapeDtypeStruct((3,), "float32")) and shapes[0].nbytes == 12
    assert shapes[0].size == 3

    class Foreign:
        shape, dtype = (4,), np.dtype(np.float32)

    assert f.eval_shape(ShapeDtypeStruct((3, 4), "float32"), Foreign())[0].shape == (3,)
    assert f.trace(ours(A), ours(V)).jaxpr.out_avals[0].shape == (3,)


def test_under_transforms():
    f = lambda m: m.jit(lambda x: m.np.sin(x) * m.jit(lambda y: y * y)(x))
    agree(lambda m, x: m.vmap(m.grad(lambda v: f(m)(v).sum()))(x), A)
    agree(lambda m, x: m.jit(m.grad(lambda v: m.jit(f(m))(v).sum()))(x), V)


def test_disable_jit():
    f, traces = counted(lambda x: x * 2)
    g = jit(f)
    with config.override(disable_jit=True):
        g(ours(V))
        g(ours(V))
    assert len(traces) == 2 and g.cache_size() == 0


def test_threads():
    """Many threads call one function, at several shapes; each sees its own results."""
    f, traces = counted(lambda x, y: jnp.sin(x) @ y)
    g, failures = jit(f), []

    def work(k: int) -> None:
        try:
            for i in range(20):
                n = 2 + (i + k) % 3
                x = np.full((n,), float(k))
                got = float(g(ours(x), ours(x)))
                np.testing.assert_allclose(got, np.sin(k) * k * n, rtol=1e-9)
        except Exception as error:
            failures.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert failures == [] and len(traces) == 3


def test_a_thousand_recompilations_stay_bounded(monkeypatch):
    clear_caches()
    monkeypatch.setattr(jit_cache, "MOST_SHARED", 512)
    f = jit(lambda x, n: x + n, static_argnames="n")
    x = ours(V)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in range(1000):
            f(x, n=n)
    assert len(f.cache.programs) <= 256 and len(f.cache.fast) <= 32
    for k in range(1000):
        jit(lambda y, k=k: y, static_argnums=())
    assert len(SHARED) == 512
    gc.collect()
    np.testing.assert_allclose(np.asarray(f(x, n=999)), V + 999)


def test_clear_caches():
    f, traces = counted(lambda x: x)
    g = jit(f)
    g(1.0)
    clear_caches()
    g(1.0)
    assert len(traces) == 2


def test_options_are_checked():
    with pytest.raises(TypeError, match="no option"):
        jit(lambda x: x, wrong=1)
    with pytest.raises(TypeError, match="takes a function"):
        jit(3)
    assert jit(lambda x: x, inline=True)(1.0) == 1.0


def test_callables_without_code():
    class F:
        def __call__(self, x):
            return x * 2

    assert float(jit(F())(2.0)) == 4.0
    assert float(jit(jnp.sin)(0.0)) == 0.0


def test_log_compiles(caplog):
    with config.override(log_compiles=True):
        jit(lambda x: x * 3)(ours(V))
    assert "compiling <lambda>" in caplog.text


def test_nodes_of_users_are_made_of_plain_objects_where_no_values_are():
    """As in JAX: a class that checks its parts lets `object()` pass."""
    made = []

    class Checked:
        def __init__(self, x):
            made.append(type(x))
            assert type(x) is object or hasattr(x, "dtype")
            self.x = x

    tree.register_node(Checked, lambda c: ((c.x,), None), lambda _, xs: Checked(*xs))
    f = jit(lambda c: Checked(c.x * 2))
    c = Checked(jnp.ones(2))
    for _ in range(3):
        assert f(c).x.tolist() == [2.0, 2.0]
    assert object in made
