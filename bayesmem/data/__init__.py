"""Data: each task with its generator in one file, text, and the Grain loaders.

`mqar` and `text` need NumPy only; `loader` needs Grain. Nothing here imports JAX.
"""
