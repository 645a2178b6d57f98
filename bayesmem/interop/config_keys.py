"""The keys of a config.json: those that decide what is computed, and those that do not."""

import json
import logging
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

Keys = dict[str, Any]
"""Every key that decides something, with its value: the file's, or the default."""

BOOKKEEPING = frozenset(
    "architectures auto_map model_type _name_or_path name_or_path transformers_version torch_dtype "
    "dtype use_cache bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id "
    "initializer_range return_dict output_hidden_states output_attentions torchscript problem_type "
    "id2label label2id task_specific_params is_encoder_decoder is_decoder add_cross_attention "
    "cross_attention_hidden_size tie_encoder_decoder finetuning_task pruned_heads prefix "
    "chunk_size_feed_forward tokenizer_class use_bfloat16 tf_legacy_loss "
    "keys_to_ignore_at_inference "
    # How fla computes, not what: its kernels and its loss.
    "attn_mode fuse_swiglu fuse_cross_entropy fuse_linear_cross_entropy use_l2warp".split()
)
"""Keys of every model type that change nothing of the logits."""


LARGEST = 2**31 - 1
"""Of a size: what an index of 32 bits can count."""


class Key(NamedTuple):
    """What a key may be.

    Attributes:
      default: what fla takes where the file does not have the key.
      wanted: for the error, what the value has to be.
      fits: whether a value is that.
    """

    default: Any
    wanted: str
    fits: Callable[[Any], bool]


def count(default: int | None) -> Key:
    """A whole number >= 1 that fits 32 bits; null too where null is the default."""
    null = default is None

    def fits(value: Any) -> bool:
        if value is None:
            return null
        return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST

    return Key(default, f"a whole number >= 1 and <= {LARGEST:,}" + " or null" * null, fits)


def number(default: float) -> Key:
    """A finite number > 0."""
    return Key(
        default,
        "a number > 0",
        lambda value: (
            isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
        ),
    )


def flag(default: bool) -> Key:
    """True or false."""
    return Key(default, "true or false", lambda value: isinstance(value, bool))


def choice(default: Any, *others: Any) -> Key:
    """One of some values, the default first; only the default where there is one alone."""
    values = (default, *others)
    wanted = " or ".join(map(json.dumps, values))
    return Key(default, wanted, lambda value: any(_same(value, v) for v in values))


def read_keys(config: Mapping[str, Any], keys: Mapping[str, Key], inert: Collection[str]) -> Keys:
    """Reads the keys that decide something.

    A key that is neither in `keys` nor known to change nothing is named in a warning.

    Args:
      config: what config.json holds.
      keys: those that decide something.
      inert: those of the model type that change nothing, besides `BOOKKEEPING`.

    Raises:
      ValueError: values that cannot be expressed here; names every key with its value and what is
        wanted.
    """
    found = {name: config.get(name, key.default) for name, key in keys.items()}
    problems = [
        f"{name}: found {found[name]!r}, wanted {key.wanted}"
        for name, key in keys.items()
        if not key.fits(found[name])
    ]
    if problems:
        raise ValueError("\n  ".join(["config.json cannot be expressed here:", *problems]))
    unknown = sorted(set(config) - set(keys) - set(inert) - BOOKKEEPING)
    if unknown:
        logger.warning(
            "config.json: nothing is known of %s; taken to change nothing of the computation",
            ", ".join(unknown),
        )
    return found


def _same(value: Any, wanted: Any) -> bool:
    """Equality, but of true and 1; of a list, however infinity is written."""
    if isinstance(wanted, list):
        return isinstance(value, list) and list(map(_number, value)) == wanted
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _number(value: Any) -> Any:
    """A number that transformers wrote as {"__float__": "Infinity"}, as one."""
    if isinstance(value, dict) and list(value) == ["__float__"]:
        try:
            return float(value["__float__"])
        except ValueError:
            return value
    return value
