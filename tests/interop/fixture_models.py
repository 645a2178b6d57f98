"""The checkpoints that fla made, and what it computes with them: see make_fixture.py."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
from safetensors import safe_open

from bayesmem.interop import load_fla
from bayesmem.models import LanguageModel

FOLDER = Path(__file__).parent / "fixtures"
NAMES = tuple(sorted(json.loads((FOLDER / "provenance.json").read_text())))


@functools.cache
def imported(name):
    """Configuration, parameters and origin of a fixture."""
    return load_fla(FOLDER / name)


@functools.cache
def reference(name):
    """Tokens [B, T], fla's logits [B, T, V], and those of its last steps of decoding."""
    with np.load(FOLDER / name / "reference.npz") as stored:
        return dict(stored)


@functools.cache
def call(config):
    """The jitted (params, tokens, state) -> (logits, state) of a model."""
    model = LanguageModel(config)
    return jax.jit(
        lambda params, tokens, state=None: model.apply({"params": params}, tokens, state)
    )


def read_tensors(path):
    """Every tensor of a file: its dtype, shape and bytes."""
    with safe_open(path, "np") as opened:
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in arrays.items()}
