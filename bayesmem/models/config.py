"""Configuration of a language model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import core
from flax import linen as nn

from bayesmem.layers.options import require_choice, require_positive
from bayesmem.layers.registry import build_mixer

DTYPES = ("float32", "bfloat16")
REMAT_SAVES = ("nothing", "projections", "products")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What a language model is made of.

    Attributes:
      vocab_size: V, number of tokens with a logit.
      width: W of the residual stream.
      num_layers: number of residual blocks.
      mixers: names of `bayesmem.layers.MIXERS`, repeated cyclically over the layers. A name may be
        followed by "/" and a label, so that layers of one kind can have options of their own:
        ("ramnet/moving", "ramnet/still").
      mixer_options: options of each mixer by its name, label included.
      mlp_width: hidden size of the SwiGLU layers; 0 for blocks without one.
      max_length: capacity in tokens of the caches of attention layers.
      tie_embeddings: whether the head reads the embedding's table.
      dtype: "float32" or "bfloat16", of the activations; parameters are float32.
      norm_eps: epsilon of the block's and the final RMSNorm.
      remat: whether the backward pass makes each block's activations again.
      remat_saves: what of a block is kept all the same: "nothing", "projections" (products with
        parameters) or "products" (those of the memories too, and the scores of softmax attention,
        which grow with the square of the length).
      scan_layers: whether the blocks are one program, run for every turn of the mixers over stacked
        parameters: deep models compile in the time of one turn. `num_layers` is then a multiple of
        the number of mixers, and parameters are named `layers/block_N`.
      vocab_multiple: the tables' rows are padded to a multiple of it; padded rows have no logit.
      repeatable: whether the gradient of the embedding is summed in one order, so that a run is
        the same every time on a GPU too: slower, and made for one device.

    Raises:
      ValueError: a value, or a mixer's option, does not fit; names what was found and wanted.
    """

    vocab_size: int
    width: int
    num_layers: int = 2
    mixers: tuple[str, ...] = ("bayesian",)
    mixer_options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    mlp_width: int = 0
    max_length: int = 2048
    tie_embeddings: bool = False
    dtype: str = "float32"
    norm_eps: float = 1e-5
    remat: bool = False
    remat_saves: str = "nothing"
    scan_layers: bool = False
    vocab_multiple: int = 1
    repeatable: bool = False

    def __post_init__(self):
        """Checks the values and builds every mixer once, so that what cannot work raises here."""
        # Immutable, so that models stay hashable, as `jax.jit(model.apply)` asks.
        object.__setattr__(self, "mixers", tuple(self.mixers))
        object.__setattr__(self, "mixer_options", core.freeze(_plain(self.mixer_options)))
        for name in ("vocab_size", "width", "num_layers", "max_length", "vocab_multiple"):
            require_positive(**{name: getattr(self, name)})
        if self.mlp_width:
            require_positive(mlp_width=self.mlp_width)
        require_choice("dtype", self.dtype, DTYPES)
        require_choice("remat_saves", self.remat_saves, REMAT_SAVES)
        if not self.mixers:
            raise ValueError("mixers: found none, wanted at least one name")
        if self.scan_layers and self.num_layers % len(self.mixers):
            raise ValueError(
                f"num_layers: found {self.num_layers}, wanted a multiple of the {len(self.mixers)} "
                "mixers where scan_layers is on"
            )
        for name in self.mixer_options:
            require_choice("mixer_options", name, self.mixers)
        for layer in range(min(self.num_layers, len(self.mixers))):
            self.build_mixer(layer, parent=None)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> "ModelConfig":
        """Returns the configuration of a mapping (a ConfigDict too).

        Raises:
          ValueError: a key is unknown (lists those there are) or a required one is missing.
        """
        plain = _plain(mapping)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for key in plain:
            require_choice("model config key", key, tuple(fields))
        missing = [key for key in ("vocab_size", "width") if key not in plain]
        if missing:
            raise ValueError(f"model config: found no {' and no '.join(missing)}")
        return cls(**plain)

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding table: vocab_size rounded up to a multiple of vocab_multiple."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def compute_dtype(self) -> jnp.dtype:
        """Dtype of the activations."""
        return jnp.dtype(self.dtype)

    def mixer_name(self, layer: int) -> str:
        """Returns the name of the mixer of a layer, with its label if it has one."""
        return self.mixers[layer % len(self.mixers)]

    def build_mixer(self, layer: int, **module: Any) -> nn.Module:
        """Returns the mixer of a layer; `module` holds Flax's `name` or `parent`."""
        name = self.mixer_name(layer)
        options = dict(self.mixer_options.get(name, {}))
        kind = name.partition("/")[0]
        if kind == "attention":
            options.setdefault("max_length", self.max_length)
        return build_mixer(kind, self.width, options, self.compute_dtype).clone(**module)


def _plain(value: Any) -> Any:
    if hasattr(value, "items"):
        return {key: _plain(item) for key, item in value.items()}
    # JSON has no tuples, and a list would make the model unhashable.
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value
