"""The backend for NVIDIA GPUs: memory, streams and graphs by cuda-python, kernels by Triton."""
