"""A CPU-only process without torch and triton imports the package and runs models (C17)."""

import subprocess
import sys

SCRIPT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "triton", "jax_triton"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Absent())
import jax
from bayesmem.models import LanguageModel, ModelConfig

model = LanguageModel(ModelConfig(vocab_size=5, width=8, mixers=("bayesian", "attention")))
tokens = jax.numpy.arange(4)[None]
params = model.init(jax.random.key(0), tokens)
_, state = model.apply(params, tokens)
logits, state = model.apply(params, tokens[:, :1], state)
assert jax.numpy.isfinite(logits).all() and int(state.position[0]) == 5
assert not any(name.split(".")[0] == "kernels_pallas" for name in sys.modules)
"""


def test_import_and_two_steps_with_neither_torch_nor_triton():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
