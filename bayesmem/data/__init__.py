"""Data: each task with its generator in one file, text, and the Grain loaders.

Text goes through `documents` (from files by `formats`, from the hub by `hub`), `splits`,
`tokenizers` and `text`, which packs it; `preparation` does so once and leaves `shards`. `examples`
and `loader` make batches of either, and of `mqar`. Of all that these import, nothing imports JAX.
`collision` and `random_keys` are sampled on the device, inside of compiled code, by JAX.
"""
