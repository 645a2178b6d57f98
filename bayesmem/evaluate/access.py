"""Which slots a trained RAM-Net writes and reads, token by token."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayesmem.data.tokenizers import BYTES, load_tokenizer
from bayesmem.models import LanguageModel, ModelConfig, unroll_params
from bayesmem.train.checkpoint import restore_params
from bayesmem.train.parts import build_model
from bayesmem.train.settings import MeshSettings
from bayesmem.train.sharding import make_mesh
from bayesmem.train.step import abstract_params
from bayesmem.train.workdir import CHECKPOINTS, read_run


class AccessTrace(NamedTuple):
    """Slots of one layer over one sequence, of T tokens, H heads, K slots an address.

    Attributes:
      layer: index of the layer.
      num_slots: S.
      cape_heads: the first so many heads shift their addresses with the position.
      write_ids: [T, H, K] int32; write_weights: [T, H, K] float32.
      read_ids: [T, H, K] int32; read_weights: [T, H, K] float32.
    """

    layer: int
    num_slots: int
    cape_heads: int
    write_ids: np.ndarray
    write_weights: np.ndarray
    read_ids: np.ndarray
    read_weights: np.ndarray


def trace_workdir(workdir: Path, text: str | bytes) -> list[AccessTrace]:
    """Runs the newest usable checkpoint of a run on a text and records every access.

    Args:
      workdir: directory of a training run on text.
      text: what the model reads, after a document mark; at least one byte.

    Returns:
      One trace for each RAM-Net layer.

    Raises:
      FileNotFoundError: the directory holds no run, or the run no usable checkpoint.
      ValueError: the text is empty, longer than the caches of attention layers, or of tokens that
        the model does not have; or no layer of the model is a RAM-Net.
    """
    config = read_run(workdir)
    tokenizer = load_tokenizer(config["data"].get("tokenizer", BYTES))
    tokens = np.concatenate([[tokenizer.document_end], tokenizer.encode(text)]).astype(np.int32)
    if len(tokens) < 2:
        raise ValueError("text: found an empty text, wanted at least one byte")
    model = build_model(config)
    wanted = ModelConfig.from_dict(config["model"])
    if tokens.max() >= wanted.vocab_size:
        raise ValueError(
            f"text: found the token {tokens.max()} and a model of {wanted.vocab_size} tokens; "
            f"wanted a run on text"
        )
    layers = _ramnet_layers(wanted)
    mesh = make_mesh(MeshSettings())
    _, params = restore_params(workdir / CHECKPOINTS, abstract_params(model, mesh))
    if wanted.scan_layers:
        model = LanguageModel(dataclasses.replace(wanted, scan_layers=False))
        params = unroll_params(params)
    run = jax.jit(lambda p, t: model.apply({"params": p}, t, mutable=["intermediates"])[1])
    sown = run(params, jnp.asarray(tokens)[None])["intermediates"]
    return [_trace(layer, mixer, sown[f"blocks_{layer}"]["mixer"]) for layer, mixer in layers]


def _ramnet_layers(config: ModelConfig) -> list[tuple[int, Any]]:
    found = [
        (layer, config.build_mixer(layer, parent=None))
        for layer in range(config.num_layers)
        if config.mixer_name(layer).partition("/")[0] == "ramnet"
    ]
    if not found:
        raise ValueError(
            f"workdir: found the mixers {', '.join(config.mixers)}, wanted a 'ramnet' among them"
        )
    return found


def _trace(layer: int, mixer: Any, sown: dict[str, Any]) -> AccessTrace:
    parts = []
    for name in ("write", "read"):
        (address,) = sown[f"{name}_address"]
        parts += [np.asarray(address.ids[0]), np.asarray(address.weights[0])]
    return AccessTrace(layer, mixer.num_slots, mixer.cape_heads, *parts)


def save_traces(traces: list[AccessTrace], path: Path) -> None:
    """Writes traces as one compressed .npz, arrays named `layer_<index>/<field>`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"layer_{trace.layer}/{field}": np.asarray(value)
        for trace in traces
        for field, value in trace._asdict().items()
        if field != "layer"
    }
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
