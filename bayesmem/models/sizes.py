"""What a model is made of in numbers: parameters, state, and work for a token of decoding."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from bayesmem.layers import Attention, BayesianLayer, RamNet
from bayesmem.models.config import ModelConfig
from bayesmem.models.language_model import LanguageModel
from bayesmem.models.parameters import parameter_counts


class ModelSizes(NamedTuple):
    """Numbers of a model; a multiplication and its addition are two FLOPs."""

    parameters: int
    state: int  # numbers that the layers' memories hold for a sequence
    active: int  # of them, how many a token reads and writes
    flops: int  # a token of decoding, in products with parameters and with memories


def model_sizes(config: ModelConfig) -> ModelSizes:
    """Counts a model without making its parameters.

    The state is what memories hold: means and covariances, the content of slots (their masses, one
    number a slot, are left out, as in arXiv 2602.11958v2), keys and values of `max_length` tokens.
    A token reads and writes all of it, but of slots K to write and K to read. A memory of D x M
    takes 2 D M FLOPs to read and as many for each product that its write makes; a covariance
    D x D six such; norms, gates and softmaxes are not counted.
    """
    model = LanguageModel(dataclasses.replace(config, scan_layers=False))
    tokens = jnp.zeros((1, 2), jnp.int32)
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), tokens))["params"]
    # The head is one product; reading a row of the embedding is none.
    head = config.padded_vocab_size * config.width
    tables = {"embedding", "head"} & set(params)
    shapes = [leaf.shape for name in set(params) - tables for leaf in _leaves(params[name])]
    products = head + sum(math.prod(shape) for shape in shapes if len(shape) > 1)
    state = active = memory_flops = 0
    for layer in range(config.num_layers):
        held, used, flops = _memory(config.build_mixer(layer, parent=None))
        state, active, memory_flops = state + held, active + used, memory_flops + flops
    total = parameter_counts(params)["total"]
    return ModelSizes(total, state, active, 2 * products + memory_flops)


def state_size(config: ModelConfig) -> int:
    """Returns the `state` of `model_sizes` alone; it takes milliseconds."""
    layers = range(config.num_layers)
    return sum(_memory(config.build_mixer(layer, parent=None))[0] for layer in layers)


def _leaves(tree) -> list:
    return jax.tree.leaves(nn.meta.unbox(tree))


def _memory(mixer) -> tuple[int, int, int]:
    """Numbers held, numbers used by a token, and FLOPs of a token's read and write."""
    state = jax.eval_shape(lambda: mixer.init_state(1))
    if isinstance(mixer, Attention):
        cache = state.key.size + state.value.size
        grouped = mixer.layout.value_heads // mixer.layout.key_heads
        return cache, cache, 2 * cache * grouped
    memory = state.memory
    if isinstance(mixer, RamNet):
        used = 2 * mixer.top_k * mixer.num_heads * mixer.slot_width
        return memory.content.size, used, 3 * used
    if isinstance(mixer, BayesianLayer):
        mean, cov = memory.mean.size, memory.cov.size
        return mean + cov, mean + cov, 6 * mean + 12 * cov
    held = sum(leaf.size for leaf in jax.tree.leaves(memory))
    return held, held, 6 * held


def size_table(rows: dict[str, ModelSizes]) -> str:
    """Returns a table of sizes, a row a model."""
    lines = [f"{'model':24}{'parameters':>14}{'state':>12}{'active':>12}{'FLOPs/token':>14}"]
    for name, sizes in rows.items():
        numbers = [*map(_short, sizes[:3])]
        numbers.append(f"{sizes.flops / 1e9:.2f}G" if sizes.flops >= 1e8 else _short(sizes.flops))
        lines.append(f"{name:24}{numbers[0]:>14}{numbers[1]:>12}{numbers[2]:>12}{numbers[3]:>14}")
    return "\n".join(lines)


def _short(number: int) -> str:
    return f"{number / 1e6:.1f}M" if number >= 1e5 else f"{number / 1e3:.1f}K"
