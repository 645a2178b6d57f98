"""Parameters cast once, before a loop whose every step would cast them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.extend import core

_SAME_ARGUMENTS = frozenset(
    "jit pjit scan checkpoint remat remat2 closed_call custom_jvp_call custom_vjp_call".split()
)
"""Primitives, in several versions of JAX, whose arguments are one by one those of the program that
they hold."""
_PROGRAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""What a primitive calls it."""


def cast_once(step: Callable[[Any], Any], params: Any) -> Any:
    """Casts the parameters that a step does nothing with but cast, all to the same dtype.

    A model of bfloat16 keeps float32 parameters. In a loop that reads one token a step, reading
    and casting them takes most of the time. A step gets the same numbers from what is returned. On
    a CPU nothing is cast: XLA has no products of bfloat16 there and would cast back in every step.

    Args:
      step: a function of the parameters; it is traced, not run.
      params: pytree of arrays.

    Returns:
      The same tree; what a step reads in another way, or in two dtypes, is as it was.
    """
    if jax.default_backend() == "cpu":
        return params
    dtypes = dtypes_read(step, params)
    return jax.tree.map(
        lambda x, read: x.astype(*read) if len(read) == 1 and None not in read else x,
        params,
        dtypes,
    )


def dtypes_read(step: Callable[[Any], Any], params: Any) -> Any:
    """Returns for every leaf the tuple of dtypes that it is cast to; None is any other use."""
    traced: Any = jax.make_jaxpr(step)(params)
    found: list[set[Any]] = [set() for _ in traced.jaxpr.invars]
    _add_uses(traced.jaxpr, dict(zip(traced.jaxpr.invars, found, strict=True)))
    return jax.tree.unflatten(jax.tree.structure(params), [tuple(dtypes) for dtypes in found])


def _add_uses(program: Any, variables: Mapping[Any, set[Any]]) -> None:
    """Adds to the set of each variable what the program does with it."""
    for out in program.outvars:
        if not isinstance(out, core.Literal) and out in variables:
            variables[out].add(None)
    for equation in program.eqns:
        given = [None if isinstance(x, core.Literal) else variables.get(x) for x in equation.invars]
        if not any(found is not None for found in given):
            continue
        name = equation.primitive.name
        if name in _SAME_ARGUMENTS:
            inner: Any = next(equation.params[k] for k in _PROGRAMS if k in equation.params)
            inner = getattr(inner, "jaxpr", inner)
            own = zip(inner.invars, given, strict=True)
            _add_uses(inner, {x: found for x, found in own if found is not None})
            continue
        use = equation.params["new_dtype"] if name == "convert_element_type" else None
        for found in given:
            if found is not None:
                found.add(use)
