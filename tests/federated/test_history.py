"""Histories survive JSON, and their CSV has what it says."""

import csv

from gradveil.federated import RoundMetrics, Skip, TrainingConfig, TrainingHistory

ROUNDS = (
    RoundMetrics(1, (0, 2), (Skip(1, "no, data"),), 32, 100, 2.5, 1.0, -0.1, None, None, 0.1),
    RoundMetrics(2, (0, 1, 2), (), 48, 100, 1 / 3, None, None, 2.0, 0.75, 0.1),
    RoundMetrics(3, (1,), (), 16, 100),
)


def test_json_there_and_back() -> None:
    history = TrainingHistory(ROUNDS, TrainingConfig(rounds=3).to_dict())
    assert TrainingHistory.from_json(history.to_json()) == history
    assert TrainingConfig(**history.config) == TrainingConfig(rounds=3)


def test_csv() -> None:
    history = TrainingHistory(ROUNDS)
    rows = list(csv.DictReader(history.to_csv().splitlines()))
    assert [row["clients"] for row in rows] == ["0 2", "0 1 2", "1"]
    assert [row["skipped"] for row in rows] == ["1", "", ""]
    assert [row["loss"] for row in rows] == ["2.5", repr(1 / 3), ""]


def test_summaries() -> None:
    history = TrainingHistory(ROUNDS)
    assert history.skipped == 1
    assert history.accuracy == 0.75
    assert TrainingHistory(()).accuracy is None
