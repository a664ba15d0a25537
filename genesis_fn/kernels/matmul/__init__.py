"""Matrix products and convolutions, by one family of kernels."""
