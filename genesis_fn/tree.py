"""Pytrees: nested containers of arrays, with the names of jax.tree and the library's additions."""

from genesis_fn.core.tree import (
    PyTreeDef as PyTreeDef,
    all as all,
    broadcast as broadcast,
    dataclass as dataclass,
    flatten as flatten,
    flatten_with_path as flatten_with_path,
    leaves as leaves,
    leaves_with_path as leaves_with_path,
    map as map,
    map_with_path as map_with_path,
    paths as paths,
    reduce as reduce,
    reduce_associative as reduce_associative,
    register_dataclass as register_dataclass,
    register_node as register_node,
    static as static,
    static_field as static_field,
    structure as structure,
    transpose as transpose,
    unflatten as unflatten,
)
from genesis_fn.core.trees.html import show as show
from genesis_fn.core.trees.keys import (
    DictKey as DictKey,
    FlattenedIndexKey as FlattenedIndexKey,
    GetAttrKey as GetAttrKey,
    SequenceKey as SequenceKey,
    keystr as keystr,
)
from genesis_fn.core.trees.printing import pformat as pformat, pprint as pprint
from genesis_fn.core.trees.selection import at as at, mask as mask, select as select
