"""What is public: the names that the public packages and modules export.

A package exports by `import x as x` in its `__init__`. A public module that is a file exports the
same way, and what it defines without a leading underscore.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType

import genesis_fn

ROOT = Path(genesis_fn.__file__).parent
PACKAGES = [
    "", "ad_checkpoint", "amp", "core", "cuda", "data", "debug", "distributed", "dtypes",
    "errors", "experimental", "extend", "image", "io", "kernels", "lax", "models", "nn",
    "numpy", "optim", "parallel", "primitives", "profiler", "random", "scipy", "sharding",
    "test_util", "transforms", "tree", "tree_util", "typing", "version",
]  # fmt: skip
# Their own public parts, and JAX's import paths.
PARTS = [
    "custom_batching", "custom_derivatives", "dlpack", "experimental.checkify",
    "experimental.ode", "extend.cpu", "extend.cuda", "flatten_util", "lax.linalg",
    "models.decoder", "models.qwen", "nn.initializers", "nn.lora", "numpy.fft", "numpy.linalg",
    "ops", "optim.assignment", "optim.contrib", "optim.losses", "optim.microbatching",
    "optim.perturbations", "optim.projections", "optim.schedules", "optim.second_order",
    "optim.transforms", "optim.tree", "optim.tree_utils", "scipy.cluster", "scipy.cluster.vq",
    "scipy.fft", "scipy.integrate", "scipy.interpolate", "scipy.linalg", "scipy.ndimage",
    "scipy.optimize", "scipy.signal", "scipy.sparse", "scipy.sparse.linalg", "scipy.spatial",
    "scipy.spatial.transform", "scipy.special", "stages",
]  # fmt: skip
DISTRIBUTIONS = [
    "bernoulli", "beta", "betabinom", "binom", "cauchy", "chi2", "dirichlet", "expon", "gamma",
    "gennorm", "geom", "gumbel_l", "gumbel_r", "laplace", "logistic", "multinomial",
    "multivariate_normal", "nbinom", "norm", "pareto", "poisson", "t", "truncnorm", "uniform",
    "vonmises", "wrapcauchy",
]  # fmt: skip
PUBLIC = [*PACKAGES, *PARTS, "scipy.stats", *[f"scipy.stats.{n}" for n in DISTRIBUTIONS]]


def path_of(name: str) -> Path:
    """The file of a public package or module, `numpy.linalg`."""
    path = ROOT.joinpath(*name.split(".")) if name else ROOT
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"genesis_fn.{name}".rstrip("."))


def exported(name: str) -> set[str]:
    """The names that a public package or module exports, from its source alone."""
    path = path_of(name)
    tree = ast.parse(path.read_text())
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {a.name for a in node.names if a.asname == a.name}
    for node in tree.body:
        if isinstance(node, ast.If):  # what a module is to type checkers, if it can be called
            found |= {n.name for n in node.body if isinstance(n, ast.ClassDef)}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n for t in targets for n in getattr(t, "elts", [t])]
            found |= {n.id for n in names if isinstance(n, ast.Name)}
    return {n for n in found if not n.startswith("_")}
