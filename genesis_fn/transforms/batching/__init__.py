"""vmap: batching traces, named axes and collectives, checks under a batched condition.

In reading order: `batch` (the trace), `mapped_axes` (`vmap` itself), `collectives`,
`predicated_checks`.
"""
