"""What users type has a docstring to work with: arguments, results, an example that runs.

`pytest tests/test_docstrings.py -k optim.losses` for one namespace. Examples know `gf`, `jnp`,
`lax`, `nn`, `optim`, `random`, `np` and the names of the module that defines the function.
"""

from __future__ import annotations

import doctest
import inspect
import operator
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import genesis_fn as gf
from genesis_fn import lax, nn, optim, random
from genesis_fn.optim import EmptyState
from tests.public.agree import Entry
from tests.public.entries_contrib import CONTRIBUTED
from tests.public.entries_more import TRANSFORMATIONS as GRADIENT_TRANSFORMATIONS
from tests.public.entries_optim import SEARCHES
from tests.public.names import DISTRIBUTIONS, exported, module_of

TRANSFORMATIONS = GRADIENT_TRANSFORMATIONS | CONTRIBUTED | SEARCHES
# Namespaces whose functions and layers are typed by users every day.
NAMESPACES = [
    "transforms",
    "amp",
    "random",
    "scipy.linalg",
    "nn",
    "nn.initializers",
    "optim",
    "optim.assignment",
    "optim.contrib",
    "optim.losses",
    "optim.microbatching",
    "optim.perturbations",
    "optim.projections",
    "optim.schedules",
    "optim.second_order",
    "optim.transforms",
    "optim.tree",
    "optim.tree_utils",
    "models",
    "models.qwen",
    "io",
    "data",
    "tree",
    "profiler",
    "debug",
    "ad_checkpoint",
    "custom_derivatives",
    "experimental.checkify",
    "cuda",
    "distributed",
    "parallel",
    "experimental.ode",
    "scipy.cluster.vq",
    "scipy.fft",
    "scipy.integrate",
    "scipy.interpolate",
    "scipy.ndimage",
    "scipy.optimize",
    "scipy.signal",
    "scipy.sparse.linalg",
    "scipy.spatial.transform",
    "scipy.stats",
    *[f"scipy.stats.{name}" for name in DISTRIBUTIONS],
]
GLOBALS = {
    "gf": gf,
    "jnp": gf.numpy,
    "lax": lax,
    "nn": nn,
    "optim": optim,
    "parallel": gf.parallel,
    "random": random,
    "scipy": gf.scipy,
    "np": np,
    "checkify": gf.experimental.checkify,
}


def is_documented_by_its_fields(x: Any) -> bool:
    """Classes that are read, caught or matched, and made by the library alone; aliases of types."""
    if hasattr(x, "__origin__"):
        return True
    if not inspect.isclass(x):
        return False
    made_by_users = {
        nn.Module, gf.amp.LossScale, gf.models.Qwen, gf.models.QwenConfig,
        gf.models.GenerationConfig, gf.models.Session, gf.models.TextStream, optim.MultiSteps,
        optim.GradientTransformation, optim.WrappedSchedule, optim.microbatching.Accumulator,
        gf.data.TokenWindows, gf.profiler.TraceAnnotation, gf.debug.nan_trace,
        gf.scipy.stats.gaussian_kde,
    }  # fmt: skip
    return not made_by_users & {*x.__mro__} and x not in (gf.custom_jvp, gf.custom_vjp)


def documented() -> Iterator[tuple[str, Any]]:
    """(name, function) of everything that must have arguments, results and an example."""
    # `optim` exports the losses and schedules of its parts once more, and these what `optim` has.
    of_parts = {*exported("optim.losses"), *exported("optim.schedules")}
    again = ("optim.contrib", "optim.microbatching", "optim.transforms", "optim.tree_utils")
    known = {id(getattr(module_of(s), n)) for s in ("optim", "optim.tree") for n in exported(s)}
    for space in NAMESPACES:
        for name in sorted(exported(space) - (of_parts if space == "optim" else set())):
            f = getattr(module_of(space), name)
            if space in again and id(f) in known:
                continue
            if callable(f) and not is_documented_by_its_fields(f) and not inspect.ismodule(f):
                yield f"{space}.{name}", f
    for name in ("dot_product_attention", "layer_norm", "linear_cross_entropy", "rms_norm"):
        yield f"lax.{name}", getattr(lax, name)


CASES = [pytest.param(f, id=name) for name, f in documented()]


def parameters(f: Any) -> list[str]:
    try:
        found = inspect.signature(f).parameters
    except (TypeError, ValueError):
        return []
    return [n for n in found if n not in ("self", "cls")]


@pytest.mark.parametrize("f", CASES)
def test_arguments_results_and_an_example_are_described(f: Any) -> None:
    text = inspect.getdoc(f) or ""
    given = text.partition("Args:")[2]
    missing = [n for n in parameters(f) if not re.search(rf"(?<!\w)\*{{0,2}}{n}\b", given)]
    assert missing == [], "not under Args:"
    returns = inspect.isclass(f) or "-> None" in _source_head(f)
    assert returns or "Returns:" in text or "Yields:" in text, "says nothing of what it returns"
    assert ">>> " in text, "has no example"


