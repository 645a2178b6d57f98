"""The paper's claims about trained memories, and whether the numbers of a sweep bear them out.

Every claim has a rule, which is printed beside the verdict. All rules compare means over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bayesmem.evaluate.sweep_summary import Cell, Stat, Sweep
from bayesmem.train.task_data import MAIN_TEST

SOURCE = "arXiv 2605.31163"
LEARNED = 0.5  # the least accuracy of what can be kept at all
KEPT = 0.05  # the most accuracy that may be lost where the paper says it is kept
BEHIND = 0.20  # the least accuracy behind the Bayesian Layer where the paper says "fails"
ABOUT = 0.05  # the most that "about" may be off
NEAR_PERFECT = 0.99
UPDATE_BAYESIAN, UPDATE_OTHERS = 0.88, 0.60  # printed accuracies

FLOOD = {"floods": [256]}
OVERLAP = {"overlap": [0.85, 0.95]}


class Finding(NamedTuple):
    """What a sweep says of a claim; `holds` is None where it has not run what is needed."""

    ours: str
    holds: bool | None


class Claim(NamedTuple):
    """A claim of the paper.

    Attributes:
      task, variant: of the sweep that it is about.
      figure: of the paper.
      text: the claim.
      printed: number or word of the paper.
      rule: when it counts as reproduced.
      check: applies the rule.
    """

    task: str
    variant: str
    figure: str
    text: str
    printed: str
    rule: str
    check: Callable[[Sweep], Finding]


NOT_RUN = Finding("not run", None)


def verdicts(sweep: Sweep) -> list[tuple[Claim, Finding]]:
    """Returns the claims about a sweep's task and variant, with what it says of them."""
    about = (sweep.task, sweep.variant)
    return [(c, c.check(sweep)) for c in CLAIMS if (c.task, c.variant) == about]


def percent(stat: Stat) -> str:
    """An accuracy with its standard deviation in percent, and how many runs have failed."""
    return number(stat, 100, 1)


def number(stat: Stat, scale: float = 1.0, digits: int = 3) -> str:
    """Mean and sample standard deviation; says so where runs have no finite value."""
    total = stat.finite + stat.failed
    if stat.mean is None:
        return "failed" if total == 1 else f"failed ({total} of {total})"
    text = f"{stat.mean * scale:.{digits}f}"
    if stat.std is not None:
        text += f" ± {stat.std * scale:.{digits}f}"
    return text + (f" ({stat.failed} of {total} failed)" if stat.failed else "")


def _decide(ours: str, stats: Sequence[Stat], rule: Callable[..., bool]) -> Finding:
    """Applies a rule to means; a run without a finite value never bears a claim out."""
    if any(x.failed or x.mean is None for x in stats):
        return Finding(ours, False)
    return Finding(ours, rule(*(x.mean for x in stats)))


def _accuracy(sweep: Sweep, mixer: str, test: str | None, width: int | None = None) -> Stat | None:
    """Accuracy of a mixer at a width (None: the largest); None where it was not run."""
    cell: Cell | None = sweep.cell(mixer, sweep.widths[-1] if width is None else width)
    if cell is None or test not in cell.tests:
        return None
    return cell.tests[test]["accuracy"]


def _test(sweep: Sweep, differs: Mapping[str, Sequence[float]]) -> str | None:
    """Name of the test that differs from training in exactly these keys of the data."""
    tests = sweep.config["tests"]
    return next((name for name in tests if dict(tests[name]) == differs), None)


def _keeps(differs: Mapping[str, Sequence[float]]) -> Callable[[Sweep], Finding]:
    def check(sweep: Sweep) -> Finding:
        before = _accuracy(sweep, "bayesian", MAIN_TEST)
        after = _accuracy(sweep, "bayesian", _test(sweep, differs))
        if before is None or after is None:
            return NOT_RUN
        ours = f"{percent(after)} (trained distribution: {percent(before)})"
        return _decide(ours, (before, after), lambda b, a: b >= LEARNED and a >= b - KEPT)

    return check


def _fails(mixer: str) -> Callable[[Sweep], Finding]:
    def check(sweep: Sweep) -> Finding:
        test = _test(sweep, OVERLAP)
        own, best = _accuracy(sweep, mixer, test), _accuracy(sweep, "bayesian", test)
        if own is None or best is None:
            return NOT_RUN
        ours = f"{percent(own)} (Bayesian Layer: {percent(best)})"
        return _decide(ours, (own, best), lambda o, b: o <= b - BEHIND)

    return check


def _crowding(sweep: Sweep) -> dict[str, list[Stat]]:
    """Query cross-entropy of each mixer at each n / D tested beyond training."""
    names = [place.test for place in sweep.axes[0].places if place.test != MAIN_TEST]
    return {cell.mixer: [cell.tests[name]["loss"] for name in names] for cell in sweep.cells}


def _all_degrade(sweep: Sweep) -> Finding:
    losses = _crowding(sweep)
    every = set(sweep.config["model"]["mixer_options"])
    if set(losses) < every or any(len(found) < 2 for found in losses.values()):
        return NOT_RUN
    ours = "; ".join(f"{m} {number(x[0])} to {number(x[-1])}" for m, x in losses.items())
    ends = [stat for found in losses.values() for stat in (found[0], found[-1])]
    return _decide(ours, ends, lambda *x: all(a < b for a, b in zip(x[::2], x[1::2], strict=True)))


