"""What `bayesmem.evaluate.speed` is asked to time."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bayesmem.evaluate import peers
from bayesmem.evaluate.speed_inputs import OPS
from kernels_pallas.shapes import SUITES

MODES = ("fwd", "fwd+bwd")

STEP = "step"
"""Mode of shapes of one token: the state goes in and out and is donated, as in decoding."""


class Options(NamedTuple):
    """What is timed, beyond the shapes.

    Attributes:
      repeats: timed calls of each; the median and the quartiles are reported. Before each, one call
        is not timed, so that no form pays for what the one before it left in memory.
      chunk_size: tokens in a chunk of the chunk forms, or None for those of `CHUNK_SIZES`.
      ops: names of the ops to time; none for all.
      forms: names of our forms to time; none for all.
      dims: D of the shapes to time; none for all. The slot memory has no D: it is left out then.
      modes: "fwd", "fwd+bwd" and, of the slot memory, "step"; none for all.
      dtype: of q, k and v, "bfloat16" or "float32"; None for the suite's. Gates are float32.
      peers: other libraries to time on the same inputs, of `bayesmem.evaluate.peers.PEERS`.
      gradient_errors: compare gradients too, with those of the float64 token recurrence: costly.
    """

    repeats: int = 20
    chunk_size: int | None = None
    ops: Sequence[str] = ()
    forms: Sequence[str] = ()
    dims: Sequence[int] = ()
    modes: Sequence[str] = ()
    dtype: str | None = None
    peers: Sequence[str] = ()
    gradient_errors: bool = False


def check_options(suite: str, options: Options) -> None:
    """Raises ValueError for an unknown suite or what cannot be timed; see `bench_ops`."""
    if suite not in SUITES:
        raise ValueError(f"suite: found {suite!r}, wanted one of {', '.join(map(repr, SUITES))}")
    if options.repeats < 1:
        raise ValueError(f"repeats: found {options.repeats}, wanted at least 1")
    if options.chunk_size is not None and options.chunk_size < 1:
        raise ValueError(f"chunk_size: found {options.chunk_size}, wanted at least 1")
    if options.dtype not in (None, "bfloat16", "float32"):
        raise ValueError(f"dtype: found {options.dtype!r}, wanted 'bfloat16' or 'float32'")
    known = sorted({shape.D for shape in SUITES[suite]})
    for dim in options.dims:
        if dim not in known:
            some = f"some of {', '.join(map(str, known))}"
            wanted = some if known else f"none, for no shape of suite {suite!r} has a D"
            raise ValueError(f"dims: found {dim}, wanted {wanted}")
    _require_some("modes", options.modes, (*MODES, STEP))
    _require_some("peers", options.peers, peers.PEERS)
    _require_some("ops", options.ops, all_ops(options))
    _require_some("forms", options.forms, {form for _, of_op in OPS.values() for form in of_op})


def all_ops(options: Options) -> list[str]:
    """Returns all ops that can be timed: ours, and those that only a peer has."""
    return [*OPS, *peers.other_ops(options.peers, OPS)]


def _require_some(what: str, found: Sequence[str], wanted: Iterable[str]) -> None:
    unknown = [name for name in found if name not in wanted]
    if unknown:
        raise ValueError(
            f"{what}: found {unknown[0]!r}, wanted some of {', '.join(sorted(wanted))}"
        )
