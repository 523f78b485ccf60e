"""Figures as files: the same plot, the same bytes, and nothing about who drew it when."""

import pytest

from gradveil._drawing import new_figure, save_figure

START = {"png": b"\x89PNG", "pdf": b"%PDF", "other": b"\x89PNG"}


def drawn():
    figure = new_figure(2, 1)
    figure.subplots().plot([0, 1], [1, 0])
    return figure


@pytest.mark.parametrize("suffix", START)
def test_a_figure_is_written_without_its_origin(tmp_path, suffix: str):
    first, second = (tmp_path / f"{name}.{suffix}" for name in ("first", "second"))
    save_figure(drawn(), first)
    save_figure(drawn(), second, tight=False)
    content = first.read_bytes()
    assert content.startswith(START[suffix])
    assert content == second.read_bytes()
    for origin in (b"Software", b"CreationDate", b"Producer"):
        assert origin not in content


def test_tight_crops(tmp_path):
    save_figure(drawn(), tmp_path / "whole.png")
    save_figure(drawn(), tmp_path / "cropped.png", tight=True)
    widths = [
        int.from_bytes((tmp_path / name).read_bytes()[16:20], "big")
        for name in ("whole.png", "cropped.png")
    ]
    assert widths[0] == 220
    assert widths[1] != 220
