"""What a run tells while it runs: metrics.jsonl, TensorBoard, Weights & Biases, progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from tensorboardX import SummaryWriter
from tqdm import tqdm

from bayesmem.train.records import append_row, start_metrics

TENSORBOARD = "tensorboard"


class Report:
    """Writers of one run, opened at the step it starts or continues from.

    Only the first process writes; on the others every method does nothing.
    """

    def __init__(
        self, workdir: Path, start: int, steps: int, *, wandb_project: str = "", config: Any = None
    ) -> None:
        """Opens the writers.

        Args:
          workdir: the run's directory.
          start: steps already done.
          steps: steps of the whole run.
          wandb_project: Weights & Biases project; "": off.
          config: the config shown there.

        Raises:
          ImportError: a project is given and `wandb` is not installed.
        """
        self._active = jax.process_index() == 0
        self._tokens, self._since, self._warm = 0, time.monotonic(), False
        if not self._active:
            return
        self._wandb = _start_wandb(wandb_project, workdir, config)
        self._path = start_metrics(workdir, start)
        # Hides what an earlier process wrote after the step this one continues from.
        self._board = SummaryWriter(str(workdir / TENSORBOARD), purge_step=start + 1)
        # In a log file a line every few seconds would bury everything else.
        interval = 0.2 if sys.stderr.isatty() else 30.0
        self._bar = tqdm(
            total=steps, initial=start, unit="step", mininterval=interval, maxinterval=interval
        )

    def stepped(self, tokens: int) -> None:
        """Counts a step and the tokens it read."""
        self._tokens += tokens
        if not self._warm:
            # The first step includes compilation: its time and tokens are left out.
            self._tokens, self._since, self._warm = 0, time.monotonic(), True
        if self._active:
            self._bar.update()

    def train_row(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        """Writes the training metrics of a step, with the throughput since the last row."""
        if not self._active:
            return
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        values |= {name: int(values[name]) for name in ("tokens", "skipped")}
        seconds = max(time.monotonic() - self._since, 1e-9)
        values["tokens_per_second"] = self._tokens / seconds
        self._tokens, self._since = 0, time.monotonic()
        self._write(step, "train", values)
        self._bar.set_postfix(
            {"loss": f"{values['loss']:.4f}", "tok/s": f"{values['tokens_per_second']:.0f}"},
            refresh=False,
        )

    def eval_row(self, step: int, values: Mapping[str, float]) -> None:
        """Writes the metrics of an evaluation on the validation split."""
        if self._active:
            self._write(step, "valid", values)

    @contextmanager
    def off_the_clock(self) -> Iterator[None]:
        """Keeps the time spent inside out of the throughput."""
        begin = time.monotonic()
        yield
        self._since += time.monotonic() - begin

    def __enter__(self) -> Report:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Flushes and closes the writers."""
        if self._active:
            self._bar.close()
            self._board.close()
            if self._wandb is not None:
                self._wandb.finish()

    def _write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        append_row(self._path, {"step": step, "split": split, **values})
        for name, value in values.items():
            self._board.add_scalar(f"{split}/{name}", value, step)
        if self._wandb is not None:
            self._wandb.log({f"{split}/{name}": value for name, value in values.items()}, step=step)


def _start_wandb(project: str, workdir: Path, config: Any) -> Any:
    """Starts a Weights & Biases run, or returns None if no project is given."""
    if not project:
        return None
    try:
        import wandb
    except ImportError as error:
        raise ImportError(
            f"config train.wandb_project: found {project!r} without the package wandb; "
            "install it with `pip install wandb`, or leave the project empty"
        ) from error
    return wandb.init(
        project=project, dir=str(workdir), config=config, name=workdir.name, resume="allow"
    )
