"""numpyro: one model of a regression, by variational inference and by the No-U-Turn sampler.

Runs on JAX, and unchanged by `python -m genesis_fn.as_jax with_numpyro.py`.
"""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

keys = random.split(random.PRNGKey(4), 5)
x = random.normal(keys[0], (20, 2))
y = x @ jnp.array([1.0, -2.0]) + 0.3 * random.normal(keys[1], (20,))


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, scale), obs=y)


guide = AutoNormal(model)
svi = SVI(model, guide, numpyro.optim.Adam(0.05), Trace_ELBO())
found = svi.run(keys[2], 20, x, y, progress_bar=False)
params = {name: v.ravel().tolist() for name, v in sorted(found.params.items())}

sampler = MCMC(NUTS(model), num_warmup=4, num_samples=6, progress_bar=False)
sampler.run(keys[3], x, y)
samples = {name: v.ravel().tolist() for name, v in sorted(sampler.get_samples().items())}
drawn = Predictive(model, sampler.get_samples())(keys[4], x[:3])["y"].ravel().tolist()
print(json.dumps({
    "losses": found.losses.tolist(), "params": params, "samples": samples, "predicted": drawn,
}))  # fmt: skip
