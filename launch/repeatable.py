"""Compiles for one device so that the same program comes out of every process."""

import os

FLAGS = {
    # XLA times several kernels for each product and takes the fastest: what wins is chance, and
    # every kernel rounds in its own way. It is also most of the time that small models compile.
    "xla_gpu_autotune_level": "0",
    # Without timing, the vendor's library chooses better than the defaults of generated kernels.
    "xla_gpu_enable_triton_gemm": "false",
}
"""Flags of XLA; a GPU's only."""


def compile_repeatably() -> None:
    """Sets `FLAGS`, but for those that XLA_FLAGS names already; call it before JAX is used."""
    given = os.environ.get("XLA_FLAGS", "")
    named = {flag.split("=")[0].lstrip("-") for flag in given.split()}
    added = [f"--{name}={value}" for name, value in FLAGS.items() if name not in named]
    os.environ["XLA_FLAGS"] = " ".join([*given.split(), *added])
