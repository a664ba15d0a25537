"""What the processes of the tests run. Each is given its rank."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

import genesis_fn as gf
from genesis_fn.backends.cuda.run.exchanges import Exchanges
from genesis_fn.core.primitive import bind
from genesis_fn.core.sharding.mesh import Mesh, MeshAxis
from genesis_fn.core.sharding.world import world
from genesis_fn.distributed import facts, watch
from genesis_fn.transforms.batching import collectives as c, exchanges as ex

DTYPES = [
    "bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
    "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32", "float64", "complex64", "complex128",
]  # fmt: skip


def dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def values(rank: int, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """What a process has: numbers that lose bits when they are added in low precision."""
    rng = np.random.default_rng([rank, DTYPES.index(kind)])
    if kind == "bool":
        return rng.random(shape) < 0.5
    if dtype(kind).kind in "iu":
        info = np.iinfo(dtype(kind))
        return rng.integers(info.min, info.max, shape, dtype(kind), endpoint=True)
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if "complex" in kind else x).astype(dtype(kind))


# name: (primitive, parameters besides the axis, shape of the operand), given the size of the axis.
CASES: dict[str, Callable[[int], tuple[Any, dict[str, Any], tuple[int, ...]]]] = {
    "psum": lambda n: (c.psum_invariant_p, {}, (3, 5)),
    "psum_of_many": lambda n: (c.psum_invariant_p, {}, (17001 // (n + 1), 7)),
    "psum_within_vmap": lambda n: (c.psum_p, {}, ()),
    "pmax": lambda n: (c.pmax_p, {}, (4,)),
    "pmin": lambda n: (c.pmin_p, {}, (4,)),
    "all_gather": lambda n: (c.all_gather_p, {"axis": 1, "size": n}, (2, 3)),
    "all_gather_invariant": lambda n: (c.all_gather_invariant_p, {"axis": 0, "size": n}, (2,)),
    "psum_scatter": lambda n: (c.psum_scatter_p, {"axis": 1, "size": n}, (2, n, 3)),
    "all_to_all": lambda n: (ex.all_to_all_p, {"split": 0, "concat": 1, "size": n}, (n, 2, 3)),
    "ppermute": lambda n: (ex.ppermute_p, {"perm": tuple((i, i + 1) for i in range(n - 1))}, (3,)),
    "rotation": lambda n: (
        ex.ppermute_p,
        {"perm": tuple((i, (i + 1) % n) for i in range(n))},
        (3,),
    ),
    "of_nothing": lambda n: (c.all_gather_p, {"axis": 0, "size": n}, (0, 2)),
}
SUMS = {"psum", "psum_of_many", "psum_within_vmap", "psum_scatter"}
EXTREMES = {"pmax", "pmin"}


def applies(case: str, kind: str) -> bool:
    if case in EXTREMES:
        return "complex" not in kind
    return case not in SUMS or kind != "bool"


def along(axis: MeshAxis, found: dict[str, Any], prefix: str, kinds: list[str]) -> None:
    """Every collective along an axis, on every dtype, compiled and not."""
    for case, of in CASES.items():
        prim, params, shape = of(axis.size)
        for kind in kinds:
            if not applies(case, kind):
                continue
            x = gf.numpy.asarray(values(gf.process_index(), kind, shape), dtype(kind))
            f = lambda x: bind(prim, x, axis_name=axis, **params)
            y = f(x)
            found[f"{prefix}{case} {kind}"] = y
            if kind in ("float32", "uint16", "bfloat16"):
                found[f"compiled {prefix}{case} {kind}"] = gf.jit(f)(x)
    found[f"{prefix}axis_index"] = bind(c.axis_index_p, axis_name=axis)


def everything(rank: int) -> None:
    """Collectives along one axis of all processes, and of two where there are four; exchanges of
    trees; what the processes know of themselves."""
    gf.distributed.initialize()
    n, found = gf.process_count(), dict[str, Any]()
    along(gf_mesh((n,), ("i",)).axes["i"], found, "", DTYPES)
    if n == 4:
        mesh = gf_mesh((2, 2), ("i", "j"))
        along(mesh.axes["i"], found, "rows ", ["float32"])
        along(mesh.axes["j"], found, "columns ", ["float32"])
    exchanges(found)
    found["world"] = np.array([
        gf.process_index(), n, gf.distributed.local_rank(), len(gf.devices()), gf.device_count(),
        gf.local_device_count(), gf.local_devices()[0].id, gf.local_devices(n - 1)[0].id,
    ])  # fmt: skip
    write(found)


def gf_mesh(shape: tuple[int, ...], names: tuple[str, ...]) -> Mesh:
    return Mesh(np.array(gf.devices(), object).reshape(shape), names)


def exchanges(found: dict[str, Any]) -> None:
    rank, n = gf.process_index(), gf.process_count()
    tree = {
        "a": gf.numpy.asarray(values(rank, "bfloat16", (2, 3))),
        "b": [np.float64(rank), values(rank, "float8_e5m2", (2,))],
        "empty": np.zeros((0, 2), np.float32),
    }
    last = gf.distributed.broadcast_one_to_all(tree, is_source=rank == n - 1)
    assert isinstance(last["a"], gf.Array) and type(last["b"][1]) is np.ndarray
    found["broadcast a"], found["broadcast b"] = last["a"], last["b"][1]
    every = gf.distributed.process_allgather(tree)
    found["allgather a"], found["allgather b"] = every["a"], every["b"][0]
    found["tiled"] = gf.distributed.process_allgather(np.full((2, 2), rank), tiled=True)
    keys = gf.random.split(gf.random.key(rank), 3)
    found["keys"] = gf.random.key_data(gf.distributed.process_allgather(keys))
    found["key"] = gf.random.key_data(gf.distributed.broadcast_one_to_all(keys[0]))
    gf.distributed.sync_global_devices("here")
    gf.distributed.assert_equal({"x": np.arange(3)})
    said = {
        "unequal": lambda: gf.distributed.assert_equal({"x": [0, np.int32(rank)]}, "seeds"),
        "shapes": lambda: gf.distributed.process_allgather({"x": np.zeros(2 + rank)}),
        "structures": lambda: gf.distributed.broadcast_one_to_all([np.zeros(2)] * (1 + rank)),
        "sources": lambda: gf.distributed.broadcast_one_to_all(np.zeros(2), is_source=True),
        "barriers": lambda: gf.distributed.barrier(f"of {rank}"),
        "scalars": lambda: gf.distributed.process_allgather(np.float32(1), tiled=True),
        "again": gf.distributed.initialize,
    }
    for name, call in said.items():
        try:
            call()
        except Exception as error:
            found[f"error {name}"] = np.array(f"{type(error).__name__}: {error}")
    gf.distributed.barrier()


def stages(rank: int) -> None:
    """A decoder whose layers are divided among the processes, and on one device."""
    gf.distributed.initialize()
    config = gf.models.DecoderConfig(11, 16, 24, 2, 2, 1, 8)
    params = gf.models.decoder.init(gf.random.key(0), config)
    tokens, labels = np.random.default_rng(0).integers(0, 11, (2, 4, 5))
    labels[:2, 1:] = -100
    whole = lambda p: gf.models.decoder.loss(p, tokens, labels, config, ignore_index=-100)
    expected = gf.value_and_grad(whole)(params)

    mesh = gf.make_mesh((gf.process_count(),), ("stage",))
    loss = gf.parallel.pipelined_decoder(config, mesh, microbatches=2, ignore_index=-100)
    layers = gf.parallel.stages_of(params["layers"], gf.process_count())
    divided = gf.device_put(layers, gf.NamedSharding(mesh, gf.P("stage")))
    value, grads = gf.jit(gf.value_and_grad(loss))({**params, "layers": divided}, tokens, labels)
    assert grads["layers"]["mlp"]["up_proj"]["weight"].sharding.spec == gf.P("stage")
    grads = gf.device_put(grads, gf.NamedSharding(mesh, gf.P()))
    found = value, {**grads, "layers": gf.parallel.layers_of_stages(grads["layers"])}
    names = [f"{i}" for i, _ in enumerate(gf.tree.leaves(expected))]
    write({f"mine {n}": x for n, x in zip(names, gf.tree.leaves(found), strict=True)}
          | {f"whole {n}": x for n, x in zip(names, gf.tree.leaves(expected))})  # fmt: skip


def divided(rank: int) -> None:
    """Attention of a divided sequence, and experts of which each process has some, with their
    gradients, as on one device; an array that is laid out anew."""
    gf.distributed.initialize()
    n, rng = gf.process_count(), np.random.default_rng(0)
    normal = lambda *shape: gf.numpy.asarray(rng.normal(size=shape).astype(np.float32))
    mesh = gf.make_mesh((n,), ("c",))
    heads = [normal(2, 16, h, 8) for h in (4, 2, 2)]
    layer = gf.nn.MoE(6, 8, experts=8, top_k=3)
    tokens = normal(16, 6), normal(16, 8), layer.init(gf.random.key(0))["experts"]

    def mixture(mlp: Any) -> Any:
        def f(x: Any, logits: Any, params: Any) -> Any:
            weights, experts, _ = gf.nn.top_k_routing(logits, 3)
            return mlp(x, weights, experts, params)

        return f

    one = lambda *qkv: gf.lax.dot_product_attention(*qkv, is_causal=True)
    cases: dict[str, Any] = {
        method: (partial(gf.parallel.context_attention, mesh=mesh, axis="c", is_causal=True,
                         method=method), one, heads)
        for method in ("ring", "all_to_all")
    }  # fmt: skip
    over = partial(gf.parallel.expert_mlp, mesh=mesh, axis="c")
    cases["experts"] = mixture(over), mixture(gf.nn.expert_mlp), tokens
    found: dict[str, Any] = {}
    for name, (mine, whole, args) in cases.items():
        for who, f in (("mine", mine), ("whole", whole)):
            squares = lambda *xs: (f(*xs) ** 2).sum()
            values = gf.jit(gf.value_and_grad(squares, (0, 1, 2)))(*args)
            if who == "mine":
                values = gf.device_put(values, gf.NamedSharding(mesh, gf.P()))
            for i, x in enumerate(gf.tree.leaves(values)):
                found[f"{who} {name} {i}"] = x

    square = gf.make_mesh((2, n // 2), ("a", "b"))
    x = found["whole layout"] = np.arange(8 * 8 * 3, dtype=np.float32).reshape(8, 8, 3)
    for spec in (gf.P("a"), gf.P("b", "a"), gf.P(None, ("a", "b")), gf.P("a", "b"), gf.P()):
        x = gf.device_put(x, gf.NamedSharding(square, spec))
        assert x.sharding.spec == spec
    found["mine layout"] = x
    write(found)


def trained(rank: int) -> None:
    """The losses of a small decoder on one device, and laid out over two processes in every way, or
    over four in two ways at once."""
    gf.distributed.initialize()
    if gf.process_count() == 2:
        ways, steps = {"data": (2, 1, False), "fsdp": (2, 1, True), "model": (1, 2, False)}, 50
    else:
        ways, steps = {"data x model": (2, 2, False), "fsdp x model": (2, 2, True)}, 10
    found = {"one": losses_of(None, False, steps)}
    for name, (rows, columns, divided) in ways.items():
        mesh = gf.make_mesh((rows, columns), ("data", "model"))
        found[name] = losses_of(mesh, divided, steps)
    if gf.process_count() == 2:
        found["fsdp again"] = losses_of(gf.make_mesh((2,), ("data",)), True, steps)
    write(found)


def losses_of(mesh: Mesh | None, divided: bool, steps: int) -> list[float]:
    """Steps of AdamW with clipped gradients."""
    config = gf.models.DecoderConfig(16, 16, 32, 2, 4, 4, 8)
    params = gf.models.decoder.init(gf.random.key(0), config)
    tx = gf.optim.chain(gf.optim.clip_by_global_norm(1.0), gf.optim.adamw(1e-3, eps=1e-6))
    loss: Any = lambda p, t: gf.models.decoder.loss(p, t[:, :-1], t[:, 1:], config)
    init: Any = gf.jit(tx.init)
    if mesh is not None:
        shardings = gf.tree.map(lambda _: gf.parallel.replicated(mesh), params)
        if mesh.shape.get("model", 1) > 1:
            shardings = gf.parallel.tensor(params, mesh)
        if divided:
            shardings = gf.parallel.fsdp(params, mesh, base=shardings, min_size=0)
        params, loss = gf.device_put(params, shardings), gf.parallel.laid_out(loss, shardings)
        states = gf.parallel.state_shardings(tx.init, params, shardings)
        init = gf.jit(tx.init, out_shardings=states)

    @gf.jit
    def step(params: Any, state: Any, tokens: Any) -> Any:
        value, grads = gf.value_and_grad(loss)(params, tokens)
        updates, state = tx.update(grads, state, params)
        return gf.optim.apply_updates(params, updates), state, value

    batches = np.random.default_rng(1).integers(0, 16, (2, 4, 9), np.int32)
    state, found = init(params), []
    for n in range(steps):
        tokens: Any = batches[n % 2]
        if mesh is not None:
            tokens = gf.parallel.data(tokens, mesh)
        params, state, value = step(params, state, tokens)
        found.append(float(value))
    return found


def disagree(rank: int) -> None:
    """Another program on each process: what the second one computes."""
    gf.distributed.initialize()
    mesh = gf.make_mesh((gf.process_count(),), ("i",))
    on_all = gf.shard_map(mesh=mesh, in_specs=gf.P("i"), out_specs=gf.P())
    x = np.ones((4, 2), np.float32)
    gf.jit(on_all(lambda x: gf.lax.psum(x, "i")))(x)
    gf.jit(on_all(lambda x: gf.lax.psum(x * (2.0 + rank), "i")))(x)


def write(found: dict[str, Any]) -> None:
    """The results of this process, as bytes: NumPy's files know no bfloat16."""
    arrays = {k: np.asarray(v) for k, v in found.items()}
    kinds = {k: [str(v.dtype), v.shape] for k, v in arrays.items()}
    Path(f"{gf.process_index()}.json").write_text(json.dumps(kinds))
    raw = {k: np.frombuffer(v.tobytes(), np.uint8) for k, v in arrays.items()}
    np.savez(f"{gf.process_index()}.npz", **raw)  # pyright: ignore[reportArgumentType]


