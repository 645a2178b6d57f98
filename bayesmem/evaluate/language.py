"""Evaluation of a run on text: tasks by name, a file of results for each."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from bayesmem.data.items import find_data
from bayesmem.data.needles import NEEDLE_TASKS
from bayesmem.data.tokenizers import load_tokenizer
from bayesmem.evaluate.answer_tasks import NEEDLE_COUNT, needle_task, recall_task
from bayesmem.evaluate.choice_tasks import choice_task, last_word_task
from bayesmem.evaluate.item_store import EVALUATIONS, evaluate_items
from bayesmem.evaluate.scorer import Scorer
from bayesmem.evaluate.subject import Subject, Task
from bayesmem.evaluate.task_names import AMONG_OTHERS, FILES, LAST_WORD, RECALL, TEXTS, TaskName
from bayesmem.evaluate.text_tasks import text_task
from bayesmem.models.state_file import describe_model
from bayesmem.train.checkpoint import restore_params
from bayesmem.train.parts import build_model
from bayesmem.train.settings import MeshSettings
from bayesmem.train.sharding import make_mesh
from bayesmem.train.step import abstract_params
from bayesmem.train.workdir import CHECKPOINTS, read_run

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class LanguageOptions:
    """How tasks are run.

    Attributes:
      data_dir: folder of all data, "" for none: then every task needs a file of its own.
      limit: first items of each task; None for all (of needle tasks, `NEEDLE_COUNT`).
      batch_size: rows a batch.
      chunk: most tokens a row that are read at once, 32 times a power of two.
      seed: of the needles.

    Raises:
      ValueError: limit is below 1.
    """

    data_dir: str = ""
    limit: int | None = None
    batch_size: int = 8
    chunk: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks the limit; the scorer checks its sizes."""
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit: found {self.limit}, wanted None or at least 1")


def evaluate_language(
    workdir: Path, names: Sequence[TaskName], options: LanguageOptions
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Evaluates the newest usable checkpoint of a run on text.

    All files are looked for and read before the first task is run.

    Args:
      workdir: directory of a training run.
      names: from `parse_tasks`, without "test".
      options: how they are run.

    Yields:
      Path and content of WORKDIR/evaluations/TASK.json for each task, see `evaluate_items`.

    Raises:
      FileNotFoundError: the directory holds no run, or the run no usable checkpoint.
      ValueError: the run is not one on text, or a task's file or option does not fit.
    """
    files = [_file(name, options) for name in names]
    step, subject = load_subject(workdir, options.batch_size, options.chunk)
    config = read_run(workdir)
    names = [_with_length(name, config) for name in names]
    tasks = [_task(subject, *pair, options) for pair in zip(names, files, strict=True)]
    scorer = subject.scorer
    parameters = describe_model(scorer.model, scorer.params)["parameters"]
    for name, file, task in zip(names, files, tasks, strict=True):
        identity = {
            "task": name.file_name,
            "step": step,
            "parameters": parameters,
            "options": task.options,
            "tokenizer": subject.tokenizer.fingerprint,
            "file": None if file is None else _digest(file),
        }
        count = task.size if options.limit is None else min(options.limit, task.size)
        folder = workdir / EVALUATIONS
        found = evaluate_items(folder, identity, count, task.run, task.summarise)
        yield folder / f"{name.file_name}.json", found


def load_subject(workdir: Path, batch_size: int = 8, chunk: int = 512) -> tuple[int, Subject]:
    """Restores the newest usable checkpoint of a run on text.

    Args:
      workdir: directory of a training run.
      batch_size: rows a batch.
      chunk: most tokens a row that are read at once.

    Returns:
      The step, and the model with its tokenizer.

    Raises:
      FileNotFoundError: the directory holds no run, or the run no usable checkpoint.
      ValueError: the run is not one on text, or is read by several processes; a size does not fit.
    """
    if jax.process_count() > 1:
        raise ValueError(
            f"found {jax.process_count()} processes; wanted one for evaluation by items"
        )
    config = read_run(workdir)
    if config["data"]["task"] != "text":
        raise ValueError(
            f"workdir: found a run of data.task = {config['data']['task']!r}; wanted one on text"
        )
    model, mesh = build_model(config), make_mesh(MeshSettings())
    tokenizer = load_tokenizer(config["data"].get("tokenizer", "bytes"))
    if tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"model.vocab_size: found {model.config.vocab_size}, wanted at least the "
            f"{tokenizer.vocab_size} ids of the tokenizer {tokenizer.name}"
        )
    step, params = restore_params(workdir / CHECKPOINTS, abstract_params(model, mesh))
    return step, Subject(Scorer(model, params, mesh, batch_size, chunk), tokenizer)


def _file(name: TaskName, options: LanguageOptions) -> Path | None:
    """The file of a task, None for a haystack that needs none."""
    if name.task in NEEDLE_TASKS and NEEDLE_TASKS[name.task].filler != "essay":
        return None
    return find_data(options.data_dir, FILES[name.task], name.path)


def _with_length(name: TaskName, config: dict[str, Any]) -> TaskName:
    """What is filled up to a length has one: the run's own where no other is given."""
    if name.length is not None or name.task not in {*NEEDLE_TASKS, *AMONG_OTHERS}:
        return name
    return name._replace(length=config["data"]["seq_len"])


def _task(subject: Subject, name: TaskName, file: Path | None, options: LanguageOptions) -> Task:
    if name.task in NEEDLE_TASKS:
        assert name.length is not None
        return needle_task(
            subject,
            name.task,
            length=name.length,
            essay="" if file is None else str(file),
            count=NEEDLE_COUNT if options.limit is None else options.limit,
            seed=options.seed,
        )
    assert file is not None
    if name.task in TEXTS:
        return text_task(subject, file, length=name.length)
    if name.task in RECALL:
        return recall_task(subject, file, length=name.length)
    if name.task in AMONG_OTHERS:
        return recall_task(subject, file, length=name.length, among_others=True, seed=options.seed)
    if name.task in LAST_WORD:
        return last_word_task(subject, file)
    return choice_task(subject, file)


def _digest(path: Path) -> str:
    """A hash of what a file, or every file of a folder, holds."""
    found = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()
