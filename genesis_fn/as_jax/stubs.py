"""What stands for a name that other libraries import and the library does not have."""

from __future__ import annotations

from typing import Any, Never

from genesis_fn.core.errors import GenesisError


class MissingError(GenesisError, NotImplementedError):
    """A name of JAX's was used that only stands there so that it can be imported."""


class MissingAttributeError(MissingError, AttributeError):
    """A part of such a name was asked for: to `hasattr` it is not there."""


class _Stub(type):
    """The kind of classes that can be named, subclassed and asked for, and do nothing else."""

    said: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Never:
        raise MissingError(cls.said)

    def __getattr__(cls, name: str) -> Never:
        # Those with underscores are asked for by inspection, which takes their absence for a no.
        if name.startswith("__"):
            raise AttributeError(name)
        raise MissingAttributeError(cls.said)

    def __getitem__(cls, key: Any) -> Never:
        raise MissingError(cls.said)

    def __iter__(cls) -> Never:
        raise MissingError(cls.said)


def stub(name: str, instead: str = "") -> Any:
    """A class named `name` that raises MissingError when it is used.

    It may be imported, stand in annotations, be compared with and be asked for by `isinstance`,
    which is what most libraries do with such names.

    Args:
        name: the full name, `jax.interpreters.partial_eval.trace_to_jaxpr`.
        instead: what to use instead, where there is something.
    """
    said = f"genesis_fn.as_jax has no {name}"
    said += f": use {instead}" if instead else ", and what called it needs it"
    return _Stub(name.rpartition(".")[2], (), {"said": said, "__module__": name.rpartition(".")[0]})