@pytest.mark.parametrize("f", CASES)
def test_errors_are_described(f: Any) -> None:
    """A function that raises by itself says what; of a class, what making one raises."""
    makers = (
        [f.__dict__.get(n) for n in ("__init__", "__post_init__")] if inspect.isclass(f) else [f]
    )
    written = [m for m in makers if inspect.isfunction(m) and m.__code__.co_filename != "<string>"]
    sources = [inspect.getsource(inspect.unwrap(m)) for m in written]
    if any(re.search(r"^\s+raise \w", source, re.M) for source in sources):
        assert "Raises:" in (inspect.getdoc(f) or ""), "says nothing of what it raises"


# Where an algorithm is the subject: its formula stands indented before the arguments.
ALGORITHMS = [
    p for p in CASES if str(p.id).startswith("optim.") and not str(p.id).startswith("optim.tree.")
]


def named(reasons: dict[str, str]) -> set[str]:
    """The ids of {reason: names}."""
    return {f"optim.{name}" for names in reasons.values() for name in names.split()}


# Names by the reason why they have no formula.
NO_FORMULA = named({
    "arranges transformations, whose formulas count":
        "chain named_chain masked partition multi_transform freeze selective_transform flatten "
        "schedules.inject_hyperparams schedules.inject_stateful_hyperparams "
        "with_extra_args_support with_update_dtype",
    "applies or records what a function of the user's gives":
        "losses.make_fenchel_young_loss stateless stateless_with_tree_map snapshot monitor",
    "a pair or a function of the user's":
        "GradientTransformation GradientTransformationExtraArgs schedules.WrappedSchedule",
    "changes shapes": "microbatching.reshape_batch_axis",
    "does not change the updates": "identity",
    "makes, reads or changes a state": "describe init_empty_state tree_map_params",
})  # fmt: skip
# Names by the reason why no paper is their source.
NO_SOURCE = named({
    "arranges transformations, whose sources count":
        "chain named_chain masked partition multi_transform freeze selective_transform flatten "
        "with_extra_args_support with_update_dtype stateless "
        "stateless_with_tree_map conditionally_mask conditionally_transform maybe_update",
    "a pair or a function of the user's":
        "GradientTransformation GradientTransformationExtraArgs microbatching.Accumulator",
    "makes, reads, records or changes a state": "describe init_empty_state tree_map_params "
        "snapshot monitor measure_with_ema value_and_grad_from_state",
    "arithmetic, of which no paper is the first":
        "abs_sq apply_updates global_norm safe_increment safe_int32_increment safe_norm "
        "safe_root_mean_squares scale scale_by_learning_rate scale_by_schedule "
        "scale_by_param_block_norm unitwise_norm update_moment update_moment_per_elem_norm "
        "identity set_to_zero keep_params_nonnegative periodic_update multi_normal scale_gradient",
    "practice of training programs, which no paper introduced":
        "MultiSteps apply_every apply_if_finite reduce_on_plateau skip_large_updates "
        "skip_not_finite warn_of_lost_steps zero_nans microbatch microbatching.micro_vmap "
        "microbatching.reshape_batch_axis",
})  # fmt: skip
# Most of these no paper introduced.
WITHOUT_SOURCES = (
    "optim.schedules.", "optim.losses.", "optim.projections.", "optim.second_order.",
)  # fmt: skip


@pytest.mark.parametrize("f", [p for p in ALGORITHMS if p.id not in NO_FORMULA])
def test_an_algorithm_has_its_formula(f: Any) -> None:
    before = (inspect.getdoc(f) or "").partition("Args:")[0].partition("Returns:")[0]
    assert re.search(r"^ {4,}\S", before, re.M), "has no indented formula before Args:"


@pytest.mark.parametrize(
    "f",
    [p for p in ALGORITHMS if p.id not in NO_SOURCE and not str(p.id).startswith(WITHOUT_SOURCES)],
)
def test_an_optimizer_has_its_source(f: Any) -> None:
    assert re.search(r"\b(19|20)\d\d\b", inspect.getdoc(f) or ""), "names no paper with its year"


def test_names_without_formula_or_source_are_walked_and_have_none() -> None:
    text = {str(p.id): inspect.getdoc(p.values[0]) or "" for p in ALGORITHMS}
    assert NO_FORMULA - {*text} == set() and NO_SOURCE - {*text} == set()
    assert [n for n in NO_SOURCE if re.search(r"Source.*\b(19|20)\d\d\b", text[n], re.S)] == []


class Initialised(Exception):
    """Carries the state that a transformation's `init` made."""


