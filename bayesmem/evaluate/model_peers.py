"""Language models of flash-linear-attention, timed as ours are; imported only when asked for.

fla is https://github.com/fla-org/flash-linear-attention, models of 0.6.0: float32 parameters,
bfloat16 autocast, its fused cross-entropy, PyTorch's fused AdamW, decoding token by token through
its own cache.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bayesmem.evaluate.model_speed import DECODED, ModelOptions, Program, measured
from bayesmem.evaluate.peers import lift_guard
from bayesmem.models import ModelConfig

CONFIGS = {
    "attention": "TransformerConfig",
    "deltanet": "DeltaNetConfig",
    "gated_deltanet": "GatedDeltaNetConfig",
    "gla": "GLAConfig",
    "kda": "KDAConfig",
    "mamba2": "Mamba2Config",
    "retnet": "RetNetConfig",
}
"""Our mixers and fla's configuration of a model with the same memory."""

NEEDS = {"attention": "flash_attn", "mamba2": "mamba_ssm"}
"""Packages whose kernels fla runs a model with; without them it is refused or many times slower."""


def require() -> None:
    """Raises unless fla's models can be timed here: known before ours have been.

    Raises:
      ImportError: fla, torch or transformers is not installed.
      NotImplementedError: torch finds no GPU.
    """
    torch = _import("torch")
    for name in ("transformers", "fla.models"):
        _import(name)
    if not torch.cuda.is_available():
        raise NotImplementedError("peers: torch finds no GPU, and fla's models need one")


def bench_peer(config: Mapping[str, Any], options: ModelOptions) -> Iterator[dict[str, Any]]:
    """Times fla's model of the same mixer, width, depth, MLP and vocabulary.

    Arguments and rows are those of `model_speed.bench_model`; what fla does not have is left out,
    and where a package is missing that fla needs there is a row of each mode with an `error`; so
    is what fla itself raises. A `note` says what is doubtful of a row. Errors are of `require`.
    """
    model_config = ModelConfig.from_dict(config["model"])
    name = "+".join(model_config.mixers)
    if name not in CONFIGS:
        return
    require()
    needed = NEEDS.get(name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        row = {"model": name, "implementation": "fla", "parameters": None, "tokens": None}
        error = f"{needed} is not installed"
        yield from (row | {"mode": mode, "batch": None, "error": error} for mode in options.modes)
        return
    try:
        yield from _rows(_model(name, model_config), name, config, options)
    finally:  # what PyTorch keeps for itself, the next model could not have
        gc.collect()
        _import("torch").cuda.empty_cache()


def _rows(
    model: Any, name: str, config: Mapping[str, Any], options: ModelOptions
) -> Iterator[dict[str, Any]]:
    """The rows of one model, which nothing else holds."""
    count = sum(x.numel() for x in {id(p): p for p in model.parameters()}.values())
    row = {"model": name, "implementation": "fla", "parameters": count}
    if "train" in options.modes:
        batch, tokens = config["train"]["batch_size"], config["data"]["seq_len"]
        note = lift_guard() if name == "gated_deltanet" else None
        found = _measured(functools.partial(_training, model, config, batch, tokens), options)
        found |= {"note": note} if note and "error" not in found else {}
        yield row | {"mode": "train", "batch": batch, "tokens": tokens} | found
        model.zero_grad(set_to_none=True)
    for batch in options.batches if "decode" in options.modes else ():
        for context in options.contexts:
            found = _measured(functools.partial(_decoding, model, batch, context), options)
            yield row | {"mode": "decode", "batch": batch, "tokens": context} | found
    for context in options.contexts if "prefill" in options.modes else ():
        found = _measured(functools.partial(_prefill, model, context), options)
        yield row | {"mode": "prefill", "batch": 1, "tokens": context} | found


def _measured(build: Callable[[], Program], options: ModelOptions) -> dict[str, Any]:
    """`measured`, but what another library raises is a row and not the end of the run."""
    try:
        return measured(build, options)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"peers: {name} cannot be imported ({error}); install it by pip install -e '.[peers]'"
        ) from error


def _model(name: str, config: ModelConfig) -> Any:
    """Returns fla's model, on the GPU."""
    models, transformers = _import("fla.models"), _import("transformers")
    own = dict(config.mixer_options[name])
    heads = own["num_heads"]
    sizes: dict[str, Any] = {
        "hidden_size": config.width,
        "num_hidden_layers": config.num_layers,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
    }
    if name == "mamba2":
        # Its model has no MLP and twice the layers for as many parameters.
        sizes |= {"num_hidden_layers": 2 * config.num_layers, "head_dim": 64, "expand": 2}
        sizes |= {"num_heads": 2 * config.width // 64, "state_size": 128}
    else:
        sizes |= {"num_heads": heads, "intermediate_size": config.mlp_width}
        if name in ("gated_deltanet", "kda"):
            sizes |= {"head_dim": config.width // heads, "expand_v": 1}
    made = getattr(models, CONFIGS[name])(**sizes)
    return transformers.AutoModelForCausalLM.from_config(made).cuda().train()


def _training(model: Any, config: Mapping[str, Any], batch: int, tokens: int) -> Program:
    torch = _import("torch")
    drawn = torch.randint(model.config.vocab_size, (batch, tokens), device="cuda")
    parts = config["train"]["grad_accumulation"]
    rate = config["optimizer"]["learning_rate"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    model.train()
    torch.cuda.reset_peak_memory_stats()

    def run() -> None:
        for rows in drawn.chunk(parts):
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(input_ids=rows, labels=rows).loss
            (loss / parts).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

    run()
    return Program(run, batch * tokens, torch.cuda.max_memory_allocated() / 1e6)


def _prefill(model: Any, context: int) -> Program:
    torch = _import("torch")
    prompt = torch.randint(model.config.vocab_size, (1, context), device="cuda")
    model.eval()

    def run() -> None:
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
            model(input_ids=prompt, use_cache=True, logits_to_keep=1)
        torch.cuda.synchronize()

    torch.cuda.reset_peak_memory_stats()
    run()
    return Program(run, context, torch.cuda.max_memory_allocated() / 1e6)


def _decoding(model: Any, batch: int, context: int) -> Program:
    torch = _import("torch")
    model.eval()
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        prompt = torch.randint(model.config.vocab_size, (batch, context), device="cuda")
        cache = model(input_ids=prompt, use_cache=True, logits_to_keep=1).past_key_values
    token = prompt[:, -1:]
    torch.cuda.reset_peak_memory_stats()

    def run() -> None:
        nonlocal token, cache
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
            for _ in range(DECODED):
                found = model(input_ids=token, past_key_values=cache, use_cache=True)
                token, cache = found.logits[:, -1:].argmax(-1), found.past_key_values
        torch.cuda.synchronize()

    run()
    return Program(run, batch * DECODED, torch.cuda.max_memory_allocated() / 1e6)
