"""Small teachers with parameters that are none of them special, their students, and batches."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from bayesmem.distill.initial import make_init
from bayesmem.distill.replacement import Pair, in_turns, make_pair
from bayesmem.distill.settings import StudentSettings
from bayesmem.models import LanguageModel, ModelConfig

VOCAB, WIDTH, STEPS, BATCH = 13, 16, 16, 3
SUMMED = STEPS * WIDTH
"""Terms summed on the way to an output: for `tests.tolerances`."""
QUICK_BUILD = {"xla_backend_optimization_level": 0}

HEADS = {"num_heads": 2, "head_dim": 4, "chunk_size": 8}
TEACHERS = {
    # mixers of a turn, options of the first, changes of the model
    "plain": (("gated_deltanet",), HEADS, {}),
    "wide": (
        ("gated_deltanet",),
        HEADS | {"num_value_heads": 4, "expand_v": 1.5, "conv_bias": True, "qk_bias": 0.5},
        {"tie_embeddings": True},
    ),
    "scanned": (("gated_deltanet",), HEADS, {"scan_layers": True}),
    "deltanet": (("deltanet",), HEADS, {"mlp_width": 0}),
    "hybrid": (("attention", "gated_deltanet"), HEADS, {}),
}


class Case(NamedTuple):
    """A teacher as it was trained, and the pair with both parameters in turns."""

    teacher: ModelConfig
    params: Any
    pair: Pair
    wanted: Any  # the teacher's parameters in turns
    student: Any
    given: Any  # those of the teacher's replaced mixers


@functools.cache
def teacher_config(name: str = "plain", **changes) -> ModelConfig:
    mixers, options, own = TEACHERS[name]
    every = {"attention": {"num_heads": 2, "max_length": 32}} if "attention" in mixers else {}
    values = {"num_layers": 4, "mlp_width": 24, "max_length": 32, "vocab_multiple": 8}
    values |= {"mixers": mixers, "mixer_options": every | {mixers[-1]: dict(options)}}
    return ModelConfig(VOCAB, WIDTH, **values | own | changes)


@functools.cache
def parameters(config: ModelConfig):
    """Float32 parameters, none of them at its special initial value."""
    init, tokens = LanguageModel(config).init, jnp.zeros((1, 2), jnp.int32)
    shapes = nn.meta.unbox(jax.eval_shape(init, jax.random.key(0), tokens))["params"]
    noise = np.random.default_rng(0)

    def draw(path, shape):
        names = [key.key for key in path]
        mean = 1.0 if names[-1] == "scale" else 0.0
        mean = -7.0 if names[-1] == "bias" and any("_noise" in name for name in names) else mean
        return jnp.asarray(mean + 0.3 * noise.standard_normal(shape.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


@functools.cache
def case(name: str = "plain", layers=(1, 3), *, anywhere: bool = False, **student) -> Case:
    """A case; `anywhere` has the student's own parameters anywhere, not where they start."""
    settings = StudentSettings(layers, **student)
    teacher = teacher_config(name)
    params, pair = parameters(teacher), make_pair(teacher, settings)
    wanted = in_turns(teacher, params, pair.period)
    if anywhere:
        drawn, theirs = flat(parameters(pair.student)), flat(wanted)
        own = {n: x if pair.trains(n) else theirs[n] for n, x in drawn.items()}
        own = traverse_util.unflatten_dict(own, sep="/")
    else:
        init = jax.jit(make_init(pair, settings), compiler_options=QUICK_BUILD)
        own = nn.meta.unbox(init(jax.random.key(1), wanted))
    blocks = wanted["layers"]
    given = {f"block_{place}": blocks[f"block_{place}"]["mixer"] for place in pair.places}
    return Case(teacher, params, pair, wanted, own, given)


def flat(tree) -> dict[str, Any]:
    return traverse_util.flatten_dict(tree, sep="/")


def batch(documents: bool = True, seed: int = 0) -> dict[str, jax.Array]:
    """Rows; with documents and padding at the left, in between and at the right, or all of it."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, VOCAB, (BATCH, STEPS + 1)).astype(np.int32)
    found = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:].copy()}
    found["targets"][0, 3:6] = -100
    if documents:
        ids = np.repeat(np.arange(4, dtype=np.int32), STEPS // 4)[None].repeat(BATCH, 0)
        ids[1, :2] = ids[1, 7:9] = ids[1, 13:] = -1
        ids[2] = 0
        found |= {"segment_ids": ids, "targets": np.where(ids < 0, -100, found["targets"])}
    return jax.tree.map(jnp.asarray, found)
