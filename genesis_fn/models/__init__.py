"""Language models (Qwen, Llama, Mistral) and text generation: pure functions over pytrees of
parameters."""

from genesis_fn.models import decoder as decoder, qwen as qwen
from genesis_fn.models.decoder_config import DecoderConfig as DecoderConfig
from genesis_fn.models.decoder_module import Decoder as Decoder
from genesis_fn.models.presets import PRESETS as PRESETS
from genesis_fn.models.qwen import Qwen as Qwen, QwenConfig as QwenConfig
from genesis_fn.models.sampling import generate as generate, sample as sample
