"""Tables: typed columns, saved as CSV, JSON and NPZ."""

import csv
import json

import numpy as np
import pytest
import torch

from gradveil.studies import Study, Table
from tests.studies import fake

COLUMNS = {"name": str, "count": int, "mse": float, "kept": bool}


def test_a_table_comes_back_from_its_files(tmp_path):
    rows = [("a, b", 1, 0.1 + 0.2, True), (None, 2, float("inf"), False), ("c", None, 3, None)]
    pixels = torch.rand(2, 3, generator=torch.Generator().manual_seed(0))
    Table(COLUMNS, rows, {"pixels": pixels}).save(tmp_path / "mnist.table")
    with (tmp_path / "mnist.table.csv").open() as file:
        first, second, third = csv.DictReader(file)
    assert (first["name"], float(first["mse"])) == ("a, b", 0.1 + 0.2)
    assert (second["name"], second["mse"], third["count"]) == ("", "inf", "")
    saved = json.loads((tmp_path / "mnist.table.json").read_text(), parse_constant=pytest.fail)
    assert saved["columns"] == {"name": "str", "count": "int", "mse": "float", "kept": "bool"}
    assert [row["mse"] for row in saved["rows"]] == [0.1 + 0.2, "inf", 3]
    with np.load(tmp_path / "mnist.table.npz") as arrays:
        assert np.array_equal(arrays["pixels"], pixels.numpy())


@pytest.mark.parametrize("row", [(1, 1, 1.0, True), ("a", 1.5, 1.0, True), ("a", 1, True, True)])
def test_an_entry_of_another_type_is_refused(row):
    with pytest.raises(TypeError, match="should hold"):
        Table(COLUMNS, [row])


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="an entry for each"):
        Table(COLUMNS, [("a", 1)])


def test_what_a_study_is():
    assert isinstance(fake.STUDY, Study)
    assert not isinstance(fake.draw, Study)