def read(folder: Path, rank: int) -> dict[str, np.ndarray]:
    kinds = json.loads((folder / f"{rank}.json").read_text())
    with np.load(folder / f"{rank}.npz") as raw:
        return {
            k: np.frombuffer(raw[k].tobytes(), dtype(name)).reshape(shape)
            for k, (name, shape) in kinds.items()
        }


# ---- worlds that do not meet ----


def other_version(rank: int) -> None:
    if rank == 1:
        gf.__version__ = "0.0.9"
    gf.distributed.initialize()


def other_size(rank: int) -> None:
    gf.distributed.initialize(num_processes=2 + rank, initialization_timeout=20)


def same_rank(rank: int) -> None:
    gf.distributed.initialize(process_id=1 if rank else 0, initialization_timeout=20)


def too_few(rank: int) -> None:
    gf.distributed.initialize(num_processes=3, initialization_timeout=1)


def simple(rank: int) -> None:
    gf.distributed.initialize()


# ---- worlds that end early ----


def sums(f: Callable[[], object], timeout: float = 60.0) -> None:
    """A loop of a step each, in which `f` is called between two collectives."""
    gf.distributed.initialize(timeout=timeout)
    axis = gf_mesh((gf.process_count(),), ("i",)).axes["i"]
    step = gf.jit(lambda x: bind(c.psum_invariant_p, x, axis_name=axis))
    for _ in range(3):
        np.asarray(step(gf.numpy.ones(4)))
    Path(f"ready {gf.process_index()}").write_text("")
    f()
    np.asarray(step(gf.numpy.ones(4)))  # a GPU is waited for by who reads


