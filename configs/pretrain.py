"""Language models of four sizes on tokenized text, for GPUs; the paper's RAM-Net recipes share it.

python -m launch.prepare_data --path=TEXT --tokenizer=tokenizer.model --output=data/novels
python -m launch.train --config=configs/pretrain.py:small,gated_deltanet --workdir=runs/small \
  --config.data.path=data/novels --config.data.tokenizer=tokenizer.model

Variants, joined by commas: a size, "tiny" (5 million parameters), "small" (default, 40 to 50),
"340m" or "1_3b"; a mixer, "bayesian" (default) or another of `configs/common.py`, or a hybrid such
as "bayesian+attention"; and for RAM-Net the slots a token reads and writes, "top8", "top16" or
"top32". Every mixer has the same number of layers, width and MLP; heads have 64 dimensions, from
340m on 128 (RAM-Net 32), and the short convolution of its paper; the Bayesian Layer has that of
Gated DeltaNet. "attention" is the Transformer++: rotary positions, RMSNorm, SwiGLU.

The vocabulary is that of 32,000 pieces; another tokenizer: `--config.model.vocab_size=50304`.
"""

from typing import NamedTuple

import ml_collections

from configs import common


class Size(NamedTuple):
    """Shape and budget of a model."""

    width: int
    layers: int
    mlp: int
    head: int  # dimensions of a head
    context: int  # tokens of a row
    batch: int  # rows a step
    steps: int
    learning_rate: float


SIZES = {
    "small": Size(512, 8, 1_408, 64, 2_048, 32, 1_000, 2e-3),
    "tiny": Size(128, 4, 384, 64, 1_024, 32, 1_000, 4e-3),
    "340m": Size(1_024, 24, 2_816, 128, 4_096, 128, 20_000, 1e-3),
    "1_3b": Size(2_048, 24, 5_632, 128, 4_096, 128, 200_000, 4e-4),
}
"""The first is the default; the two large ones have the tokens of the paper's recipes."""

TOP_K = ("top8", "top16", "top32")
CONTEXT = 4_096
BATCH = 128  # rows of CONTEXT tokens: 0.5M tokens a step
VOCABULARY = 32_000


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The config of a variant, locked.

    Args:
        variant: Comma parts as in the module docstring.

    Returns:
        ConfigDict.

    Raises:
        ValueError: A part that does not exist; lists what does.
    """
    groups = {"size": tuple(SIZES), "mixer": common.MIXERS, "top_k": TOP_K}
    chosen = common.choose(variant, groups)
    size = SIZES[chosen["size"]]
    config = common.base(common.text_data(), VOCABULARY)
    config.data.seq_len = size.context
    common.use_mixers(config, chosen["mixer"], num_heads=size.width // size.head)
    options = config.model.mixer_options
    if "bayesian" in options:
        own = {"transition": "scalar", "conv_size": 4, "activation": "silu"}
        options["bayesian"].update(own)
    if "attention" in options:
        options["attention"]["implementation"] = "auto"  # by cuDNN's kernel where that runs
    if "ramnet" in options:
        top_k = int(chosen["top_k"].removeprefix("top"))
        options["ramnet"].update({"num_heads": size.width // 32, "top_k": top_k})
    config.model.width, config.model.num_layers = size.width, size.layers
    config.model.mlp_width = size.mlp
    config.model.dtype = "bfloat16"
    large = size.width >= 1_024
    config.model.scan_layers = config.model.remat = large
    config.optimizer.learning_rate = size.learning_rate
    config.optimizer.warmup_steps = size.steps // 20
    config.train.steps, config.train.batch_size = size.steps, size.batch
    config.train.grad_accumulation = 8 if large else 1
    config.train.loss_tokens = 512
    config.train.eval_every = config.train.checkpoint_every = size.steps // (50 if large else 5)
    return config.lock()


def recipe(
    variant: str, *, width: int, mlp_width: int, tokens: float, warmup: float, learning_rate: float
) -> ml_collections.ConfigDict:
    """A RAM-Net of 25 layers with heads of 32, and its training, locked.

    Args:
        variant: One of `TOP_K`; "" for the first.
        width: W; there are width / 32 heads.
        mlp_width: Hidden width of the SwiGLU MLP.
        tokens: Tokens to train on.
        warmup: Tokens of the warm-up.
        learning_rate: Its peak.

    Returns:
        ConfigDict.

    Raises:
        ValueError: An unknown variant; lists those there are.
    """
    chosen = common.choose(variant, {"top_k": TOP_K})
    config = common.base(common.text_data(), VOCABULARY)
    config.data.seq_len = CONTEXT
    common.use_mixers(config, "ramnet", num_heads=width // 32)
    config.model.mixer_options["ramnet"]["top_k"] = int(chosen["top_k"].removeprefix("top"))
    config.model.width = width
    config.model.num_layers = 25
    config.model.mlp_width = mlp_width
    config.model.dtype = "bfloat16"
    config.model.remat = True
    config.optimizer.learning_rate = learning_rate
    config.optimizer.warmup_steps = round(warmup / (BATCH * CONTEXT))
    config.train.batch_size = BATCH
    config.train.grad_accumulation = 16
    config.train.steps = round(tokens / (BATCH * CONTEXT))
    config.train.eval_every = 1_000
    config.train.checkpoint_every = 1_000
    return config.lock()
