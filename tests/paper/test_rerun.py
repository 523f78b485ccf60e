"""Some of the committed cells, run again with the code as it is: they find what they found."""

import math
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from gradveil._runner import Cell, Found, Settings
from paper.cells import OFFICIAL
from paper.study import numbers_of, read_cells

RESULTS = Path(__file__).parents[2] / "results"
SECONDS = 4.0
"""Cells that took no longer are cheap."""
MOST = 2
"""Cells of one function, source, kind of defense and attack: no kind is all of the sample."""
LEFT_OUT = ("estimator_cost", "estimator_share", "public_plans")
"""Cells of the first are times. Those of the others share most of their work within a process, so
the seconds of one do not tell what it costs alone: minutes."""
CLOSE = 1e-3
"""Sums of floats differ in the last digits from one build of torch, and one kind of processor, to
another, and up to hundreds of steps of a training or an attack carry that on. What is not the same
computation differs by far more: another draw of the noise changes errors by some per cent."""


def source_of(settings: Settings) -> str:
    """Where the plan is from: the defense's own source, and which public data are in its place."""
    public = settings.get("public")
    data = [name for name in ("batches", "examples") if isinstance(public, dict) and name in public]
    return "+".join(["private"] * ("'private'" in defense_of(settings)) + data)


def defense_of(settings: Settings) -> str:
    """The defense, or what stands for it."""
    return str(settings.get("defense", settings.get("shape", settings.get("way", ""))))


def kind_of(cell: Cell) -> tuple[str, str, bool, str, str]:
    """Function, source of the plan, whether the model is trained, defense, attacker; no amounts."""
    attack = str(cell.settings.get("attack", "")).partition("(")[0]
    defense = defense_of(cell.settings).partition("(")[0]
    return cell.name, source_of(cell.settings), bool(cell.settings.get("trained")), defense, attack


def tells(values: dict[str, Any]) -> bool:
    """Whether another draw of the noise would show; not where the right candidate is certain."""
    errors = values.get("error", [math.inf])
    return max(errors if isinstance(errors, list) else [errors]) > 100 * CLOSE


def sample(seed: int = 0, count: int = 34) -> list[tuple[Cell, Found]]:
    """Of all functions, sources and states in turns: cheap ones, or the cheapest of all."""
    cells = read_cells(RESULTS / "cells.csv")
    able = [
        (cell, found)
        for cell, found in cells.items()
        if cell.name not in LEFT_OUT
        and cell.settings["data"] not in OFFICIAL
        and None not in found.values.get("losses", [])  # one that diverged follows its rounding
    ]
    random.Random(seed).shuffle(able)
    able.sort(key=lambda one: not tells(one[1].values))
    least: dict[tuple[str, str, bool], float] = {}
    for cell, found in able:
        kind = kind_of(cell)[:3]
        least[kind] = min(found.seconds, least.get(kind, math.inf))
    turns: dict[tuple[str, str, bool], int] = {}
    drawn: dict[tuple[str, str, bool, str, str], int] = {}
    ordered = []
    for cell, found in able:
        whole = kind_of(cell)
        kind = whole[:3]
        if found.seconds <= max(SECONDS, least[kind]) and drawn.get(whole, 0) < MOST:
            drawn[whole] = drawn.get(whole, 0) + 1
            turns[kind] = turns.get(kind, 0) + 1
            ordered.append((turns[kind], len(ordered), cell, found))
    return [(cell, found) for _, _, cell, found in sorted(ordered, key=lambda o: o[:2])[:count]]


def far(was: Any, now: Any, place: str = "") -> Iterator[str]:
    """Where two plain values are not close."""
    if isinstance(was, dict) and isinstance(now, dict):
        if was.keys() != now.keys():
            yield f"{place}: {sorted(was)} and {sorted(now)}"
        for name in was.keys() & now.keys():
            yield from far(was[name], now[name], f"{place}.{name}")
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for number, (one, other) in enumerate(zip(was, now, strict=True)):
            yield from far(one, other, f"{place}[{number}]")
    elif isinstance(was, float) and isinstance(now, float):
        both_nan = math.isnan(was) and math.isnan(now)
        slack = 1.0 if ".rank[" in place else CLOSE  # of two that are as likely but for rounding
        if not (both_nan or math.isclose(was, now, rel_tol=CLOSE, abs_tol=slack)):
            yield f"{place}: {was} and {now}"
    elif was != now:
        yield f"{place}: {was!r} and {now!r}"


def unlike(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Where an attack did not reach what it reached.

    It steps by the signs of gradients, so that rounding, which differs from one processor to
    another, sends it elsewhere: the commit of the results, run on another machine, gives other
    pixels too. What it reaches is alike: its own cost, and the error in the mean over images.
    """
    costs, errors = [(was["loss"], now["loss"])], [(fmean(was["mse"]), fmean(now["mse"]))]
    return [
        *(f"{one} and {other}" for one, other in costs + errors if not 2 / 3 < other / one < 3 / 2),
        *far(was["blank_mse"], now["blank_mse"], "blank_mse"),
        *far(was["status"], now["status"], "status"),
    ]


SAMPLE = sample()


def test_the_sample_has_cells_of_all_cheap_functions():
    names = {cell.name for cell, _ in SAMPLE}
    assert names >= {
        "attack", "candidate_bound", "identification", "layer_sizes", "plan_quality",
        "short_training", "training",
    }  # fmt: skip


def test_other_numbers_are_noticed():
    assert [*far({"mse": [0.5, 1.0]}, {"mse": [0.5, 1.0 + 1e-5]})] == []
    assert [*far({"mse": [0.5, 1.0]}, {"mse": [0.5, 1.02]})] == [".mse[1]: 1.0 and 1.02"]
    assert [*far({"right": [True]}, {"right": [False]})] == [".right[0]: True and False"]


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "found"), SAMPLE, ids=lambda x: getattr(x, "name", ""))
def test_a_committed_cell_finds_the_same_again(cell: Cell, found: Found):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of models that training has led astray
        now = numbers_of(cell.function(cell.settings))
    differences = unlike if cell.name == "attack" else far
    assert [*differences(found.values, now)] == [], cell.text
