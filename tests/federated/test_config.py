"""From strings and numbers to a run, and its files."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradveil.federated import (
    TrainingConfig,
    TrainingHistory,
    build_run,
    count_rounds,
    initial_model,
    load_split,
)
from gradveil.federated import train as train_registered

OWN_MODEL = "tests.federated.small:flat_mlp"
SETTINGS: dict[str, Any] = {
    "model": OWN_MODEL,
    "rounds": 6,
    "limit": 96,
    "held_out": 32,
    "clients": 3,
    "batch_size": 8,
    "evaluate_every": 2,
    "defense": "optimal-noise(scale=0.01, source=model-source(refresh_every=2))",
}
train = partial(train_registered, allow_imports=[OWN_MODEL])


@pytest.fixture
def tiny(images: str) -> TrainingConfig:
    return TrainingConfig(data=images, **SETTINGS)


def test_the_defaults_are_the_papers() -> None:
    config = TrainingConfig()
    assert (config.clients, config.batch_size, config.optimizer, config.lr) == (4, 16, "adam", 1e-3)
    assert sum(p.numel() for p in initial_model(config, load_split(config)).parameters()) == 119530


def test_the_data_is_cut_as_told(tiny: TrainingConfig) -> None:
    data = load_split(tiny)
    assert data.held_out is not None
    assert (len(data.inputs), len(data.held_out[0])) == (96, 32)
    everything = load_split(replace(tiny, limit=200, held_out=0))
    assert everything.held_out is None
    assert torch.equal(everything.inputs[:96], data.inputs)
    assert torch.equal(everything.inputs[96:128], data.held_out[0])
    later = load_split(replace(tiny, held_out_start=100))
    assert later.held_out is not None
    assert torch.equal(everything.inputs[100:132], later.held_out[0])
    for start in (95, 256):
        with pytest.raises(ValueError, match=f"Found `held_out_start = {start}`"):
            load_split(replace(tiny, held_out_start=start))


def test_a_run_has_the_clients_of_its_configuration(tiny: TrainingConfig) -> None:
    config = replace(tiny, local_steps=2, optimizer="sgd", lr=1.0, partition="label")
    run = build_run(config, allow_imports=True)
    assert sorted(run.clients) == [0, 1, 2]
    assert all(len(c.inputs) == 32 and c.local.steps == 2 for c in run.clients.values())
    assert run.server.kind == "update"
    assert isinstance(run.server.optimizer, torch.optim.SGD)


def test_options_of_a_model() -> None:
    images = load_split(TrainingConfig(data="cifar10"))
    small, large = (
        sum(p.numel() for p in initial_model(TrainingConfig(model=spec), images).parameters())
        for spec in ("conv-net(width=4)", "conv-net(width=8)")
    )
    assert small < large
    with pytest.raises(ValueError, match=r"one of conv-net.*`convnet`\. Did you mean `conv-net`"):
        initial_model(TrainingConfig(model="convnet"), images)


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "table.npz"
    labels = np.arange(60) % 3
    np.savez(path, x=np.eye(6, dtype=np.float32)[2 * labels] + 0.1, y=labels)
    return str(path)


def test_the_default_model_is_the_one_for_the_data(table: str) -> None:
    for data, name, outputs in ((table, "mlp", 3), ("cifar10", "conv-net", 10)):
        config = TrainingConfig(data=data, rounds=1, batch_size=4)
        history = train(config)
        assert history.config["model"] == name
        assert history.rounds[-1].accuracy is not None
        run = build_run(config)
        assert [p.shape[0] for p in run.server.model.parameters()][-1] == outputs


def test_a_model_that_does_not_fit_is_an_error(table: str) -> None:
    for data, model in (("cifar10", "simple-conv-net"), (table, "conv-net")):
        with pytest.raises(ValueError, match=r"Parameter `model` should accept inputs of shape"):
            build_run(TrainingConfig(data=data, model=model))
    with pytest.raises(ValueError, match=r"labels from 0 to 1: the model has 2 outputs"):
        build_run(TrainingConfig(data=table, model="mlp(sizes=[6, 2])"))


def test_a_fifth_of_small_data_is_held_out(table: str) -> None:
    small = load_split(TrainingConfig(data=table))
    assert small.held_out is not None
    assert (len(small.inputs), len(small.held_out[0])) == (48, 12)
    large = load_split(TrainingConfig())
    assert large.held_out is not None
    assert (len(large.inputs), len(large.held_out[0])) == (4488, 512)


def test_given_data_is_not_loaded_again(
    tiny: TrainingConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load_split(tiny)
    expected = train(tiny)

    def refuse(source: str) -> None:
        raise AssertionError(f"loaded {source} again")

    monkeypatch.setattr("gradveil.federated._config.load_dataset", refuse)
    assert train(tiny, data).to_csv() == expected.to_csv()


def test_an_epoch_is_seen_once() -> None:
    assert count_rounds(1, 4096, TrainingConfig()) == 64
    assert count_rounds(1, 4096, TrainingConfig(fraction=0.5)) == 128
    assert count_rounds(0.5, 100, TrainingConfig(clients=1)) == 4


def test_a_public_rate_gives_rounds_that_do_not_tell_how_many_examples_there_are() -> None:
    config = TrainingConfig(sample_rate=0.05, fraction=0.5)
    assert {count_rounds(1, count, config) for count in (256, 257, 10_000)} == {40}


@pytest.mark.parametrize(
    "bad",
    [
        {"clients": 0},
        {"partition": "x"},
        {"optimizer": "y"},
        {"lr": 0.0},
        {"seed": -1},
        {"device": "z:1"},
    ],
    ids=str,
)
def test_bad_values(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"Parameter `{next(iter(bad))}` should"):
        TrainingConfig(**bad)  # type: ignore[arg-type]


def test_training_writes_its_files_and_learns(tmp_path: Path, tiny: TrainingConfig) -> None:
    history = train(replace(tiny, rounds=30, lr=0.01), out=tmp_path)
    assert history.rounds[-1].held_out_loss < 0.8 * history.rounds[1].held_out_loss
    assert TrainingHistory.from_json((tmp_path / "history.json").read_text()) == history
    assert (tmp_path / "rounds.csv").read_text() == history.to_csv()
    weights = torch.load(tmp_path / "model.pt", weights_only=True)
    assert (
        weights.keys()
        == initial_model(tiny, load_split(tiny), allow_imports=True).state_dict().keys()
    )


def test_it_continues_only_when_told(tmp_path: Path, tiny: TrainingConfig) -> None:
    train(replace(tiny, rounds=2), out=tmp_path)
    with pytest.raises(FileExistsError, match="Continue it with `resume`"):
        train(tiny, out=tmp_path)
    resumed = train(tiny, out=tmp_path, resume=True)
    assert resumed.to_csv() == train(tiny).to_csv()


def test_a_folder_takes_one_run_at_a_time(tmp_path: Path, tiny: TrainingConfig) -> None:
    def second(row: object) -> None:
        with pytest.raises(BlockingIOError, match="Found another at work in it"):
            train(tiny, out=tmp_path, resume=True)

    first = train(replace(tiny, rounds=1), out=tmp_path, on_round=second)
    assert TrainingHistory.from_json((tmp_path / "history.json").read_text()) == first
    train(tiny, out=tmp_path, resume=True)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path, tiny: TrainingConfig) -> None:
    train(replace(tiny, rounds=4), out=tmp_path, checkpoint_every=2)
    path = tmp_path / "checkpoint"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="truncated or damaged"):
        train(tiny, out=tmp_path, resume=True)


def test_fedavg_adds_the_mean_change_unless_told_otherwise() -> None:
    averaged = TrainingConfig(local_steps=5)
    assert (averaged.optimizer, averaged.lr) == ("sgd", 1.0)
    assert (TrainingConfig().optimizer, TrainingConfig().lr) == ("adam", 1e-3)
    told = TrainingConfig(local_steps=5, optimizer="adam", lr=0.1)
    assert (told.optimizer, told.lr) == ("adam", 0.1)


def test_held_out_examples_must_leave_some(tiny: TrainingConfig) -> None:
    with pytest.raises(ValueError, match="`held_out` should be below the 20 examples"):
        load_split(TrainingConfig(data="cifar10", held_out=512))


def test_resuming_needs_a_folder(tiny: TrainingConfig) -> None:
    with pytest.raises(ValueError, match="`out` should be the folder of the run to resume"):
        train(tiny, resume=True)


def test_results_of_another_run_are_not_overwritten(tmp_path: Path, tiny: TrainingConfig) -> None:
    (tmp_path / "history.json").write_text("{}")
    for resume in (False, True):
        with pytest.raises(FileExistsError, match="no results of an earlier run"):
            train(tiny, out=tmp_path, resume=resume)
    assert (tmp_path / "history.json").read_text() == "{}"


def test_checkpoints_are_some_rounds_apart(tmp_path: Path, tiny: TrainingConfig) -> None:
    with pytest.raises(ValueError, match="`checkpoint_every` should"):
        train(tiny, out=tmp_path, checkpoint_every=0)
