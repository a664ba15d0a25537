"""Where programs run: torch on the CPU, generated and library kernels on NVIDIA GPUs."""
