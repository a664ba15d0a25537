"""Language models (Qwen, Llama, Mistral) and text generation: pure functions over pytrees of
parameters."""

from genesis_fn.models import decoder as decoder, qwen as qwen
from genesis_fn.models.decoder_config import DecoderConfig as DecoderConfig
from genesis_fn.models.decoder_module import Decoder as Decoder
from genesis_fn.models.generation.beams import beam_search as beam_search
from genesis_fn.models.generation.generating import generate as generate
from genesis_fn.models.generation.generation_config import GenerationConfig as GenerationConfig
from genesis_fn.models.generation.sampling import sample as sample
from genesis_fn.models.generation.sessions import (
    Session as Session,
    StreamedToken as StreamedToken,
    stream as stream,
)
from genesis_fn.models.generation.text_stream import TextStream as TextStream
from genesis_fn.models.presets import PRESETS as PRESETS
from genesis_fn.models.qwen import Qwen as Qwen, QwenConfig as QwenConfig
