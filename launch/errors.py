"""Errors that a user can act on, without the traceback."""

import linecache
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

_OUR_PACKAGES = ("bayesmem", "launch", "configs")


@contextmanager
def short_errors() -> Iterator[None]:
    """Turns such an error into one line and exit status 1; every other error passes unchanged.

    Short are errors of the operating system (no such file, no space), a missing package, a config
    key that does not exist, and a ValueError or NotImplementedError that this project itself
    raises. One from inside a library keeps its traceback: it is a bug, not a message.
    """
    try:
        yield
    except (OSError, ImportError) as error:
        sys.exit(f"error: {error}")
    except (ValueError, NotImplementedError, AttributeError, KeyError) as error:
        if not _is_message(error):
            raise
        sys.exit(f"error: {_text(error)}")


def _text(error: Exception) -> str:
    """The message; of a config's missing key, the innermost one, which is not quoted twice."""
    if not isinstance(error, AttributeError | KeyError):
        return str(error)
    if getattr(error, "name", None) == "get_config":
        return "--config: this file has no get_config, so it is no config by itself"
    message: object = error
    while isinstance(message, Exception) and message.args:
        message = message.args[0]
    return f"no such config key: {message}"


def _is_message(error: Exception) -> bool:
    """Says whether a `raise` of ours made it, or the config that holds the user's key."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    module = frame.f_globals.get("__name__", "")
    if module == "__main__" and (spec := frame.f_globals.get("__spec__")) is not None:
        module = spec.name  # of a script run by `python -m`
    if isinstance(error, AttributeError | KeyError):
        if getattr(error, "name", None) == "get_config":
            return True  # a file of configs/ that is no config
        return module == "ml_collections.config_dict.config_dict"
    # Built-in functions have no frame: what they raise seems to come from our line.
    raised = linecache.getline(frame.f_code.co_filename, line).lstrip().startswith("raise ")
    return raised and module.split(".")[0] in _OUR_PACKAGES
