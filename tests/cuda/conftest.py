"""This folder runs in a process of its own: Triton chooses between compiler and interpreter when it
is imported. Without `GENESIS_CUDA_DRIVER=cuda` everything runs on the interpreting driver.

Arrays are made on the CPU unless a test asks for a GPU.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if os.environ.get("GENESIS_CUDA_DRIVER") != "cuda":
    os.environ["GENESIS_CUDA_DRIVER"] = "interpret"
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ.setdefault("GENESIS_INTERPRET_DEVICES", "2")
os.environ.setdefault("GENESIS_DEVICE", "cpu")

sys.path.insert(0, str(Path(__file__).parent))
