"""Fused functions: softmax, norms, cross-entropy, attention. Each is one operation of a program,
which a backend may have a kernel for."""