def state_of(make: Callable[..., Any], entry: Entry) -> Any:
    """The first state of the transformation that an entry of `tests/public` makes."""

    def made(*args: Any, **kwargs: Any) -> Any:
        tx = make(*args, **kwargs)
        tx = getattr(tx, "gradient_transformation", lambda: tx)()

        def init(params: Any) -> Any:
            raise Initialised(tx.init(params))

        return optim.GradientTransformationExtraArgs(init, tx.update)

    rng = np.random.default_rng(0)
    operands = [gf.numpy.asarray(o.draw(rng, "float32")) for o in entry.operands]
    try:
        entry.call(made, *operands)
    except Initialised as found:
        return found.args[0]
    raise AssertionError("the entry calls no init")


def is_transformation(f: Any) -> bool:
    text = inspect.getdoc(f) or ""
    return "The transformation" in text.partition("Returns:")[2].partition(">>>")[0]


@pytest.mark.parametrize(
    "name", [str(p.id).removeprefix("optim.") for p in ALGORITHMS if is_transformation(p.values[0])]
)
def test_a_transformation_names_the_fields_of_its_states(name: str) -> None:
    f = operator.attrgetter(name)(optim)
    says_of_it = (inspect.getdoc(f) or "").partition("Returns:")[2]
    text = " ".join(re.split("Raises:|>>>", says_of_it)[0].split())
    state = state_of(f, TRANSFORMATIONS[name.removeprefix("contrib.")][0])
    cls, fields = type(state).__name__, getattr(type(state), "_fields", ())
    other = re.search(r"states (?:are those )?of `(\w+)`", text)
    if other:  # an argument's, or another optimizer's
        entries = TRANSFORMATIONS.get(other[1])
        if entries is not None:
            assert fields == state_of(getattr(optim, other[1]), entries[0])._fields
    elif not fields:
        says = {EmptyState: "without a state", tuple: "", OrderedDict: "dicts by name"}
        assert says[type(state)] in text
    elif cls == "ChainState":
        said = re.findall(r"`(\w+)`", text.partition("field")[2])
        partly = "a field for each part that is used" in text
        assert {*said} <= {*fields} if partly else said == [*fields], f"has {fields}"
    elif cls == "PartitionState" and "({" in text:
        assert re.findall(r'"(\w+)":', text) == [*state.inner_states], "has other labels"
    else:
        found = re.search(rf"\b{cls}\(([^)]*)\)", text)
        assert found, f"does not say that states are {cls}"
        said = found[1].split(", ")
        rest = [n for n in said if n != "..."]
        assert {*rest} <= {*fields} if "..." in said else said == [*fields], f"has {fields}"


def _source_head(f: Any) -> str:
    """`-> None` of a function's own annotation."""
    try:
        return f"-> {inspect.signature(f).return_annotation}"
    except (TypeError, ValueError):
        return ""


NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+)(?:e[-+]?\d+)?")


class RoundedChecker(doctest.OutputChecker):
    """Compares floats by value, since processors differ in a result's last digits."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        if super().check_output(want, got, optionflags):
            return True
        texts = [
            " ".join(re.sub(r"([\[\](),])", r" \1 ", NUMBER.sub("#", t)).split())
            for t in (want, got)
        ]
        numbers = [[float(n) for n in NUMBER.findall(t)] for t in (want, got)]
        return texts[0] == texts[1] and np.allclose(*numbers, rtol=1e-4, atol=1e-6)


def test_the_checker_tells_values_apart() -> None:
    check = RoundedChecker().check_output
    assert check("Array([1.5 , 2.25], dtype=float32)", "Array([1.500001, 2.25], dtype=float32)", 0)
    assert not check("Array([1.5], dtype=float32)", "Array([1.51], dtype=float32)", 0)
    assert not check("Array([1.5], dtype=float32)", "Array([1.5], dtype=float64)", 0)
    assert not check("Array([1.5, 2.0])", "Array([1.5])", 0)


@pytest.mark.cpu
@pytest.mark.parametrize("f", CASES)
def test_the_example_runs(f: Any) -> None:
    text = inspect.getdoc(f) or ""
    home = vars(sys.modules[f.__module__]) if getattr(f, "__module__", None) in sys.modules else {}
    example = doctest.DocTestParser().get_doctest(text, {**home, **GLOBALS}, "example", None, 0)
    assert example.examples, "has no example"
    said: list[str] = []
    runner = doctest.DocTestRunner(
        RoundedChecker(), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    )
    with gf.default_device(gf.cpu()):
        runner.run(example, out=said.append)
    assert runner.failures == 0, "".join(said)


def test_every_docstring_is_in_one_form() -> None:
    """Sections are `Args:`, `Returns:`, `Raises:`, `Yields:`, and the example stands apart."""
    found = []
    for param in CASES:
        text = inspect.getdoc(param.values[0]) or ""
        found += [
            f"{param.id}: {line}"
            for line in text.splitlines()
            if re.fullmatch(r"(Arguments?|Parameters?|Return|Examples?|Notes?):?", line.strip())
        ]
        if not text.partition(">>> ")[0].endswith("\n\n"):
            found.append(f"{param.id}: no blank line before its example")
    assert found == []


def test_what_users_type_is_walked() -> None:
    assert len(CASES) > 200
