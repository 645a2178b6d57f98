"""Every number of the collision experiment: limits, sweeps, gains, curves and their closed forms.

The numbers are read off runs of the ops in float64. `closed_forms` has the same limits from scalar
recursions that share nothing with the ops but the belief at the start of the boost or the flood.
"""

import json
import math
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bayesmem.evaluate import collision
from bayesmem.evaluate.collision import CollisionConfig
from bayesmem.train.provenance import provenance

OVERLAP = 0.92  # the paper's "high" overlap
LOW_OVERLAP = 0.45  # its low-overlap control
STEEP_OVERLAP = 0.99  # not in the paper's text, but the one its fixed-prior table comes from
SWEEP = (0.30, 0.45, 0.60, 0.75, 0.85, 0.90, 0.92, 0.95, 0.98)
FIXED_PRIORS = (0.01, 0.05, 0.10, 0.50, 1.0, 3.0)
LIMIT_STEPS = 1000  # boost and flood writes that stand for infinitely many: errors halve a write


def run_collision(config: CollisionConfig | None = None) -> dict[str, Any]:
    """Runs the whole experiment.

    Args:
      config: the setting; None for the paper's.

    Returns:
      Numbers, lists and dicts only, as `results.json` stores them: config, device, versions,
      commit, limits, closed_forms, overlap_sweep, fixed_prior_sweep, bayesian_zero_crossing,
      gain_norms, end_of_boost, end_of_flood, low_overlap and curves (at OVERLAP, a value for each
      step).
    """
    config = config or CollisionConfig()
    with jax.enable_x64(True):
        return {
            "config": asdict(config) | {"overlap": OVERLAP},
            **provenance(),
            "limits": limits(config),
            "closed_forms": closed_forms(config),
            "overlap_sweep": overlap_sweep(config),
            "fixed_prior_sweep": fixed_prior_sweep(config),
            "gain_norms": gain_norms(config),
            **phase_ends(config),
            "curves": curves(config),
        }


def limits(config: CollisionConfig) -> dict[str, float]:
    """Returns p_AB after endless boost or flood, and what the gain and the variance settle at.

    The floods go on from the actual belief after the boost (not from an idealised one).
    """
    boosted = replace(config, boost=LIMIT_STEPS, flood=0)
    flooded = replace(config, flood=LIMIT_STEPS - config.boost)
    bayesian, reset = collision.bayesian_model(config), collision.reset_model(config)

    def final(model, setting):
        return float(collision.retrieval(collision.readout_gap(model, [OVERLAP], setting)[0, -1]))

    key = collision.identity_keys(OVERLAP, config)[collision.A]
    gain = collision.write_gain(collision.covariances(OVERLAP, flooded), key, config) @ key
    return {
        "boost": final(bayesian, boosted),
        "bayesian_flood": final(bayesian, flooded),
        "reset_flood": final(reset, flooded),
        "gain_floor": float(gain[-1]),
        "onset_gain": float(gain[config.flood_start]),
        "cross_growth": float(np.diff(collision.read_variance(OVERLAP, "B", flooded))[-1]),
    }


