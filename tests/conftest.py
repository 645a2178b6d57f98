import gc
import importlib.metadata
import itertools
import os
import pathlib
import sys
import tempfile

# A persistent compilation cache, shared by all workers and by the subprocesses that tests start.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", os.path.join(tempfile.gettempdir(), "bayesmem_jax_cache")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
if "--device=gpu" in sys.argv or "--device gpu" in " ".join(
    sys.argv
):  # JAX has to know before it is imported, workers inherit it
    os.environ["JAX_PLATFORMS"] = "cuda,cpu"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Threads of XLA's CPU client, by default one a core. The interpreter of kernels takes one for each
# warpgroup of a cluster, and there they wait for each other: with too few of them, forever.
os.environ.setdefault("NPROC", "16")
# Tests compile much and compute little: LLVM's costly passes would only cost time. A program in
# several parts takes a sixth more of it, and no core is free for them; without fusion emitters one
# compiles four times faster. Newer versions abort on that last flag.
_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
_FLAGS += " --xla_cpu_parallel_codegen_split_count=1"
if importlib.metadata.version("jaxlib").startswith("0.10."):
    _FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", _FLAGS)

import jax  # noqa: E402
import pytest  # noqa: E402


def pytest_addoption(parser):
    """`pytest tests/kernels_pallas --device=gpu` runs kernels and does not interpret them."""
    parser.addoption("--device", default="cpu", choices=("cpu", "gpu"), help="where tests run")


def pytest_configure(config):
    if config.getoption("--device") != "gpu":
        return
    try:
        found = jax.default_backend()
    except RuntimeError as error:
        found = str(error)
    if found != "gpu":
        raise pytest.UsageError(f"--device=gpu: JAX finds no GPU, but {found}")


@pytest.fixture
def x64():
    """Runs a test in double precision."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


_TESTS = itertools.count(1)


@pytest.fixture(autouse=True)
def few_memory_maps():
    """Drops compiled programs before their memory maps reach the limit of the kernel.

    A program of the CPU compiler holds some maps, a test some hundreds, and Linux kills a
    process's allocations at 65,530 (vm.max_map_count): jaxlib then crashes inside a compilation.
    """
    yield
    # To read the maps takes up to 10 ms, and 16 tests add some thousands of them at most.
    if next(_TESTS) % 16:
        return
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()
        gc.collect()
