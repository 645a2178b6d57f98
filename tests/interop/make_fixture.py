"""Makes the fixtures of this folder with flash-linear-attention itself, on a GPU or a CPU.

    python tests/interop/make_fixture.py [--output=tests/interop/fixtures] [NAME ...]

needs torch, transformers and flash-linear-attention, and nothing of this project. Each fixture is
a checkpoint as `save_pretrained` writes it, and `reference_cpu.npz` and `reference_gpu.npz`: tokens
[B, T], the float32 logits [B, T, V] of one call over all of them, and `decoded` [B, N, V], the
logits of the last N tokens read one by one from the cache that a call over the others left. On a
CPU fla's kernels run in Triton's interpreter; `provenance.json` says on what each was made. A
checkpoint that is there already is read and not made again: both references are of its weights.
"""

import argparse
import json
import os
import sys
from importlib import import_module
from pathlib import Path

import numpy as np

torch = import_module("torch")
ON_GPU = torch.cuda.is_available()
# Both are read when Triton is imported: no GPU's tf32, and no GPU at all.
os.environ["TRITON_F32_DEFAULT"] = "ieee"
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"

# By name: they are no requirements of this project.
fla, models = import_module("fla"), import_module("fla.models")
safetensors, transformers = import_module("safetensors.torch"), import_module("transformers")
triton = import_module("triton")