def _slowest(sweep: Sweep) -> Finding:
    losses = _crowding(sweep)
    others = {mixer: found for mixer, found in losses.items() if mixer != "bayesian"}
    if not losses.get("bayesian") or not others:
        return NOT_RUN
    end = {mixer: found[-1] for mixer, found in losses.items()}
    ranked = sorted(end, key=lambda m: (end[m].mean is None, end[m].mean))
    ours = "at the largest n / D: " + ", ".join(f"{m} {number(end[m])}" for m in ranked)
    stats = [stat for found in (losses["bayesian"], *others.values()) for stat in found]
    count = len(losses["bayesian"])
    return _decide(
        ours, stats, lambda *x: all(x[i % count] < y for i, y in enumerate(x) if i >= count)
    )


def _near_perfect(mixer: str) -> Callable[[Sweep], Finding]:
    def check(sweep: Sweep) -> Finding:
        widths = sweep.widths[1:] or sweep.widths
        found = [_accuracy(sweep, mixer, MAIN_TEST, width) for width in widths]
        stats = [stat for stat in found if stat is not None]
        if len(stats) < len(found):
            return NOT_RUN
        ours = ", ".join(f"W={w}: {percent(x)}" for w, x in zip(widths, stats, strict=True))
        return _decide(ours, stats, lambda *x: all(mean >= NEAR_PERFECT for mean in x))

    return check


def _about(mixer: str, printed: float) -> Callable[[Sweep], Finding]:
    def check(sweep: Sweep) -> Finding:
        found = _accuracy(sweep, mixer, MAIN_TEST)
        if found is None:
            return NOT_RUN
        off = "" if found.mean is None else f", {100 * (found.mean - printed):+.1f} points"
        ours = f"W={sweep.widths[-1]}: {percent(found)}{off}"
        return _decide(ours, (found,), lambda mean: abs(mean - printed) <= ABOUT)

    return check


def _ahead(mixer: str) -> Callable[[Sweep], Finding]:
    def check(sweep: Sweep) -> Finding:
        names = (mixer, "gated_deltanet", "mamba2")
        found = [_accuracy(sweep, name, MAIN_TEST) for name in names]
        stats = [stat for stat in found if stat is not None]
        if len(stats) < len(found):
            return NOT_RUN
        means = [stat.mean for stat in stats if stat.mean is not None]
        if len(means) < len(stats):
            return Finding("failed", False)
        gap = means[0] - max(means[1:])
        least = (UPDATE_BAYESIAN - UPDATE_OTHERS) / 2
        ours = f"W={sweep.widths[-1]}: {100 * gap:+.1f} points"
        return _decide(ours, stats, lambda *_: gap >= least)

    return check


_KEPT_RULE = (
    f"accuracy at most {100 * KEPT:.0f} points below that on the trained distribution, "
    f"which is at least {LEARNED:.0%}"
)
_FAILS_RULE = f"accuracy at least {100 * BEHIND:.0f} points below the Bayesian Layer's"
_PERFECT_RULE = f"at least {NEAR_PERFECT:.0%} at every width but the smallest, or at the only one"
_ABOUT_RULE = f"at the largest width, within {100 * ABOUT:.0f} points"
_GAP_RULE = "at the largest width, at least half the printed gap ahead of the better one"
_FORMS = ("bayesian", "bayesian/conv")

CLAIMS: tuple[Claim, ...] = (
    Claim("collision", "", "Fig. 3 c", "Bayesian Layer, 256 flood writes", "keeps its accuracy",
          _KEPT_RULE, _keeps(FLOOD)),
    Claim("collision", "", "Fig. 3 d", "Bayesian Layer, overlap .85 to .95", "keeps its accuracy",
          _KEPT_RULE, _keeps(OVERLAP)),
    Claim("collision", "", "Fig. 3 d", "covariance-reset, overlap .85 to .95", "fails",
          _FAILS_RULE, _fails("deltanet/reset")),
    Claim("collision", "", "Fig. 3 d", "DeltaNet-style, overlap .85 to .95", "fails",
          _FAILS_RULE, _fails("deltanet")),
    Claim("random_keys", "", "Fig. 7", "every model, n > D", "degrades",
          "cross-entropy at the largest n / D above that at the smallest tested", _all_degrade),
    Claim("random_keys", "", "Fig. 7", "Bayesian Layer, n > D", "degrades slowest",
          "lowest cross-entropy of all at every n / D tested", _slowest),
    *(Claim("mqar", "base", "Fig. 4", f"`{form}`, base", "near-perfect at larger widths",
            _PERFECT_RULE, _near_perfect(form)) for form in _FORMS),
    *(Claim("mqar", "update", "Fig. 4", f"`{form}`, Update", f"about {UPDATE_BAYESIAN:.0%}",
            _ABOUT_RULE, _about(form, UPDATE_BAYESIAN)) for form in _FORMS),
    *(Claim("mqar", "update", "Fig. 4", f"`{other}`, Update", f"about {UPDATE_OTHERS:.0%}",
            _ABOUT_RULE, _about(other, UPDATE_OTHERS)) for other in ("gated_deltanet", "mamba2")),
    *(Claim("mqar", "update", "Fig. 4", f"`{form}` ahead of Gated DeltaNet and Mamba-2, Update",
            f"about {100 * (UPDATE_BAYESIAN - UPDATE_OTHERS):.0f} points", _GAP_RULE, _ahead(form))
      for form in _FORMS),
    *(Claim("mqar", "block", "Fig. 4", f"`{form}`, Block", "solved without convolution",
            _PERFECT_RULE, _near_perfect(form)) for form in ("bayesian", "bayesian/rotation")),
)  # fmt: skip
