"""How many modules a program passes through on its way to the GPU, on the interpreting driver.

Counted are distinct modules of `genesis_fn` of which a Python function is entered in
`Backend.compile` and in the executable's first run, up to the driver's launch of its graph, for a
program of three equations. The passes that `pipeline.compile_jaxpr` and `schedule` name are not
counted, nor what lies beneath them or beneath `Driver.prepare`, which compiles the kernels. Memory
that other programs left is there: growing the pool is no part of this program's way.
"""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest

import genesis_fn as gf
import genesis_fn.numpy as jnp
from genesis_fn.backends.cuda import pipeline
from genesis_fn.backends.cuda.backend import CudaBackend
from genesis_fn.backends.cuda.lower.steps import ProgramLowering
from genesis_fn.backends.cuda.run.executable import CudaExecutable
from genesis_fn.core.device import device, using_device
from tests.test_modules_entered import PASSES, check_jit, modules_entered, program

pytestmark = pytest.mark.interpreted
MOST = 13
# The passes of the lists, by the names that they call them by.
PROGRAM = {
    "physical": pipeline.physical, "represented": pipeline.represented,
    "contiguous_collectives": pipeline.contiguous_collectives,
    "simplify_jaxpr": pipeline.simplify_jaxpr, "fuse_attention": pipeline.fuse_attention,
    "laid_convolutions": pipeline.laid_convolutions,
    "rematerialise_jaxpr": pipeline.rematerialise_jaxpr, "donations": pipeline.donations,
}  # fmt: skip
BODY = {
    "known_indices": pipeline.known_indices, "counted_scans": pipeline.counted_scans,
    "products_outside": pipeline.products_outside,
    "row_loops": pipeline.row_loops, "joined_iterations": pipeline.joined_iterations,
    "absorb_casts": pipeline.absorb_casts, "shallow_products": pipeline.shallow_products,
    "vectors_left": pipeline.vectors_left, "inner_products": pipeline.inner_products,
    "pitched_products": pipeline.pitched_products, "group_matmuls": pipeline.group_matmuls,
    "row_sums": pipeline.row_sums, "joined_sums": pipeline.joined_sums,
    "stacked_sums": pipeline.stacked_sums,
    "share_sorts": pipeline.share_sorts, "random_words": pipeline.random_words,
    "rotations": pipeline.rotations, "overlays": pipeline.overlays,
    "computed_reductions": pipeline.computed_reductions, "row_factors": pipeline.row_factors,
    "reductions_by_columns": pipeline.reductions_by_columns, "fuse_jaxpr": pipeline.fuse_jaxpr,
    "lower": ProgramLowering.lower, "fuse_horizontally": pipeline.fuse_horizontally,
    "overlap_collectives": pipeline.overlap_collectives, "pack_arena": pipeline.pack_arena,
}  # fmt: skip
LIST = PROGRAM | BODY


def from_compile_to_launch() -> tuple[list[str], list[str]]:
    """What a first call enters from `compile` on, and a second one from its executable on."""
    from genesis_fn.backends.cuda.driver.interpret import InterpretDriver

    with using_device(device("cuda")):
        xs = jnp.ones(3), jnp.full((3,), 2.0)
        gf.jit(lambda x, y: program(x, y) * 2)(*xs).block_until_ready()  # memory is there now
        gf.clear_caches()
        jitted = gf.jit(lambda x, y: program(x, y))

        def call() -> None:
            jitted(*xs).block_until_ready()

        beneath = [*LIST.values(), InterpretDriver.prepare]
        within = [CudaBackend.compile, CudaExecutable.run]
        launch = [InterpretDriver.launch_graph]
        first = modules_entered(call, launch, beneath, within)
        assert len(jitted.cache.programs[0].jaxpr.eqns) == 3
        return first, modules_entered(call, launch, PASSES, [CudaExecutable.run])


def test_from_a_jitted_call_to_its_executable():
    with using_device(device("cuda")):
        check_jit(CudaExecutable)


def test_from_compile_to_the_launch():
    first, second = from_compile_to_launch()
    passes = {inspect.unwrap(f).__module__ for f in LIST.values()}
    rest = [m for m in first if m not in passes]
    assert len(rest) <= MOST, rest
    # All of the way is there, from compiling to the first run's capture of a graph.
    ends = "genesis_fn.backends.cuda.pipeline", "genesis_fn.backends.cuda.run.graph"
    assert {*ends} <= {*rest}
    # A further call touches its executable, the addresses of its arrays, and the graph.
    assert [m.rpartition(".")[2] for m in second] == ["executable", "io_buffers", "graph"]


@pytest.mark.parametrize(
    ("listing", "passes"), [(pipeline.compile_jaxpr, PROGRAM), (pipeline.schedule, BODY)]
)
def test_the_passes_are_those_of_the_list(listing, passes):
    tree = ast.parse(textwrap.dedent(inspect.getsource(listing)))
    called = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
    lines = {ast.unparse(f).rpartition(".")[2]: f.lineno for f in called}
    assert sorted(passes, key=lines.__getitem__) == list(passes)
    if passes is PROGRAM:
        assert lines["schedule"] > max([lines[name] for name in passes])
