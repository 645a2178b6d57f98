"""The paper's pretraining recipe for RAM-Net, shared by `ramnet_340m.py` and `ramnet_1_3b.py`.

No experiment by itself. FineWeb-Edu tokens go in as `--config.data.path`; until a tokenizer is
chosen, text is read as bytes, which fit into the vocabulary.
"""

import ml_collections

from configs import common

TOP_K = ("top8", "top16", "top32")
CONTEXT = 4_096
BATCH = 128  # rows of CONTEXT tokens: 0.5M tokens a step
VOCABULARY = 32_000


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
