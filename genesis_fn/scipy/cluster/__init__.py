"""scipy.cluster: vector quantization."""

from genesis_fn.scipy.cluster import vq as vq
