# Triton's annotations describe its compiler's objects, not what device code computes with (numbers
# for `constexpr` parameters, tensors with operators), and differ from release to release. To the
# type checker all of it is Any; planners are checked against this library's own types.
from typing import Any

def __getattr__(name: str) -> Any: ...
