"""The bench of private gradients: every contender, with Opacus or without."""

import sys
import warnings

import pytest
import torch

from benchmarks.private import OPACUS, bench_private
from gradveil.data import Dataset

OWN = {
    "isotropic",
    "rows × columns",
    "entry by entry",
    "isotropic, continuous noise",
    "isotropic, every gradient made",
    "isotropic, examples one by one",
}


def few_digits() -> Dataset:
    images = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    return Dataset(images, torch.tensor([0, 1, 2, 3]), (0.0,), (1.0,), 10, "digits")


def test_every_contender_has_a_row():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what opacus imports warns
        pytest.importorskip("opacus")
        rows = bench_private(few_digits(), batch=4, repeats=1)
    assert {row.contender for row in rows} == OWN | set(OPACUS)
    assert all(row.time_ratio and row.peak_ratio and not row.note for row in rows)


def test_without_opacus_its_rows_say_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    rows = bench_private(few_digits(), batch=4, repeats=1)
    assert {row.contender for row in rows if row.time_ratio is not None} == OWN
    missing = [row for row in rows if row.time_ratio is None]
    assert {row.contender for row in missing} == set(OPACUS)
    assert all("pip install" in row.note for row in missing)
