"""How fast language models train, read prompts and generate, and the memory that they need.

Every number is of one program, compiled ahead: the memory is what XLA has planned for it
(arguments, results and temporaries, those that share a place counted once), times are medians of
calls that are waited for. Tokens are random; weights are as initialised.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bayesmem.evaluate.device_time import milliseconds
from bayesmem.models import LanguageModel, LMState, ModelConfig, parameter_counts
from bayesmem.models.cast_once import cast_once
from bayesmem.models.context import state_at
from bayesmem.train.objective import Scoring, next_token
from bayesmem.train.optimizer import make_optimizer, make_schedule
from bayesmem.train.settings import Settings
from bayesmem.train.sharding import make_mesh, put_batch
from bayesmem.train.step import create_state, make_train_step

MODES = ("train", "prefill", "decode")
DECODED = 32
"""Tokens that a timed call of decoding generates for each row, one after the other."""
_PREFIX = 64
"""Random tokens that fill the memories before decoding is timed."""


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """What is timed.

    Attributes:
      modes: some of `MODES`.
      contexts: tokens that a model has read before it decodes, or reads as a prompt.
      batches: rows that are decoded together.
      repeats: timed calls of each program.
    """

    modes: tuple[str, ...] = MODES
    contexts: tuple[int, ...] = (1024, 32_768)
    batches: tuple[int, ...] = (1,)
    repeats: int = 10

    def __post_init__(self) -> None:
        """Raises ValueError naming what cannot be used."""
        if not self.modes:
            raise ValueError(f"modes: found none, wanted some of {', '.join(MODES)}")
        for mode in self.modes:
            if mode not in MODES:
                raise ValueError(f"modes: found {mode!r}, wanted some of {', '.join(MODES)}")
        for name in ("contexts", "batches"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ValueError(f"{name}: found {getattr(self, name)}, wanted numbers >= 1")
        if self.repeats < 1:
            raise ValueError(f"repeats: found {self.repeats}, wanted at least 1")


class Program(NamedTuple):
    """A call that can be timed.

    Attributes:
      run: makes one call and waits for it.
      tokens: that a call trains on, reads or generates, over all rows.
      peak_mb: memory that XLA has planned, in MB of 10^6 bytes.
    """

    run: Callable[[], Any]
    tokens: int
    peak_mb: float


def bench_model(config: Mapping[str, Any], options: ModelOptions) -> Iterator[dict[str, Any]]:
    """Times one model.

    Args:
      config: of a run on text: `model`, `train.batch_size`, `data.seq_len` and the rest.
      options: what is timed.

    Yields:
      For each program `model`, `implementation`, `mode`, `batch`, `tokens` (of a row of training,
      or the context), `parameters`, and `ms` of a call, `tokens_per_s` (of `DECODED` tokens a row
      in a call of decoding) and `peak_mb`, or `error`.
    """
    model_config = ModelConfig.from_dict(config["model"])
    name = "+".join(model_config.mixers)
    for mode, batch, tokens in _programs(config, options):
        row: dict[str, Any] = {"model": name, "implementation": "bayesmem", "mode": mode}
        row |= {"batch": batch, "tokens": tokens, "parameters": _count(model_config)}
        yield row | measured(
            functools.partial(_build, config, options.repeats, mode, batch, tokens), options
        )


def measured(build: Callable[[], Program], options: ModelOptions) -> dict[str, Any]:
    """Returns `ms`, `tokens_per_s`, `peak_mb`; or `error` where the memory is too small."""
    try:
        program = build()
        program.run()
        times = [milliseconds(program.run) for _ in range(options.repeats)]
    except Exception as error:
        if "RESOURCE_EXHAUSTED" not in str(error) and "out of memory" not in str(error):
            raise
        return {"error": "out of memory"}
    middle = statistics.median(times)
    rate = 1e3 * program.tokens / middle
    return {"ms": middle, "tokens_per_s": rate, "peak_mb": program.peak_mb}


def _programs(config: Mapping[str, Any], options: ModelOptions) -> Iterator[tuple[str, int, int]]:
    """Mode, rows and tokens of every program."""
    if "train" in options.modes:
        yield "train", config["train"]["batch_size"], config["data"]["seq_len"]
    if "prefill" in options.modes:
        for context in options.contexts:
            yield "prefill", 1, context
    if "decode" in options.modes:
        for batch in options.batches:
            for context in options.contexts:
                yield "decode", batch, context


def _build(config: Mapping[str, Any], calls: int, mode: str, batch: int, tokens: int) -> Program:
    """Compiles one program, to be called so often and once before."""
    if mode == "train":
        return _training(config, batch, tokens)
    own = ModelConfig.from_dict(config["model"])
    own = dataclasses.replace(own, max_length=tokens + DECODED * (calls + 1))
    model: Any = LanguageModel(own)  # Flax's `apply` returns what it runs
    init = jax.jit(lambda key: nn.meta.unbox(model.init(key, jnp.zeros((1, 2), jnp.int32))))
    params = init(jax.random.key(0))
    build = _prefill if mode == "prefill" else _decoding
    return build(model, params, batch, tokens)


def _training(config: Mapping[str, Any], batch: int, tokens: int) -> Program:
    settings = Settings.from_config(config)
    options, mesh = settings.train, make_mesh(settings.mesh)
    model = LanguageModel(ModelConfig.from_dict(config["model"]))
    schedule = make_schedule(settings.optimizer, options.steps)
    optimizer = make_optimizer(settings.optimizer, options.steps)
    state, shardings = create_state(model, optimizer, 0, mesh)
    step: Any = make_train_step(
        next_token(model, Scoring(options.loss_tokens, options.z_loss)),
        optimizer,
        schedule,
        shardings,
        grad_accumulation=options.grad_accumulation,
    )
    drawn = _tokens((batch, tokens + 1), model.config.vocab_size)
    rows = put_batch(mesh, {"inputs": drawn[:, :-1], "targets": drawn[:, 1:]})
    program = step.lower(state, rows).compile()

    def run() -> None:
        nonlocal state
        state, metrics = program(state, rows)
        jax.block_until_ready(metrics)

    return Program(run, batch * tokens, _planned_mb(program))


def _prefill(model: Any, params: Any, batch: int, tokens: int) -> Program:
    def read(params: Any, prompt: jax.Array) -> tuple[jax.Array, LMState]:
        hidden, state = model.apply(params, prompt, method="hidden_states")
        return model.apply(params, hidden[:, -1], method="logits"), state

    prompt = jnp.asarray(_tokens((batch, tokens), model.config.vocab_size))
    program = jax.jit(read).lower(params, prompt).compile()

    def run() -> None:
        jax.block_until_ready(program(params, prompt))

    return Program(run, batch * tokens, _planned_mb(program))


def _decoding(model: Any, params: Any, batch: int, context: int) -> Program:
    def generate(params: Any, token: jax.Array, state: LMState) -> tuple[jax.Array, LMState]:
        def step(params: Any, carry: tuple[jax.Array, LMState]) -> tuple[jax.Array, LMState]:
            logits, state = model.apply(params, carry[0][:, None], carry[1])
            return jnp.argmax(logits[:, 0], axis=-1).astype(jnp.int32), state

        cast = cast_once(lambda params: step(params, (token, state)), params)
        return jax.lax.fori_loop(0, DECODED, lambda _, carry: step(cast, carry), (token, state))

    prompt = jnp.asarray(_tokens((batch, min(_PREFIX, context)), model.config.vocab_size))
    token, state = prompt[:, -1], state_at(model, params, prompt, context)
    jitted = jax.jit(generate, donate_argnums=2)
    program = jitted.lower(params, token, state).compile()

    def run() -> None:
        nonlocal token, state
        token, state = jax.block_until_ready(program(params, token, state))

    return Program(run, batch * DECODED, _planned_mb(program))


def _tokens(shape: Sequence[int], vocab_size: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, vocab_size, tuple(shape), np.int32)


def _planned_mb(program: Any) -> float:
    plan = program.memory_analysis()
    held = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes
    return (held - plan.alias_size_in_bytes) / 1e6


def _count(config: ModelConfig) -> int:
    model = LanguageModel(config)
    tokens = jnp.zeros((1, 2), jnp.int32)
    shapes = jax.eval_shape(lambda: model.init(jax.random.key(0), tokens))
    return parameter_counts(shapes["params"])["total"]
