"""The only place where an implementation of an op is chosen.

"auto" tries the op's forms in the order the op prefers and passes over a form only where it raises
NotImplementedError; a form that is asked for by name is run or raises, and never replaced.
"""

import functools
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

logger = logging.getLogger("bayesmem")

Form = Callable[..., Any]

KERNELS = ("pallas", "triton")
"""Forms that run kernels, which may take options that the others have no use for."""


def run(
    op: str, implementation: str, forms: Mapping[str, Form], preferred: Sequence[str], *arguments
) -> Any:
    """Runs one form of an op.

    Args:
      op: name of the op, for messages.
      implementation: "auto" or a key of `forms`.
      forms: the op's forms by name, all of the same signature.
      preferred: the order in which "auto" tries them.
      *arguments: passed to the form.

    Raises:
      ValueError: `implementation` is not "auto" and not one of `forms`.
      NotImplementedError: the named form cannot run here; names what would.
    """
    require_known(op, implementation, forms)
    if implementation == "auto":
        passed_over = []
        for name in preferred:
            try:
                result = forms[name](*arguments)
            except NotImplementedError as error:
                passed_over.append(f"{name} ({error})")
                continue
            if passed_over:
                _log_once(f"{op}: runs as {name!r}; passed over: {'; '.join(passed_over)}")
            return result
        raise NotImplementedError(f"{op}: none of {', '.join(preferred)} can run here")
    try:
        return forms[implementation](*arguments)
    except NotImplementedError as error:
        others = [repr(name) for name in forms if name not in (implementation, *KERNELS)]
        raise NotImplementedError(
            f"{op}: implementation={implementation!r} was asked for, but {error}; "
            f"'auto' or {', '.join(others)} would work here"
        ) from error


def require_known(op: str, implementation: str, forms: Mapping[str, Form]) -> None:
    """Raises ValueError unless `implementation` is "auto" or one of `forms`."""
    if implementation != "auto" and implementation not in forms:
        raise ValueError(
            f"implementation: found {implementation!r}, wanted 'auto' or one of "
            f"{', '.join(map(repr, forms))} for {op}"
        )


def kernel(folder: str, backend: str) -> Form:
    """Returns a form that runs `kernels_pallas/<folder>` on a GPU, imported on its first call.

    The form raises NotImplementedError where the process has no GPU or the package no such kernel.
    It passes options on: what a kernel wants to know beyond the arrays that all forms take.
    """

    def form(*arguments, **options):
        found = jax.default_backend()
        if found != "gpu":
            raise NotImplementedError(
                f"the {backend} kernel needs a GPU and the JAX backend found is {found!r}"
            )
        try:
            module = importlib.import_module(f"kernels_pallas.{folder}.op")
        except ImportError as error:
            raise NotImplementedError(f"there is no {backend} kernel for it ({error})") from error
        return module.run(backend, *arguments, **options)

    return form


def tell_kernels(forms: Mapping[str, Form], **options: Any) -> dict[str, Form]:
    """Returns `forms` with `options` bound to those that run kernels."""
    kernels = {n: functools.partial(forms[n], **options) for n in KERNELS if n in forms}
    return {**forms, **kernels}


@functools.cache
def _log_once(message: str) -> None:
    logger.info(message)
