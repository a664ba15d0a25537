"""Files: safetensors, checkpoints, Hugging Face folders."""

from genesis_fn.io.adapters import load_adapter as load_adapter, save_adapter as save_adapter
from genesis_fn.io.async_saver import AsyncSaver as AsyncSaver
from genesis_fn.io.checkpoint import restore as restore, save as save, steps as steps
from genesis_fn.io.model_reading import load_model as load_model, load_qwen as load_qwen
from genesis_fn.io.model_saving import save_model as save_model, save_qwen as save_qwen
from genesis_fn.io.safetensors import (
    FileError as FileError,
    atomic_write as atomic_write,
    load_file as load_file,
    load_metadata as load_metadata,
    save_file as save_file,
)
