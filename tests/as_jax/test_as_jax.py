"""The library under JAX's names: what is there, what refuses, and that a program for JAX runs.

The package takes JAX's name where it is imported: nothing here does, each program is a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]

# One program, for JAX and for the library: what it prints is compared.
PROGRAM = """
import jax, jax.numpy as jnp, optax
from jax import lax, random

key = random.PRNGKey(3)
w = random.normal(key, (4, 3))
x, y = random.uniform(random.split(key)[0], (8, 4)), random.bernoulli(key, 0.4, (8, 3))
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.05))

def loss(w):
    return jnp.mean(optax.sigmoid_binary_cross_entropy(jnp.tanh(x) @ w, y))

@jax.jit
def train(w):
    def step(carry, _):
        w, state = carry
        value, grads = jax.value_and_grad(loss)(w)
        updates, state = tx.update(grads, state, w)
        return (optax.apply_updates(w, updates), state), value
    (w, _), values = lax.scan(step, (w, tx.init(w)), None, length=20)
    return w, values

w, values = train(w)
print([round(float(v), 5) for v in values[::5]])
print([round(float(v), 4) for v in w.ravel()])
print(random.randint(key, (5,), 0, 100).tolist(), isinstance(w, jax.Array), jax.__version__[:2])
"""


def run(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error::RuntimeWarning", *options]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "GENESIS_DEVICE": "cpu"}
    return subprocess.run(
        command, input=program, cwd=TOP, env=env, capture_output=True, text=True, timeout=300
    )


def test_a_program_for_jax_gives_the_same(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    theirs = run(PROGRAM, "-")
    ours = run("", "-m", "genesis_fn.as_jax", str(script))
    assert theirs.returncode == 0, theirs.stderr
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == theirs.stdout != ""
    assert ours.stderr == ""


def test_modules_and_names() -> None:
    """Every module that is listed is there, as is every file of the folder."""
    done = run(
        "import importlib, genesis_fn.as_jax\n"
        "from genesis_fn.as_jax.finder import FOLDER, MODULES\n"
        "files = [p.relative_to(FOLDER.parent).with_suffix('') for p in FOLDER.rglob('*.py')]\n"
        "names = {'.'.join(f.parts).removesuffix('.__init__') for f in files} | {*MODULES}\n"
        "for name in sorted(names):\n"
        "    module = importlib.import_module(name)\n"
        "    assert module.__name__ == name\n"
        "    [getattr(module, n) for n in dir(module)]\n"
        "import jax.scipy.stats.norm, jax.numpy as jnp\n"
        "print(len(names) > 60, jax.scipy.stats.norm.pdf(0.0).dtype, jnp.newaxis is None)\n",
        "-",
    )
    assert (done.returncode, done.stdout) == (0, "True float32 True\n"), done.stderr


@pytest.mark.parametrize(
    "line, said",
    [
        ("import jax.numpy; jax.numpy.concatenat", "use jax.numpy.concatenate"),
        ("import jax.experimental.pallas", "Triton kernels by genesis_fn.triton_call"),
        ("import jax.interpreters as i; i.pe", "genesis_fn.as_jax has no jax.interpreters.pe"),
        ("import jax; jax.pmap(lambda x: x)(1.0)", "jax.shard_map over a mesh, or jax.vmap"),
        ("import jax; jax.export.export(len)", "MissingError: genesis_fn.as_jax has no jax.export"),
        ("import jax; jax.new_ref(1.0)", "has no jax.new_ref: use values that a function takes"),
    ],
)
def test_refusals(line: str, said: str) -> None:
    done = run(f"import genesis_fn.as_jax\n{line}\n", "-")
    assert done.returncode == 1 and said in done.stderr, done.stderr


def test_real_jax_is_refused() -> None:
    done = run("import jax\nimport genesis_fn.as_jax\n", "-")
    assert done.returncode == 1
    assert "is imported already in this process" in done.stderr


def test_the_command_says_how_it_is_used(tmp_path: Path) -> None:
    assert "usage: python -m genesis_fn.as_jax" in run("", "-m", "genesis_fn.as_jax").stderr
    asked = run("", "-m", "genesis_fn.as_jax", "--help")
    assert asked.returncode == 0 and "script.py" in asked.stdout
    gone = run("", "-m", "genesis_fn.as_jax", str(tmp_path / "no.py"))
    assert gone.returncode == 1 and "there is no file" in gone.stderr
    module = tmp_path / "some_module.py"
    module.write_text("import sys, jax; print(jax.__file__.count('as_jax'), sys.argv[1:])")
    env = {**os.environ, "PYTHONPATH": f"{TOP}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-m", "genesis_fn.as_jax", "-m", "some_module", "a"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.stdout == "1 ['a']\n", done.stderr


def test_a_stub_can_be_named_and_refuses_to_be_used() -> None:
    done = run(
        "import genesis_fn.as_jax\n"
        "from genesis_fn.as_jax.stubs import MissingError, stub\n"
        "Thing = stub('jax.interpreters.x.Thing', 'another thing')\n"
        "assert not isinstance(1, Thing) and Thing.__name__ == 'Thing'\n"
        "assert issubclass(type('Own', (Thing,), {}), Thing)\n"
        "for use in (lambda: Thing(1), lambda: Thing.part, lambda: Thing[0], lambda: [*Thing]):\n"
        "    try:\n"
        "        use()\n"
        "    except MissingError as error:\n"
        "        print(error)\n",
        "-",
    )
    said = "genesis_fn.as_jax has no jax.interpreters.x.Thing: use another thing\n"
    assert (done.returncode, done.stdout) == (0, 4 * said), done.stderr


INTEGERS = """
import jax, jax.numpy as jnp, numpy as np
from jax import float0

