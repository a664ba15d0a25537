"""Pytrees: nested containers of arrays, with the names of jax.tree and the library's additions."""

from genesis_fn.core.tree import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    PyTreeDef,
    SequenceKey,
    all,
    broadcast,
    dataclass,
    flatten,
    flatten_with_path,
    keystr,
    leaves,
    leaves_with_path,
    map,
    map_with_path,
    paths,
    reduce,
    register_dataclass,
    register_node,
    static_field,
    structure,
    transpose,
    unflatten,
)

__all__ = [
    "DictKey", "FlattenedIndexKey", "GetAttrKey", "PyTreeDef", "SequenceKey", "all", "broadcast",
    "dataclass", "flatten", "flatten_with_path", "keystr", "leaves", "leaves_with_path", "map",
    "map_with_path", "paths", "reduce", "register_dataclass", "register_node", "static_field",
    "structure", "transpose", "unflatten",
]  # fmt: skip
