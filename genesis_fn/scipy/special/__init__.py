"""Special functions, with SciPy's names."""

from genesis_fn.nn.functions import logsumexp as logsumexp
from genesis_fn.scipy.special.bessel import (
    bessel_jn as bessel_jn,
    i0 as i0,
    i0e as i0e,
    i1 as i1,
    i1e as i1e,
)
from genesis_fn.scipy.special.combinatorics import (
    bernoulli as bernoulli,
    comb as comb,
    factorial as factorial,
)
from genesis_fn.scipy.special.error_functions import (
    dawsn as dawsn,
    erf as erf,
    erfc as erfc,
    erfcx as erfcx,
    erfinv as erfinv,
    fresnel as fresnel,
    wofz as wofz,
)
from genesis_fn.scipy.special.exponential_integrals import (
    exp1 as exp1,
    expi as expi,
    expn as expn,
    sici as sici,
    spence as spence,
)
from genesis_fn.scipy.special.gamma_functions import (
    beta as beta,
    betainc as betainc,
    betaln as betaln,
    digamma as digamma,
    gamma as gamma,
    gammainc as gammainc,
    gammaincc as gammaincc,
    gammaln as gammaln,
    gammasgn as gammasgn,
    loggamma as loggamma,
    multigammaln as multigammaln,
    poch as poch,
    polygamma as polygamma,
    psi as psi,
    zeta as zeta,
)
from genesis_fn.scipy.special.harmonics import sph_harm_y as sph_harm_y
from genesis_fn.scipy.special.hypergeometric import hyp1f1 as hyp1f1, hyp2f1 as hyp2f1
from genesis_fn.scipy.special.logarithms import (
    boxcox as boxcox,
    boxcox1p as boxcox1p,
    entr as entr,
    expit as expit,
    kl_div as kl_div,
    log_softmax as log_softmax,
    logit as logit,
    rel_entr as rel_entr,
    softmax as softmax,
    xlog1py as xlog1py,
    xlogy as xlogy,
)
from genesis_fn.scipy.special.normal import (
    log_ndtr as log_ndtr,
    ndtr as ndtr,
    ndtri as ndtri,
    owens_t as owens_t,
)
