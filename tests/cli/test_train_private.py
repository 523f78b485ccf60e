"""`gradveil train` with a privacy budget, and with and without a seed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradveil.cli import app
from gradveil.privacy import epsilon_on_grid
from tests.federated.small import image_file

SMALL = [
    "train",
    *("--model", "tests.federated.small:flat_mlp"),
    *("--limit", "80", "--held-out", "16", "--batch-size", "2", "--rounds", "3"),
]
PRIVATE = ["--defense", "private-noise(clip=1.0)", "--target-epsilon", "2"]


@pytest.fixture(scope="module", autouse=True)
def images(tmp_path_factory: pytest.TempPathFactory) -> None:
    SMALL.extend(["--data", image_file(tmp_path_factory.mktemp("data"))])


def run(*options: str) -> str:
    done = CliRunner().invoke(app, [*SMALL, *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*options: str) -> str:
    done = CliRunner().invoke(app, [*SMALL, *options])
    assert done.exception is not None
    return str(done.exception)


def test_a_budget_as_json() -> None:
    history = json.loads(run(*PRIVATE, "--delta", "1e-4", "--format", "json"))
    told = history["privacy"]
    assert (told["delta"], told["budget"], told["unit"]) == (1e-4, 2.0, "example")
    assert (told["sample_rate"], told["neighbours"]) == (0.1, "zero-out")
    found = [row["epsilon"] for row in history["rounds"]]
    assert found == [epsilon_on_grid(told["noise_multiplier"], 0.1, n, 1e-4) for n in (1, 2, 3)]
    assert found[-1] <= 2.0
    assert (told["simulation"], history["config"]["secure"]) == (False, True)


def test_a_seed_makes_a_simulation_of_the_json() -> None:
    told = json.loads(run(*PRIVATE, "--seed", "3", "--format", "json"))["privacy"]
    assert told["simulation"] is True


def test_a_public_rate_is_about_one_example_more_or_less() -> None:
    told = json.loads(run(*PRIVATE, "--sample-rate", "0.2", "--format", "json"))["privacy"]
    assert (told["sample_rate"], told["neighbours"]) == (0.2, "add-remove")
    assert told["hides"] == "one example more or less"
    assert "`--sample-rate` should be in (0, 1]" in refused(*PRIVATE, "--sample-rate", "2")
    assert "`--sample-rate` should be left out" in refused("--sample-rate", "0.2")


def test_the_table_says_what_it_means_and_what_a_seed_means() -> None:
    text = " ".join(run(*PRIVATE).split())
    assert "for each example (one example replaced by an empty one; how many there are" in text
    assert "Poisson: each example with probability 0.1" in text
    assert "epsilon" in text
    assert "protects nobody" not in text
    text = " ".join(run(*PRIVATE, "--seed", "3").split())
    assert "A simulation, which protects nobody: the noise came from a seed" in text
    assert "simulated" in text
    assert text.count("protects nobody") == 1
    text = run("--defense", "gradient-noise(0.1)", "--seed", "3")
    assert "A simulation, which protects nobody" in " ".join(text.split())


def test_noise_is_secure_without_a_seed_and_all_else_is_the_same() -> None:
    def losses(*options: str) -> list[float]:
        rows = json.loads(run(*options, "--format", "json"))["rounds"]
        return [row["loss"] for row in rows]

    noise = ["--defense", "gradient-noise(0.5)"]
    assert losses() == losses("--seed", "0")  # nothing is drawn but batches
    assert losses(*noise)[0] == losses(*noise, "--seed", "0")[0]
    assert losses(*noise)[2] != losses(*noise)[2]
    assert losses(*noise, "--seed", "0") == losses(*noise, "--seed", "0")


def test_a_private_run_is_resumed_and_pays_for_what_it_sent_twice(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path), "--checkpoint-every", "1"]
    private = ["--defense", "private-noise(2.0, clip=1.0)", "--format", "json"]
    first = json.loads(run(*private, "--rounds", "2", *out))
    (tmp_path / "history.json").unlink()
    (tmp_path / "spent.json").write_text('{"releases": 4}')  # two were begun and not finished
    again = json.loads(run(*private, *out, "--resume"))
    assert again["rounds"][:2] == first["rounds"]
    assert again["rounds"][2]["epsilon"] == epsilon_on_grid(2.0, 0.1, 5, 1e-5)


def test_mistakes() -> None:
    text = refused("--defense", "gradient-noise(0.1)", "--target-epsilon", "2")
    assert "`--target-epsilon` should be left out for a defense without (ε, δ)" in text
    text = refused("--defense", "gradient-noise(0.1)", "--delta", "1e-4")
    assert "Option `--delta` should be left out with a defense without (ε, δ)" in text
    assert "noise_multiplier" in refused("--defense", "private-noise(clip=1.0)")
    assert "Option `--delta` should be in (0, 1)" in refused(*PRIVATE, "--delta", "2")
    assert "Option `--target-epsilon` should be" in refused(*PRIVATE[:2], "--target-epsilon", "0")
    assert "a Poisson sample may be empty" in refused("--sampling", "poisson")
    assert "`--sampling` should be" in refused("--sampling", "all")
