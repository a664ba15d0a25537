"""Language models (Qwen) and text generation: pure functions over pytrees of parameters."""

from genesis_fn.models import qwen as qwen
from genesis_fn.models.qwen import Qwen as Qwen
from genesis_fn.models.qwen_config import QwenConfig as QwenConfig
from genesis_fn.models.sampling import generate as generate, sample as sample
