"""scipy.signal: convolutions, spectra and trends."""

from genesis_fn.scipy.signal.convolution import (
    convolve as convolve,
    convolve2d as convolve2d,
    correlate as correlate,
    correlate2d as correlate2d,
    fftconvolve as fftconvolve,
)
from genesis_fn.scipy.signal.segments import istft as istft, stft as stft
from genesis_fn.scipy.signal.spectra import csd as csd, welch as welch
from genesis_fn.scipy.signal.trends import detrend as detrend
