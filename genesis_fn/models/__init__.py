"""Language models (Qwen) and text generation: pure functions over pytrees of parameters."""

from genesis_fn.models import qwen as qwen
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
from genesis_fn.models.qwen import Qwen as Qwen
from genesis_fn.models.qwen_config import QwenConfig as QwenConfig
