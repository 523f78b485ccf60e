"""`gradveil list` names everything that specifications can use."""

import json

from typer.testing import CliRunner

from gradveil.catalog import ATTACKS, DEFENSES, ESTIMATORS
from gradveil.catalog._entries import MODELS
from gradveil.cli import app


def test_everything_is_listed_with_one_line():
    done = CliRunner().invoke(app, ["list", "--format", "json"])
    assert done.exit_code == 0, done.output
    groups = json.loads(done.stdout)
    names = {group: {row["name"] for row in rows} for group, rows in groups.items()}
    assert names["defenses"] == set(DEFENSES)
    assert names["attacks"] == set(ATTACKS)
    assert names["estimators"] == set(ESTIMATORS)
    assert names["models"] == set(MODELS)
    assert {"mnist", "cifar10"} <= names["data sets"]
    assert all(row["summary"] for rows in groups.values() for row in rows)
    optimal = next(row for row in groups["defenses"] if row["name"] == "optimal-noise")
    assert "scale=None" in optimal["parameters"]
    assert "Theorem 2" in optimal["reference"]


def test_the_table_shows_names_and_references():
    done = CliRunner().invoke(app, ["list"], env={"COLUMNS": "100"})
    assert done.exit_code == 0
    assert "optimal-noise" in done.stdout
    assert "1906.08935" in done.stdout
