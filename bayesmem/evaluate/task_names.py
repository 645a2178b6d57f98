"""Names of evaluation tasks, and how `NAME@LENGTH:FILE` is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bayesmem.data.needles import NEEDLE_TASKS

TEST = "test"
"""The measure of the run's own task on its test split."""
ESSAY = "haystack/federalist.txt"
TEXTS = {"ppl": "lm/wikitext2/test.txt"}
RECALL = {
    "squad": "recall/squad2_dev_cs224n.jsonl",
    "nq": "recall/nq_open_oracle.jsonl",
    "nq_closed": "recall/nq_open_dev_closedbook.jsonl",
}
AMONG_OTHERS = {"squad_long": RECALL["squad"], "nq_long": RECALL["nq"]}
"""Questions whose passage stands among others, up to a length."""
LAST_WORD = {"lambada": "zeroshot/lambada_openai_test.jsonl"}
CHOICES = {
    "hellaswag": "zeroshot/hellaswag_val.jsonl",
    "piqa": "zeroshot/piqa_val.jsonl",
    "winogrande": "zeroshot/winogrande_dev.jsonl",
    "arc_easy": "zeroshot/arc_easy_test.jsonl",
    "arc_challenge": "zeroshot/arc_challenge_test.jsonl",
    "openbookqa": "zeroshot/openbookqa_test.jsonl",
}
FILES = TEXTS | RECALL | AMONG_OTHERS | LAST_WORD | CHOICES | dict.fromkeys(NEEDLE_TASKS, ESSAY)
"""Task to its file below the folder of all data."""
GROUPS = {
    "niah": tuple(NEEDLE_TASKS),
    "s_niah": tuple(name for name in NEEDLE_TASKS if "single" in name),
    "recall": tuple(RECALL),
    "zeroshot": (*LAST_WORD, *CHOICES),
}


class TaskName(NamedTuple):
    """One task.

    Attributes:
      task: "test" or a key of `FILES`.
      length: tokens, see the task; None for its default.
      path: the file to use; "" for the one of `FILES`.
    """

    task: str
    length: int | None = None
    path: str = ""

    @property
    def file_name(self) -> str:
        """Name of the result file, without its extension."""
        length = "" if self.length is None else f"@{self.length}"
        # Files of one name in other folders are told apart by the folder.
        parts = Path(self.path).with_suffix("").parts[-2:] if self.path else ()
        words = [re.sub(r"\W+", "-", part).strip("-") for part in parts]
        return "_".join([self.task + length, *filter(None, words)])


def parse_tasks(names: Sequence[str]) -> list[TaskName]:
    """Reads names of tasks or groups, each as NAME, NAME@LENGTH, NAME:FILE or NAME@LENGTH:FILE.

    Args:
      names: at least one.

    Returns:
      The tasks in order, each once.

    Raises:
      ValueError: a name that does not exist (lists those that do), or a part that does not fit.
    """
    found: dict[TaskName, None] = {}
    for name in names:
        match = re.fullmatch(r"(\w+)(?:@([^:]*))?(?::(.+))?", name)
        first = match[1] if match else name
        if match is None or first not in {TEST, *FILES, *GROUPS}:
            raise ValueError(
                f"tasks: found {name!r}, wanted NAME, NAME@LENGTH, NAME:FILE or NAME@LENGTH:FILE "
                f"with a name of {', '.join([TEST, *FILES])}, or a group: {', '.join(GROUPS)}"
            )
        _, length, path = match.groups()
        if length is not None and not (length.isdecimal() and int(length)):
            raise ValueError(f"tasks: found the length {length!r} in {name!r}, wanted tokens >= 1")
        if first == TEST and (length or path):
            raise ValueError(f"tasks: found {name!r}, wanted {TEST!r} without length or file")
        for task in GROUPS.get(first, (first,)):
            choice = task in LAST_WORD | CHOICES
            if choice and length and first == task:
                raise ValueError(f"tasks: found a length in {name!r}, wanted none for {task!r}")
            own = None if length is None or choice else int(length)
            found[TaskName(task, own, path or "")] = None
    return list(found)