def kind(x):
    return np.asarray(x).dtype == float0 and np.shape(x)

f = lambda x, i: jnp.sum(x[i] * 2.0)
x, i = np.ones(3, "float32"), np.array([0, 2])
print(jax.grad(f, (0, 1), allow_int=True)(x, i)[0].tolist())
by = jax.grad(f, 1, allow_int=True)
print(kind(by(x, i)), kind(jax.jit(by)(x, i)))
print(kind(jax.value_and_grad(f, 1, allow_int=True)(x, i)[1]), kind(jax.vjp(f, x, i)[1](1.0)[1]))
print(kind(jax.jvp(lambda i: i + 1, (i,), (np.zeros(2, float0),))[1]))
print(kind(jax.linearize(lambda x: (x, i), x)[1](x)[1]), kind(jnp.zeros((3,), float0)))
print([kind(jax.jit(lambda x: jax.vjp(f, x, i)[1](1.0))(x)[1]) for _ in range(3)])
"""


def test_derivatives_by_integers_are_of_float0() -> None:
    theirs, ours = run(INTEGERS, "-"), run("import genesis_fn.as_jax\n" + INTEGERS, "-")
    assert theirs.returncode == 0, theirs.stderr
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == theirs.stdout


# What libraries define by JAX's internals, for JAX and for the library.
INTERNALS = """
import jax, jax.numpy as jnp
from jax import core, lax
from jax.extend import core as extend, linear_util as lu
from jax.interpreters import ad, batching, mlir, partial_eval as pe

double_p = extend.Primitive("double")
double_p.def_impl(lambda x, *, by: x * by)
double_p.def_abstract_eval(lambda x, *, by: core.ShapedArray(x.shape, x.dtype))
mlir.register_lowering(double_p, mlir.lower_fun(lambda x, *, by: x * by, multiple_results=False))
# Rules that show that they are used.
ad.primitive_jvps[double_p] = lambda xs, ts, *, by: (
    double_p.bind(*xs, by=by), ts[0] * 10.0)
batching.primitive_batchers[double_p] = lambda xs, dims, *, by: (
    double_p.bind(*xs, by=by + 1.0), dims[0])
f = lambda x: double_p.bind(x, by=2.0)
x = jnp.arange(3.0)
print(f(x), jax.jit(f)(x), jax.grad(lambda x: f(x).sum())(x), jax.jit(jax.grad(f))(1.0))
print(jax.vmap(f)(x), jax.jit(jax.vmap(f, in_axes=1))(jnp.ones((2, 3))))
pair_p = extend.Primitive("pair")
pair_p.multiple_results = True
pair_p.def_impl(lambda x: [x, x + 1])
pair_p.def_abstract_eval(lambda x: [core.ShapedArray(x.shape, x.dtype)] * 2)
mlir.register_lowering(pair_p, mlir.lower_fun(lambda x: [x, x + 1], multiple_results=True))
print(jax.jit(lambda x: pair_p.bind(x))(x))
try:
    jax.grad(lambda x: pair_p.bind(x)[0])(1.0)
