"""`shard_map` under its first name."""

from __future__ import annotations

from genesis_fn.transforms.sharding.shard_mapping import shard_map as shard_map