def waits(rank: int) -> None:
    """Rank 0 is in a collective, the others do not come."""
    sums(lambda: None if rank == 0 else time.sleep(60))


def works(rank: int) -> None:
    """Every process is between two collectives."""
    sums(lambda: time.sleep(60))


def quick(rank: int) -> None:
    sums(lambda: None)


def late(rank: int) -> None:
    sums(lambda: time.sleep(10) if rank == 1 else None, timeout=1)


class Busy:
    """A GPU on which nothing ends."""

    compute = None

    def new_event(self) -> None:
        return None

    def record(self, event: None, stream: None) -> None:
        return None

    def done(self, event: None) -> bool:
        return False


def late_on_a_gpu(rank: int) -> None:
    """Rank 0 has launched a program whose collectives rank 1 does not come to."""

    def wait() -> None:
        if rank == 0:
            Exchanges(Busy()).launched()  # pyright: ignore[reportArgumentType]
        time.sleep(60)

    sums(wait, timeout=1)


class Sleeper:
    """What Python's end waits for, as it does for a GPU."""

    def __del__(self) -> None:
        time.sleep(600)


def fails_while_a_gpu_waits(rank: int) -> None:
    """An error of rank 1, on whose GPU nothing ends."""

    def broken() -> None:
        if rank == 1:
            Exchanges(Busy()).launched()  # pyright: ignore[reportArgumentType]
            globals()["sleeper"] = Sleeper()
            raise ValueError("no data")
        time.sleep(60)

    sums(broken)


