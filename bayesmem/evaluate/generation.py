"""Text that the newest checkpoint of a run writes, token by token, and its state in a file."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from bayesmem.data.text_stream import TextStream
from bayesmem.data.tokenizers import Tokenizer, load_tokenizer
from bayesmem.models.generate import BLOCK, Generation, decode, extend, start
from bayesmem.models.language_model import LanguageModel
from bayesmem.models.sampling import Sampling, row_keys
from bayesmem.models.state_file import describe_model, load_generation, save_generation
from bayesmem.train.checkpoint import restore_params
from bayesmem.train.parts import build_model
from bayesmem.train.settings import MeshSettings
from bayesmem.train.sharding import make_mesh
from bayesmem.train.step import abstract_params
from bayesmem.train.workdir import CHECKPOINTS, read_run


@dataclasses.dataclass(frozen=True)
class Request:
    """What is to be written.

    Attributes:
      prompt: text that is continued; with a state, text that follows what the state has read. None
        for no text: then a new document begins, or the state's goes on.
      max_new_tokens: most tokens to write.
      sampling: how tokens are chosen; its vocab_size is the tokenizer's.
      seed: of the draws; None: 0, or with a state the draws go on from where they were.
      stops: texts before which writing ends.
      state: file to go on from, or None.
      save_state: file for the state afterwards, or None. It may be that of `state`.
      max_length: capacity of attention's caches in tokens; None: the run's.
    """

    prompt: bytes | None = None
    max_new_tokens: int = 200
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    seed: int | None = None
    stops: tuple[str, ...] = ()
    state: Path | None = None
    save_state: Path | None = None
    max_length: int | None = None


class Written(NamedTuple):
    """What was done, for the user."""

    step: int  # of the checkpoint
    tokens: int  # drawn; behind a stop text too, if no state is kept
    seconds: float  # compilation included
    ended_by: str  # "document end", "stop text" or "max_new_tokens"


class _Writer(NamedTuple):
    """A restored run."""

    model: LanguageModel
    params: Any
    step: int
    tokenizer: Tokenizer
    made_by: dict[str, Any]


def write_text(workdir: Path, request: Request, write: Callable[[str], None]) -> Written:
    """Continues a text with the newest usable checkpoint of a run.

    A document starts with the tokenizer's mark, and writing ends where the model ends it. If the
    state is saved, the bytes of a last character that is not whole, and the beginning of what may
    become a stop text, are left to the text that continues it: the parts together are what one run
    would have given.

    Args:
      workdir: directory of a training run on text.
      request: what to write.
      write: is given the text, piece by piece.

    Returns:
      Counts and times.

    Raises:
      FileNotFoundError: there is no run, no usable checkpoint, or no state file.
      FileExistsError: the file of `save_state` is there and is not the one of `state`.
      ValueError: the run is not one on text, the state is of another model or at the end of its
        document, or a value of the request does not fit; all before anything is written.
    """
    if request.save_state not in (None, request.state) and request.save_state.exists():
        raise FileExistsError(
            f"save_state: {request.save_state} exists already, and stays as it is"
        )
    writer = _restore(workdir, request.max_length)
    generation, stream = _begin(writer, request, write)
    size = min(writer.tokenizer.vocab_size, writer.model.config.vocab_size)
    begun, end = time.perf_counter(), writer.tokenizer.document_end

    def on_tokens(block: list[np.ndarray]) -> bool:
        write(stream.push(block[0]))
        return stream.stopped

    (tokens,), generation = decode(
        writer.model,
        writer.params,
        generation,
        max_new_tokens=request.max_new_tokens,
        sampling=dataclasses.replace(request.sampling, vocab_size=size),
        stop_tokens=[end],
        # A stop text is found here, not by the loop; a state that is kept must not be behind it.
        block_size=1 if request.stops and request.save_state else BLOCK,
        on_tokens=on_tokens,
    )
    seconds, ended = time.perf_counter() - begun, tokens[-1] == end
    if ended or request.save_state is None:
        write(stream.finish())
    if request.save_state is not None:
        notes = {"context": stream.context, "printed": stream.printed}
        save_generation(request.save_state, generation, writer.made_by, notes)
    ended_by = "document end" if ended else "stop text" if stream.stopped else "max_new_tokens"
    return Written(writer.step, len(tokens), seconds, ended_by)


def _restore(workdir: Path, max_length: int | None) -> _Writer:
    """The newest usable checkpoint of a run on text."""
    config = read_run(workdir)
    if config["data"].get("task") != "text":
        raise ValueError(
            f"workdir: found a run with data.task = {config['data'].get('task')!r} in {workdir}, "
            f"wanted one on 'text'"
        )
    tokenizer = load_tokenizer(config["data"].get("tokenizer", ""))
    model = build_model(config)
    if max_length is not None:
        model = LanguageModel(dataclasses.replace(model.config, max_length=max_length))
    target = abstract_params(model, make_mesh(MeshSettings()))
    step, params = restore_params(workdir / CHECKPOINTS, target)
    made_by = {"step": step, "tokenizer": tokenizer.fingerprint, **describe_model(model, params)}
    return _Writer(model, params, step, tokenizer, made_by)


def _begin(
    writer: _Writer, request: Request, write: Callable[[str], None]
) -> tuple[Generation, TextStream]:
    """The rows that stand at the end of the prompt, and the stream of the text behind it."""
    model, params, _, tokenizer, made_by = writer
    prompt, end = tokenizer.encode(request.prompt or b""), tokenizer.document_end
    budget = {"max_new_tokens": request.max_new_tokens}
    keys = None if request.seed is None else row_keys(request.seed, 1)
    fresh = np.append(end, prompt)
    stream = TextStream(tokenizer, fresh, stops=request.stops)
    if request.state is None:
        keys = row_keys(0, 1) if keys is None else keys
        return start(model, params, [fresh], keys, **budget), stream
    generation, notes = load_generation(request.state, model, made_by)
    if len(generation.token) != 1:
        raise ValueError(f"state: found {len(generation.token)} rows in {request.state}, wanted 1")
    if keys is not None:
        generation = generation._replace(keys=keys, drawn=jnp.zeros(1, jnp.int32))
    ended = int(generation.token[0]) == end
    if ended and not len(prompt):
        raise ValueError(
            f"state: the document of {request.state} has ended, wanted a prompt to start another"
        )
    before = TextStream(tokenizer, notes["context"], notes["printed"], request.stops)
    if ended:
        new = start(model, params, [fresh], generation.keys, **budget)
        return new._replace(drawn=generation.drawn), stream
    generation = extend(model, params, generation, [prompt], **budget)
    if not len(prompt):
        return generation, before
    # A prompt decides what was held back.
    write(before.finish())
    return generation, TextStream(tokenizer, [*before.context, *prompt], stops=request.stops)
