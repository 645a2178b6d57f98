"""Writes text with a trained model: `python -m launch.generate --workdir=DIR --prompt=...`.

Restores DIR/config.json and the newest usable checkpoint, and prints the text as it comes. Without
a prompt a new document begins. `--save_state=FILE` keeps the state, and `--state=FILE` goes on from
one, after a further prompt or without; the texts together are what one run would have printed.
"""

import os
import sys
from pathlib import Path

from absl import app, flags
from absl import logging as absl_logging

from bayesmem.evaluate.generation import Request, write_text
from bayesmem.models.sampling import Sampling
from launch.errors import short_errors

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
_PROMPT = flags.DEFINE_string("prompt", None, "Text to continue; not printed again.")
_PROMPT_FILE = flags.DEFINE_string("prompt_file", None, "File with the text to continue.")
_MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 200, "Most tokens to write.")
_TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "Divisor of the logits; 0: greedy.")
_TOP_K = flags.DEFINE_integer("top_k", None, "Draw from the most probable tokens only, so many.")
_TOP_P = flags.DEFINE_float("top_p", 1.0, "Draw from the most probable tokens of this mass only.")
_SEED = flags.DEFINE_integer("seed", None, "Of the draws; 0, or the state's, if not given.")
_STOP = flags.DEFINE_multi_string("stop", [], "Text before which to end; may be given again.")
_STATE = flags.DEFINE_string("state", None, "File of a state to go on from.")
_SAVE_STATE = flags.DEFINE_string("save_state", None, "File to keep the state in.")
_MAX_LENGTH = flags.DEFINE_integer(
    "max_length", None, "Tokens that attention's caches hold, if not as in the run."
)


def main(argv: list[str]) -> None:
    """Writes the text to stdout, and what was done to stderr."""
    if len(argv) > 1:
        raise app.UsageError(f"found arguments {argv[1:]}, wanted flags only")
    if _PROMPT.value is not None and _PROMPT_FILE.value is not None:
        raise ValueError("--prompt, --prompt_file: found both, wanted at most one of the two")
    absl_logging.set_verbosity(absl_logging.WARNING)
    prompt = None if _PROMPT.value is None else os.fsencode(_PROMPT.value)
    if _PROMPT_FILE.value is not None:
        prompt = Path(_PROMPT_FILE.value).read_bytes()
    request = Request(
        prompt=prompt,
        max_new_tokens=_MAX_NEW_TOKENS.value,
        sampling=Sampling(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value),
        seed=_SEED.value,
        stops=tuple(_STOP.value),
        state=Path(_STATE.value) if _STATE.value else None,
        save_state=Path(_SAVE_STATE.value) if _SAVE_STATE.value else None,
        max_length=_MAX_LENGTH.value,
    )
    # As the bytes of the text, whatever the terminal is said to read, and without changed newlines.
    sys.stdout.reconfigure(encoding="utf-8", errors="replace", newline="")
    try:
        done = write_text(Path(_WORKDIR.value), request, lambda x: print(x, end="", flush=True))
    except KeyboardInterrupt:  # enough has been read
        sys.exit(130)
    if sys.stdout.isatty():
        print()
    rate = done.tokens / done.seconds
    print(
        f"step {done.step}: {done.tokens} tokens in {done.seconds:.1f} s, {rate:.0f} a second with "
        f"compilation; ended by {done.ended_by}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    with short_errors():
        app.run(main)
