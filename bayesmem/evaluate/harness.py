"""A run as a model of EleutherAI's lm-evaluation-harness: `pip install -e '.[harness]'`.

    import lm_eval
    from bayesmem.evaluate.harness import HarnessModel
    from bayesmem.evaluate.language import load_subject

    _, subject = load_subject(workdir)
    lm_eval.simple_evaluate(HarnessModel(subject), tasks=["hellaswag"])

Nothing else of this package imports this module, so that all of it works without the harness.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

try:
    import lm_eval
    import lm_eval.api.model
    import lm_eval.tasks
except ImportError as error:
    raise ImportError(
        f"lm_eval: cannot be imported ({error}); wanted `pip install -e '.[harness]'`"
    ) from error

from bayesmem.evaluate.continuations import continuation_row, text_rows
from bayesmem.evaluate.scorer import Row
from bayesmem.evaluate.subject import Prompt, Subject, write_answers
from bayesmem.evaluate.text_tasks import text_window

MAX_NEW_TOKENS = 256
"""Most tokens written where a task does not say."""


class HarnessModel(lm_eval.api.model.LM):
    """The three requests of the harness, answered by the scorer and greedy generation.

    Each text is read after a document's start, as the model was trained; the harness's own
    models read a context without one.
    """

    def __init__(self, subject: Subject, window: int | None = None) -> None:
        """Takes a model.

        Args:
          subject: from `bayesmem.evaluate.language.load_subject`.
          window: tokens after which a rolling likelihood starts from a fresh state; None to carry
            the state through a text, or for attention the model's `max_length`.
        """
        super().__init__()
        self.subject = subject
        self.window = text_window(subject.scorer.model.config, window)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Log-probability (nats) and greediness of each request's (context, continuation)."""
        tokenizer = self.subject.tokenizer
        rows = [continuation_row(tokenizer, *request.args) for request in requests]
        scored = self._scores(rows)
        return [(scored[i].log_prob, scored[i].is_greedy) for i in range(len(rows))]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Log-probability (nats) of each request's whole (text,); 0 of an empty one."""
        tokenizer = self.subject.tokenizer
        parts = [
            text_rows(tokenizer.encode(request.args[0]), tokenizer.document_end, self.window)
            for request in requests
        ]
        scored = self._scores([row for rows in parts for row in rows])
        totals, at = [], 0
        for rows in parts:
            totals.append(sum(scored[at + i].log_prob for i in range(len(rows))))
            at += len(rows)
        return totals

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """What is written greedily after each request's (context, options), before its ends.

        Raises:
          NotImplementedError: a request asks for sampling.
        """
        prompts = [_prompt(*request.args) for request in requests]
        written = dict(write_answers(self.subject, prompts))
        return [written[i] for i in range(len(prompts))]

    def _scores(self, rows: Sequence[Row]) -> dict[int, Any]:
        return dict(self.subject.scorer.score(rows))


def evaluate_harness(
    subject: Subject,
    tasks: Sequence[str],
    *,
    include_path: str | None = None,
    limit: int | None = None,
    num_fewshot: int | None = None,
) -> dict[str, Any]:
    """Runs tasks of the harness.

    Args:
      subject: from `bayesmem.evaluate.language.load_subject`.
      tasks: names of the harness's tasks.
      include_path: folder of more tasks; None for the harness's own.
      limit: first items of each task; None for all.
      num_fewshot: examples in a prompt; None for the task's number.

    Returns:
      JSON values: `results`, from a task to its measures; `limit`, `num_fewshot`, and `lm_eval`,
      the harness's version.
    """
    # Its bootstrap would fork this process, and a fork of JAX's threads may never end.
    os.environ.setdefault("DISABLE_MULTIPROC", "1")
    found = lm_eval.simple_evaluate(
        HarnessModel(subject),
        tasks=list(tasks),
        num_fewshot=num_fewshot,
        limit=limit,
        task_manager=lm_eval.tasks.TaskManager(include_path=include_path),
    )
    result = {
        "lm_eval": version("lm_eval"),
        "limit": limit,
        "num_fewshot": num_fewshot,
        "results": found["results"],
    }
    return json.loads(json.dumps(result, default=str))  # of NumPy's numbers


def _prompt(context: str, options: dict[str, Any]) -> Prompt:
    """A prompt from the harness's options of a generation."""
    if options.get("do_sample") and options.get("temperature", 1.0) > 0:
        raise NotImplementedError(
            f"generate_until: found {options}, wanted greedy generation: do_sample false"
        )
    until: str | Iterable[str] = options.get("until") or ()
    ends = (until,) if isinstance(until, str) else tuple(until)
    limit = options.get("max_gen_toks", options.get("max_tokens", MAX_NEW_TOKENS))
    return Prompt(context, int(limit), ends)
