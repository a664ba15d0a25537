"""Saving and recomputing values in the backward pass, under the names of jax.ad_checkpoint.

A policy says what `checkpoint` saves by True or False, which `Saveable` and `Recompute` are other
names of. Values stay on their device: there is no `Offloadable`.
"""

from genesis_fn.transforms.autodiff.checkpointing import (
    checkpoint as checkpoint,
    checkpoint_name as checkpoint_name,
    checkpoint_policies as checkpoint_policies,
    remat as remat,
)
from genesis_fn.transforms.autodiff.residuals import (
    print_saved_residuals as print_saved_residuals,
    saved_residuals as saved_residuals,
)

Saveable, Recompute = True, False