TOKENS, DECODED, ROWS, VOCAB = 75, 5, 2, 48
SHARED = {"vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "norm_eps": 1e-5}
MLP = {"intermediate_size": 40}
GROUPED = {"num_heads": 2, "num_v_heads": 4, "head_dim": 8, "expand_v": 1.5} | MLP
"""Two key heads, four value heads, and values of another size than keys."""

# name: fla's model, its configuration
FIXTURES = {
    "gated_deltanet": ("GatedDeltaNet", GROUPED | {"allow_neg_eigval": True}),
    "gated_deltanet_tied": (
        "GatedDeltaNet",
        GROUPED | {"tie_word_embeddings": True, "output_gate_activation": "sigmoid"},
    ),
    "gated_deltanet_bfloat16": ("GatedDeltaNet", GROUPED | {"use_gate": False}),
    # Its chunked kernel refuses float32: the recurrent one reads every length.
    "delta_net": ("DeltaNet", {"num_heads": 2, "attn_mode": "fused_recurrent"} | MLP),
    "delta_net_wide": (
        "DeltaNet",
        {"num_heads": 2, "expand_k": 0.75, "use_gate": True, "attn_mode": "fused_recurrent"} | MLP,
    ),
    "gla": ("GLA", {"num_heads": 2} | MLP),
    "gla_convolved": ("GLA", {"num_heads": 2, "use_short_conv": True, "fuse_norm": False} | MLP),
    "mamba2": ("Mamba2", {"head_dim": 12, "state_size": 10}),
    "mamba2_groups": ("Mamba2", {"head_dim": 12, "state_size": 10, "n_groups": 2}),
    "mamba2_plain": (
        "Mamba2",
        {"head_dim": 12, "state_size": 10, "rmsnorm": False, "use_conv_bias": False},
    ),
}
READ_ONE_BY_ONE = ("mamba2_groups",)
"""Without the package mamba_ssm, fla's prefill of several groups gives the heads other groups than
its own decoding does, and the kernels of mamba_ssm do: all tokens are then read by decoding."""


def keep_float32() -> None:
    """No product on a GPU in tf32: fla inverts the triangles of Gated DeltaNet's chunks in it.

    Its logits beyond the first 16 tokens of a chunk are then up to 0.014 from those of float32 (on
    an H200, fla 0.6.0), at logits of up to 5.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    chunks = import_module("fla.ops.gated_delta_rule.chunk_fwd")
    chunks.SOLVE_TRIL_DOT_PRECISION = triton.language.constexpr("ieee")


def interpret_kernels() -> None:
    """Lets fla's kernels run in Triton's interpreter, where there is no GPU to time them on."""
    autotuner = import_module("triton.runtime.autotuner")

    class Index(int):
        """A loop's index, which a compiled kernel may ask to become of another dtype."""

        def to(self, dtype):
            return self

    def indices(*bounds):
        return (Index(i) for i in range(*bounds))

    # Every configuration gives the same result: none is timed, the first one is taken.
    autotuner.Autotuner._bench = lambda self, *args, config, **kwargs: [0.0, 0.0, 0.0]
    for name, module in list(sys.modules.items()):
        if name.startswith("fla.ops."):
            module.range = indices


def make_model(name: str, seed: int):
    """A model whose every parameter is random, norm scales and biases among them."""
    kind, options = FIXTURES[name]
    config = getattr(models, f"{kind}Config")(**SHARED | options)
    torch.manual_seed(seed)
    model = getattr(models, f"{kind}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            noise = torch.randn(value.shape)
            if value.ndim == 1:
                value.add_(0.3 * noise.to(value))
            elif "conv1d" in key:
                value.copy_(0.5 * noise)
            else:
                value.copy_(noise / value.shape[-1] ** 0.5)
    if name.endswith("bfloat16"):  # decays stay float32, as fla's trainer keeps them
        with torch.no_grad():
            for key, value in model.named_parameters():
                if not key.endswith("A_log"):
                    value.copy_(value.bfloat16().float())
    return model


def one_by_one(model, tokens, cache):
    """Logits of tokens [B, N] read one by one, [B, N, V]."""
    logits = []
    for i in range(tokens.shape[1]):
        out = model(tokens[:, i : i + 1], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        logits.append(out.logits)
    return torch.cat(logits, dim=1)


def empty_cache(model):
    """The cache of Mamba-2 before its first token: zeros."""
    cache, device = import_module("fla.models.utils").Cache(), model.lm_head.weight.device
    for layer in (block.mixer for block in model.backbone.layers):
        memory = torch.zeros(ROWS, layer.num_heads, layer.head_dim, layer.ssm_state_size)
        window = torch.zeros(ROWS, layer.conv_dim, layer.conv_kernel_size)
        cache.update(
            recurrent_state=memory.to(device),
            conv_state=window.to(device),
            layer_idx=layer.layer_idx,
            offset=0,
        )
    return cache


@torch.no_grad()
def reference(name: str, model, tokens) -> dict[str, np.ndarray]:
    """The logits of tokens [B, T]."""
    if name in READ_ONE_BY_ONE:
        logits = one_by_one(model, tokens, empty_cache(model))
        decoded = logits[:, -DECODED:]
    else:
        logits = model(tokens).logits
        before = model(tokens[:, :-DECODED], use_cache=True).past_key_values
        decoded = one_by_one(model, tokens[:, -DECODED:], before)
    found = {"tokens": tokens.int(), "logits": logits.float(), "decoded": decoded.float()}
    return {key: value.cpu().numpy() for key, value in found.items()}


def store_weights(path: Path, name: str, model) -> None:
    """Writes a model's checkpoint, with the file of its weights at `path`."""
    model.save_pretrained(path.parent)
    (path.parent / "generation_config.json").unlink(missing_ok=True)
    if name.endswith("bfloat16"):
        tensors = {
            key: value if key.endswith("A_log") else value.bfloat16()
            for key, value in safetensors.load_file(path).items()
        }
        safetensors.save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)


def store(folder: Path, name: str, seed: int) -> dict[str, float]:
    """Writes one fixture; returns how far its decoding is from its prefill."""
    device = "cuda" if ON_GPU else "cpu"
    model, path = make_model(name, seed), folder / "model.safetensors"
    if path.is_file():
        found = model.load_state_dict(safetensors.load_file(path), strict=False)
        shared = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
        if found.unexpected_keys or set(found.missing_keys) - shared:
            raise ValueError(f"{path}: found other tensors than {name} has: {found}")
    else:
        store_weights(path, name, model)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (ROWS, TOKENS), generator=generator)
    arrays = reference(name, model.to(device), tokens.to(device))
    np.savez_compressed(folder / f"reference_{'gpu' if ON_GPU else 'cpu'}.npz", **arrays)
    gap = np.abs(arrays["decoded"] - arrays["logits"][:, -DECODED:]).max()
    return {"largest_logit": float(np.abs(arrays["logits"]).max()), "decode_gap": float(gap)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "fixtures")
    parser.add_argument("names", nargs="*", default=list(FIXTURES))
    given = parser.parse_args()
    if ON_GPU:
        keep_float32()
    else:
        interpret_kernels()
    versions = {"torch": torch, "transformers": transformers, "triton": triton, "fla": fla}
    path = given.output / "provenance.json"
    provenance = json.loads(path.read_text()) if path.is_file() else {}
    for name in given.names:
        (given.output / name).mkdir(parents=True, exist_ok=True)
        measured = store(given.output / name, name, seed=list(FIXTURES).index(name))
        ops = "fla's Triton kernels" + ("" if ON_GPU else ", interpreted")
        if name.startswith("mamba2"):
            ops = "fla's own torch code of Mamba-2 between " + ops
        made = provenance.setdefault(name, {})["gpu" if ON_GPU else "cpu"] = {
            "device": torch.cuda.get_device_name(0) if ON_GPU else "CPU",
            "versions": {key: module.__version__ for key, module in versions.items()},
            "ops": ops,
            "prefill": "token by token" if name in READ_ONE_BY_ONE else "one call",
            **measured,
        }
        print(name, made, flush=True)
        path.write_text(json.dumps(provenance, indent=1) + "\n")


if __name__ == "__main__":
    main()