def closed_forms(config: CollisionConfig) -> dict[str, float]:
    """Returns the same limits from appendix E.1-E.3, given the belief that the writes start from.

    In the plane of the two keys, writing one unit key again and again is a recursion of three
    numbers: x the predicted variance along it, c its covariance with the orthogonal direction, and
    z the variance of that direction (`repeated_writes`).
    """
    r2, ell2 = config.obs_var, config.process_var
    rho, across = OVERLAP, float(np.sqrt(1 - OVERLAP**2))
    covs = collision.covariances(OVERLAP, config)
    keys = collision.identity_keys(OVERLAP, config)
    key_a, key_b = keys[collision.A], keys[collision.B]
    perp_b = np.concatenate([[-key_b[1], key_b[0]], key_b[2:]])
    seeded = covs[config.flood_start - config.boost] + ell2 * np.eye(config.key_dim)
    x, c, z = repeated_writes(
        (key_b @ seeded @ key_b, key_b @ seeded @ perp_b, perp_b @ seeded @ perp_b),
        config.boost,
        config,
    )[-1]
    along, other = key_a @ key_b, key_a @ perp_b
    onset = along**2 * x + 2 * along * other * c + other**2 * z

    before = {
        (name, direction): collision.readout_gap(model, [OVERLAP], config, direction)[
            0, config.flood_start - 1
        ]
        for name, model in (
            ("bayesian", collision.bayesian_model(config)),
            ("reset", collision.reset_model(config)),
        )
        for direction in ("A", "A_perp")
    }
    # Along k_A the flood ends at gap -1, and on the way it drags the orthogonal direction along.
    boosted = covs[config.flood_start] + ell2 * np.eye(config.key_dim)
    perp_a = np.eye(config.key_dim)[1]
    path = repeated_writes(
        (key_a @ boosted @ key_a, key_a @ boosted @ perp_a, perp_a @ boosted @ perp_a),
        LIMIT_STEPS,
        config,
    )
    error, dragged = -1 - before["bayesian", "A"], before["bayesian", "A_perp"]
    for x, c, _ in path[:-1]:
        dragged, error = dragged + error * c / (r2 + x), error * r2 / (r2 + x)
    settled = (ell2 + np.sqrt(ell2**2 + 4 * r2 * ell2)) / 2
    return {
        "boost": 1 / (1 + math.exp(-1)),
        "bayesian_flood": float(collision.retrieval(-rho + across * dragged)),
        "reset_flood": float(collision.retrieval(-rho + across * before["reset", "A_perp"])),
        "gain_floor": float(settled / (r2 + settled)),
        "onset_gain": float(onset / (r2 + onset)),
        "cross_growth": float((1 - rho**2) * ell2),
    }


def repeated_writes(
    start: tuple[float, float, float], steps: int, config: CollisionConfig
) -> list[tuple[float, float, float]]:
    """Returns (x, c, z) before each of `steps` writes of one unit key, and after the last.

    x is the predicted variance along the key, z along an orthogonal direction, c their covariance:
    x' = r^2 x/(r^2 + x) + ell^2,  c' = c r^2/(r^2 + x),  z' = z - c^2/(r^2 + x) + ell^2.
    """
    r2, ell2 = config.obs_var, config.process_var
    path = [start]
    for _ in range(steps):
        x, c, z = path[-1]
        total = r2 + x
        path.append((r2 * x / total + ell2, c * r2 / total, z - c**2 / total + ell2))
    return path


def overlap_sweep(config: CollisionConfig) -> list[dict[str, float]]:
    """Returns the margins at the end of the flood for every overlap of SWEEP (E.4.3)."""
    rhos = list(SWEEP)
    bayesian = collision.readout_gap(collision.bayesian_model(config), rhos, config)
    reset = collision.readout_gap(collision.reset_model(config), rhos, config)
    return [
        {
            "rho": rho,
            "bayesian": float(collision.margin(bayesian[row, -1])),
            "reset": float(collision.margin(reset[row, -1])),
        }
        for row, rho in enumerate(rhos)
    ]


def fixed_prior_sweep(config: CollisionConfig) -> list[dict[str, Any]]:
    """Returns margin and zero crossing for Pbar = c I over FIXED_PRIORS (E.4.2)."""
    rows = [(rho, c) for rho in (OVERLAP, STEEP_OVERLAP) for c in FIXED_PRIORS]
    variance = np.array([c for _, c in rows])[:, None, None]
    model = collision.reset_model(config, variance)
    gaps = collision.readout_gap(model, [rho for rho, _ in rows], config)
    return [
        {
            "rho": rho,
            "c": c,
            "gain": c / (config.obs_var + c),
            "margin": float(collision.margin(gap[-1])),
            "zero_crossing": collision.zero_crossing(gap, config),
        }
        for (rho, c), gap in zip(rows, gaps, strict=True)
    ]