except NotImplementedError as error:
    print("refused")

# Partial evaluation: what is known without the second argument.
def both(x, y):
    a = jax.jit(lambda x, y: (jnp.sin(x), x * y))(x, y)
    return {"known": a[0], "unknown": a[1]}

leaves, tree = jax.tree.flatten((x, x))
flat, out_tree = jax.api_util.flatten_fun_nokwargs(
    lu.wrap_init(both, debug_info=jax.api_util.debug_info("test", both, (), {})), tree)
values = [pe.PartialVal.known(x), pe.PartialVal.unknown(core.ShapedArray((3,), jnp.float32))]
_, (known, unknown), _ = pe.trace_to_jaxpr_nounits(flat, values)
print(known[0] is None, [round(float(v), 4) for v in known[1]], unknown[0].shape, unknown[1])
print(out_tree() == jax.tree.structure({"known": 0, "unknown": 0}))

print(lax.cond(True, 2.0, lambda a: a + 1, 5.0, lambda b: b), lax.cond(False, 2, abs, -5, abs))
print(jax.vmap(f, spmd_axis_name=None)(x))
print(jnp.einsum("i,i", x, x, _dot_general=lax.dot_general))
print(jax.random.uniform(jax.random.key(0), (2,), out_sharding=None))
print(lax.scan(lambda c, _: (c, c), 1.0, None, length=2, _split_transpose=True)[0])
print(isinstance(core.ShapedArray((2,), jnp.int32, False), core.AbstractValue))
print(core.ShapedArray((2,), jnp.int32, sharding=None) == core.ShapedArray((2,), "int32"))
kinds = []
jax.jvp(lambda v: kinds.append((isinstance(v, ad.JVPTracer), v._trace.main is not None)) or v,
        (1.0,), (1.0,))
print(kinds)
"""


def test_internals_that_libraries_use_mean_what_they_mean_in_jax(tmp_path: Path) -> None:
    script = tmp_path / "internals.py"
    script.write_text(INTERNALS)
    theirs = run(INTERNALS, "-")
    ours = run("", "-m", "genesis_fn.as_jax", str(script))
    assert theirs.returncode == 0, theirs.stderr
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout.splitlines() == theirs.stdout.splitlines() != []


def test_what_jax_takes_and_the_library_lacks_is_refused_by_name() -> None:
    done = run(
        "import genesis_fn.as_jax, warnings, jax, jax.numpy as jnp\n"
        "from genesis_fn.as_jax.stubs import stub\n"
        "try:\n"
        "    jax.vmap(abs, spmd_axis_name='data')\n"
        "except NotImplementedError as error:\n"
        "    print(error)\n"
        "print(hasattr(stub('jax.x.Thing'), 'part'))\n"
        "key = jax.random.key(0)\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    print((jax.random.normal(key) == jax.random.normal(key)).item(), seen)\n",
        "-",
    )
    said = "genesis_fn.as_jax: jax.vmap has no argument spmd_axis_name\nFalse\nTrue []\n"
    assert (done.returncode, done.stdout) == (0, said), done.stderr


def test_64_bit_defaults_by_every_door(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import genesis_fn.as_jax, jax, jax.numpy as jnp\n"
        "from jax.experimental import disable_x64, enable_x64\n"
        "width = lambda: jnp.zeros(1).dtype.itemsize\n"
        "seen = [jax.config.jax_enable_x64, width()]\n"
        "with jax.enable_x64(True): seen.append(width())\n"
        "with enable_x64(): seen.append(width())\n"
        "jax.config.update('jax_enable_x64', 1); seen.append(width())\n"
        "with disable_x64(): seen.append(width())\n"
        "with jax.enable_x64(False): seen.append(width())\n"
        "print(*seen, jax.config.read('jax_enable_x64'))\n"
    )
    assert run(program, "-").stdout == "False 4 8 8 8 4 4 True\n"
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    assert run(program, "-").stdout == "True 8 8 8 8 4 4 True\n"
