"""Results that no one computed: what cells might find, with effects that a test plants."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gradveil._runner import Cell
from paper.numbers import name_and_level
from paper.reproduce import STUDIES
from paper.study import AllResults, Results

LAYERS = ("conv_layers.0", "conv_layers.3", "fc_layers.1", "fc_layers.3")


def synthetic(cell: Cell, effect: float, scatter: float = 0.05) -> dict[str, Any]:
    """What the cell might find; `effect` favours the optimal defenses, 0 makes all alike."""
    settings = cell.settings
    generator = torch.Generator().manual_seed(int(cell.key[:8], 16))
    noise = torch.randn(64, generator=generator).mul(scatter).tolist()
    name, level = name_and_level(settings.get("defense", "no-defense"))
    level = settings.get("scale", level)
    gain = effect if name.startswith("optimal") else 0.0
    strength = _strength(level)
    kind = cell.name
    if kind == "attack":
        return _attack(settings, strength, gain, noise)
    if kind == "training":
        shift = 0.5 * strength - 0.3 * gain
        losses = [2.3 * math.exp(-t / 40) + shift + x for t, x in enumerate(noise)]
        losses = (losses * 2)[: settings["rounds"]]
        levels = {
            f"{layer}.{kind}": [0.1 * (place + 1) ** (4 * effect)] * settings["rounds"]
            for place, layer in enumerate(LAYERS)
            for kind in ("weight", "bias")
        }
        end = {"held_out_loss": losses[-1], "accuracy": 0.5, "bytes_sent": 1, "skipped": 0}
        return {"losses": losses, "levels": levels, **end}
    if kind == "short_training":
        after = 2.0 + 0.5 * strength - 0.3 * gain * (1 + strength) + 0.2 * noise[0]
        return {"before": 2.3, "after": after, "accuracy": 0.2}
    return _other(kind, strength, gain, noise[0])


def synthetic_store(
    preset: str = "quick", effect: float = 0.0, scatter: float = 0.05
) -> AllResults:
    """The results of every study."""
    return {
        name: synthetic_results(study.cells(preset), effect, scatter)
        for name, study in STUDIES.items()
    }


def with_scores(store: AllResults, scores: Callable[[Cell, Mapping[str, Any]], dict]) -> AllResults:
    """The store with other scores of its attacks: those that a function of each one names."""
    return {
        study: {
            cell: {**result, **scores(cell, result)} if cell.name == "attack" else result
            for cell, result in cells.items()
        }
        for study, cells in store.items()
    }


def synthetic_results(cells: list[Cell], effect: float = 0.0, scatter: float = 0.05) -> Results:
    """The results of some cells."""
    return {cell: synthetic(cell, effect, scatter) for cell in cells}


def _attack(settings: dict, strength: float, gain: float, noise: list[float]) -> dict[str, Any]:
    aware = 0.2 if settings["mechanism"] == "known" else 0.0
    size = settings["size"]
    base = 0.4 + 0.4 * strength + gain - aware
    mse = [max(0.01, base + x) for x in noise[:size]]
    psnr = [10 * math.log10(1 / (0.095 * x)) for x in mse]
    shape = (size, 3, 32, 32) if "cifar" in settings["data"] else (size, 1, 28, 28)
    images = torch.linspace(0, 1, math.prod(shape)).reshape(shape)
    values = {
        "mse": mse,
        "psnr": psnr,
        "ssim": [0.3] * size,
        "unmatched_mse": [x + 0.15 for x in mse],
        "unmatched_psnr": [x - 1 for x in psnr],
        "unmatched_ssim": [0.2] * size,
        "assignment": list(range(size)),
        "blank_mse": [0.75] * size,
        "status": "finished",
    }
    tensors = {"images": images, "originals": images.flip(-1)}
    return {**values, **tensors}


def _other(kind: str, strength: float, gain: float, noise: float) -> dict[str, object]:
    found: dict[str, dict[str, object]] = {
        "layer_sizes": {"sizes": [["conv_layers.0.weight", 288], ["conv_layers.0.bias", 32]]},
        "bound": {"bound": 0.05 * (1 + strength) + 0.1 * abs(noise), "prior_variance": 0.72},
        "candidate_bound": {"error": 0.01 * (1 + strength) * (1 + noise), "right": [True]},
        "private_training": {
            "loss": 0.6 + 0.1 * noise,
            "accuracy": 0.8 + 0.01 * noise,
            "noise_multiplier": 1.0,
            "epsilon_opacus": 3.0,
        },
        "estimator_share": {"share": 0.7 + 0.2 * noise},
        "estimator_cost": {"ratio": 3.0 + noise},
        "training_prediction": {
            "losses": [1 + strength + noise, 0.5 + strength + noise],
            "costs": {
                "U2": noise,
                "total power": strength,
                "curvature": strength + 0.5 * noise,
                "Adam's step": strength + noise,
            },
        },
        "identification": {"right": [True, noise > 0], "bits": [2.0, 1.0], "rank": [1.0, 2.0]},
        "plan_quality": {"share": min(1.0, 0.5 + gain + 0.2 * noise)},
        "public_plans": {"gains": {"limit/0": 1.4 + gain, "shrunk/2": 1.2 + 0.1 * noise}},
    }
    return found[kind]


def _strength(level: float | None) -> float:
    """From 0 to about 1 over ratios as over scales."""
    if level is None:
        return 0.0
    return level if level >= 0.5 else max(0.0, (math.log10(level) + 4) / 4)
