"""What kernels are written on, and how they are compiled and interpreted alone."""
