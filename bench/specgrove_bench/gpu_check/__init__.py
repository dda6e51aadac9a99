"""Kernels on an NVIDIA GPU: right at every size, how fast, and a whole step at the shapes of an 8B Llama."""
