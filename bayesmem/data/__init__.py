"""Data: each task with its generator in one file, text, and the Grain loaders.

`mqar` and `text` need NumPy only; `loader` needs Grain. Of all that these import, nothing imports
JAX. `collision` and `random_keys` are sampled on the device, inside of compiled code, by JAX.
"""