def ends_while_a_gpu_waits(rank: int) -> None:
    """Rank 1 has nothing to do any more, but its GPU does not end."""

    def end() -> None:
        if rank == 1:
            Exchanges(Busy()).launched()  # pyright: ignore[reportArgumentType]
            raise SystemExit
        time.sleep(60)

    sums(end, timeout=1)


def raises(rank: int) -> None:
    def broken() -> None:
        if rank == 1:
            raise ValueError("no data")
        time.sleep(60)

    sums(broken)


def leaves(rank: int) -> None:
    """Rank 1 ends when it has nothing to do any more, as others have: nobody minds."""
    sums(lambda: None)
    if rank == 0:
        time.sleep(2.5)


def on_machines_of_their_own() -> None:
    """Have processes not see each other, and give up a silent one soon."""
    facts._machine = lambda: f"machine of {os.getpid()}"  # pyright: ignore[reportPrivateUsage]
    watch._SILENCE = 3  # pyright: ignore[reportPrivateUsage]


def works_far_apart(rank: int) -> None:
    on_machines_of_their_own()

    def at_work() -> None:
        here = world().watch
        assert here is not None
        here.step = 7
        time.sleep(60)

    sums(at_work)


def ends_far_apart(rank: int) -> None:
    """Rank 1 ends early, and is not missed; rank 0 keeps the store for rank 2."""
    on_machines_of_their_own()
    sums(lambda: None)
    time.sleep([0, 0, 5][rank])


