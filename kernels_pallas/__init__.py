"""GPU kernels of bayesmem: a leaf that imports jax (and triton) only, one folder an op."""
