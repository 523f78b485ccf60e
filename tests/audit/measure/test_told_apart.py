import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradveil import GradientNoise, GradientPruning, NoDefense, OptimalNoise, Rounding
from gradveil.audit._result import ToldApart
from gradveil.audit.measure import Laboratory
from gradveil.audit.measure._attacks import TRIALS, told_apart
from gradveil.audit.report._tables import points_table
from gradveil.defenses import Defended, Defense
from gradveil.mechanisms import AnyMechanism
from gradveil.scoring import Interval
from tests.audit.example_result import example_result
from tests.audit.small import image_model, images, make_subject, small_audit, table, table_model


def subject(count: int = 40, private: int = 2, public: bool = True) -> Laboratory:
    inputs, targets = images(count)
    return Laboratory(
        make_subject(
            image_model(),
            cross_entropy,
            (inputs[:private], targets[:private]),
            batches=1,
            public=(inputs[private:], targets[private:]) if public else None,
            normalization=None,
            local=None,
            name="small",
        )
    )


@pytest.mark.parametrize("defense", [NoDefense(), GradientPruning(0.5), Rounding(1e-4)])
def test_without_noise_the_right_one_is_always_found(defense: Defense) -> None:
    found, _ = told_apart(subject(), defense)
    assert found is not None
    trials = TRIALS // 8 if defense.about.private else TRIALS
    assert (found.candidates, found.trials, found.one_class) == (13, trials, True)
    assert found.rate.mean == 1
    assert found.bits.mean == pytest.approx(torch.tensor(13.0).log2().item())


def test_loud_noise_leaves_chance() -> None:
    found, _ = told_apart(subject(), GradientNoise(1e3))
    assert found is not None
    assert found.rate.low < 1 / found.candidates == 1 / 13
    assert found.bits.mean < 0.01


def test_few_examples_of_a_class_make_candidates_of_all() -> None:
    found, _ = told_apart(subject(12), NoDefense())
    assert found is not None
    assert (found.candidates, found.one_class) == (9, False)


def test_without_public_examples_the_audited_ones_are_candidates() -> None:
    found, _ = told_apart(subject(6, 3, public=False), NoDefense())
    assert found is None  # one is left beside the rest of the batch
    found, _ = told_apart(subject(6, 1), NoDefense())
    assert found is not None
    assert found.candidates == 5


def test_large_models_get_fewer_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradveil.audit.measure._attacks.MOST_WORK", 1)
    found, _ = told_apart(subject(), NoDefense())
    assert found is not None
    assert found.trials == 6


class Opaque(Defense):
    """Sends something without saying what it does."""

    def respond(self, message, inputs, generator=None):  # type: ignore[no-untyped-def]
        values = message(inputs)
        return Defended(values, None, values)


def test_a_defense_without_a_mechanism_has_no_rate() -> None:
    found, notes = told_apart(subject(), Opaque())
    assert found is None
    assert notes == [
        "Behind opaque nobody tells candidates apart here: the likelihood of what it sends is not"
        " known exactly."
    ]


class LogisticMechanism(AnyMechanism):
    """A mechanism that is none of ours: g + s ξ, where ξ is logistic."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def variance(self, values):  # type: ignore[no-untyped-def]
        return {n: torch.full_like(v, (math.pi * self.scale) ** 2 / 3) for n, v in values.items()}

    def information(self, values):  # type: ignore[no-untyped-def]
        return {n: torch.full_like(v, 1 / (3 * self.scale**2)) for n, v in values.items()}

    def _sent(self, values, generator):  # type: ignore[no-untyped-def]
        draws = {n: torch.rand(v.shape, generator=generator) for n, v in values.items()}
        return {n: values[n] + self.scale * draw.logit(eps=1e-6) for n, draw in draws.items()}


@dataclass(frozen=True)
class LogisticNoise(Defense, amount="scale"):
    """A defense made of public names alone."""

    reads = "nothing"

    scale: float

    def mechanism(self, shape, moments):  # type: ignore[no-untyped-def]
        return LogisticMechanism(self.scale)


def test_a_mechanism_of_ones_own_is_attacked_and_bounded_but_not_exactly() -> None:
    result = small_audit(table(40), table_model(), defenses=[LogisticNoise(0.01)])
    _, defense = result.defenses
    assert [attack.attack.partition("(")[0] for attack in defense.attacks] == [
        "inverting-gradients",
        "adaptive",
    ]
    assert defense.bound is not None
    assert defense.bound.mse > 0
    assert defense.told_apart is None
    assert [note for note in result.notes if "failed" in note] == []
    assert "Behind logistic noise nobody tells candidates apart" in " ".join(result.notes)


def test_it_is_a_part_of_every_audit() -> None:
    result = small_audit(table(40), table_model(), defenses=[OptimalNoise(0.1)], attacks=[])
    _, defense = result.defenses
    assert defense.told_apart is not None
    assert defense.told_apart.candidates == 13
    same = type(result).from_json(result.to_json())
    assert same == result
    older = replace(defense, told_apart=None)
    assert replace(result, defenses=(older,)) != result


def test_words_and_tables_say_it_plainly() -> None:
    found = ToldApart(32, 24, Interval(0.75, 0.53, 0.9), Interval(3.5, 3.0, 4.0))
    result = example_result(size=2)
    plain = result.frontier.undefended
    leaks = (replace(plain.leaks[0], told_apart=found),)
    frontier = replace(result.frontier, undefended=replace(plain, leaks=leaks))
    told = replace(result, frontier=frontier)
    table = points_table(told)
    place = [column.label for column in table.columns].index("Picked out")
    cells = [row[place] for row in table.rows]
    assert (cells[0].text, cells[0].note) == ("75 %", "[53, 90], 3.50 bits")
    assert {cell.text for cell in cells[1:]} == {"–"}
    assert told.frontier.rows()[0]["told_apart_rate"] == 0.75
    assert "told_apart_rate" not in told.frontier.rows()[-1]
    assert table.columns[place].hint == "right one of 32 of its class"
    assert "Picked out" not in [column.label for column in points_table(result).columns]