def waits_on_a_gpu(rank: int) -> None:
    """As where the GPU of rank 1 waits for others for too long."""

    def stall() -> None:
        said = "NCCL: remote error" if rank == 1 else None
        name = "genesis_fn.backends.cuda.run.exchanges"
        sys.modules[name] = SimpleNamespace(failed=lambda: said)  # pyright: ignore[reportArgumentType]
        time.sleep(60)

    sums(stall)


def stuck(rank: int) -> None:
    """Rank 0 is in a call that Python's handlers of signals wait for."""
    watch._STUCK = 1.0  # pyright: ignore[reportPrivateUsage]
    mutex = ctypes.create_string_buffer(64)
    lock = ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    sums(lambda: lock(mutex) if rank == 0 else time.sleep(60))


def interrupted_and_goes_on(rank: int) -> None:
    watch._STUCK = 1.0  # pyright: ignore[reportPrivateUsage]

    def survive() -> None:
        try:
            time.sleep(60 if rank == 0 else 0)
        except KeyboardInterrupt:
            time.sleep(4)

    sums(survive)


# ---- what `run` is given ----


def doubled(x: Any, gone: str = "") -> dict[str, Any]:
    total = gf.distributed.process_allgather(gf.numpy.asarray(x)).sum()
    return {"rank": gf.process_index(), "total": total, "threads": os.environ["OMP_NUM_THREADS"]}


def fails(how: str) -> None:
    if gf.process_index() == 1:
        if how == "raises":
            raise ValueError("no data")
        if how == "exits":
            raise SystemExit(3)
        os.kill(os.getpid(), 9)
    gf.distributed.barrier("never")
