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
_MADE = json.loads((FOLDER / "provenance.json").read_text())
NAMES = tuple(sorted(_MADE))
REFERENCES = tuple((name, device) for name in NAMES for device in sorted(_MADE[name]))
"""Fixtures with the device, cpu or gpu, on which fla ran."""


@functools.cache
def imported(name):
    """Configuration, parameters and origin of a fixture."""
    return load_fla(FOLDER / name)


@functools.cache
def reference(name, device="cpu"):
    """Tokens [B, T], fla's logits [B, T, V], and those of its last steps of decoding."""
    with np.load(FOLDER / name / f"reference_{device}.npz") as stored:
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
