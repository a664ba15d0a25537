"""scipy.spatial: rotations."""

from genesis_fn.scipy.spatial import transform as transform