def gain_norms(config: CollisionConfig) -> dict[str, float]:
    """Returns Euclidean norms of the gain vector of an A write (E.4.4 calls them "gain").

    At the first write, at the first flood write and at the last one, with OVERLAP.
    """
    key = collision.identity_keys(OVERLAP, config)[collision.A]
    gain = collision.write_gain(collision.covariances(OVERLAP, config), key, config)
    norms = np.linalg.norm(gain, axis=-1)
    return {
        "rho": OVERLAP,
        "seed": float(norms[0]),
        "flood_onset": float(norms[config.flood_start]),
        "flood_end": float(norms[-1]),
    }


def phase_ends(config: CollisionConfig) -> dict[str, Any]:
    """Returns margins after the boost and after the flood, and p_AB of the low-overlap control."""
    rhos = [OVERLAP, STEEP_OVERLAP, LOW_OVERLAP]
    bayesian = collision.readout_gap(collision.bayesian_model(config), rhos, config)
    reset = collision.readout_gap(collision.reset_model(config), rhos, config)

    def margins(step):
        return [
            {
                "rho": rho,
                "bayesian": float(collision.margin(bayesian[row, step])),
                "reset": float(collision.margin(reset[row, step])),
            }
            for row, rho in enumerate(rhos[:2])
        ]

    return {
        "end_of_boost": margins(config.flood_start - 1),
        "end_of_flood": margins(-1),
        "bayesian_zero_crossing": [
            {"rho": rho, "zero_crossing": collision.zero_crossing(bayesian[row], config)}
            for row, rho in enumerate(rhos[:2])
        ],
        "low_overlap": {
            "rho": LOW_OVERLAP,
            "bayesian": float(collision.retrieval(bayesian[2, -1])),
            "reset": float(collision.retrieval(reset[2, -1])),
        },
    }


def curves(config: CollisionConfig) -> dict[str, Any]:
    """Returns the three panels of the figure at OVERLAP, a list with a value for each step."""
    gate = 1 - config.constant_gain  # so that writing one key again and again settles at its value
    gaps = {
        "bayesian": collision.readout_gap(collision.bayesian_model(config), [OVERLAP], config)[0],
        "reset": collision.readout_gap(collision.reset_model(config), [OVERLAP], config)[0],
        "linear_attention": collision.readout_gap(
            collision.additive_model(config, None), [OVERLAP], config
        )[0],
        "gla": collision.readout_gap(collision.additive_model(config, gate), [OVERLAP], config)[0],
        "diagonal_covariance": collision.diagonal_covariance_gap(OVERLAP, config),
    }
    covs = collision.covariances(OVERLAP, config)
    keys = collision.identity_keys(OVERLAP, config)
    gain_a = collision.write_gain(covs, keys[collision.A], config)
    gain_b = collision.write_gain(covs, keys[collision.B], config)
    order = collision.write_order(config)
    curve = {
        "retrieval": {name: collision.retrieval(gap) for name, gap in gaps.items()},
        "variance": {
            name: collision.read_variance(OVERLAP, name, config)
            for name in ("A", "B", "A_perp", "B_perp")
        },
        "gain": {
            "A": gain_a @ keys[collision.A],
            "A_norm": np.linalg.norm(gain_a, axis=-1),
            "B": gain_b @ keys[collision.B],
            "reset": np.full(len(order), config.constant_gain),
        },
    }
    return {
        "rho": OVERLAP,
        "gla_gate": gate,
        "written": order.tolist(),
        **{panel: {k: v.tolist() for k, v in lines.items()} for panel, lines in curve.items()},
    }


def write_results(results: dict[str, Any], path: Path) -> None:
    """Writes `results` as JSON: a whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    os.replace(partial, path)
