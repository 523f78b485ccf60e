"""Shapes in few bytes: what comes out is what went in, rounded, and nothing else is accepted."""

import json
from typing import Any

import pytest
import torch

from gradveil.federated import PackedShape
from gradveil.shapes import Shape

LIKE = {"w": torch.zeros(8, 5), "b": torch.zeros(8), "s": torch.zeros(())}


def drawn(decades: float = 0.5) -> Shape:
    generator = torch.Generator().manual_seed(0)

    def levels(*shape: int) -> torch.Tensor:
        return 10 ** (decades * torch.randn(shape, generator=generator))

    return Shape({"w": (levels(8, 1), levels(1, 5)), "b": (levels(1),), "s": (levels(),)})


def test_levels_come_back_within_a_step_of_the_grid() -> None:
    packed = PackedShape.of(drawn())
    back, given = packed.shape.levels(LIKE), drawn().levels(LIKE)
    for name, level in given.items():
        off = (back[name] / level).log2().abs().max()
        assert float(off) <= 2 * (1 / 32) + 1e-5, name  # half a step for each of two factors


def test_packing_again_changes_no_code_by_more_than_one() -> None:
    once = PackedShape.of(drawn())
    again = PackedShape.of(once.shape)
    assert again.layout == once.layout
    assert (again.codes.int() - once.codes.int()).abs().max() <= 1


def test_its_size_is_what_it_holds() -> None:
    packed = PackedShape.of(drawn())
    assert packed.layout == '[["w", [8, 1], [1, 5]], ["b", [1]], ["s", []]]'
    assert (len(packed.means), len(packed.codes)) == (4, 13)
    assert packed.size == len(packed.layout) + 4 * 4 + 13


def test_levels_of_any_size_are_limited_to_256_times_the_mean() -> None:
    row = torch.ones(100)
    row[0] = 1e30
    levels = PackedShape.of(Shape({"w": (row,)})).shape.factors["w"][0]
    assert float(levels[0] / levels[1]) <= 2**16


GOOD = {"layout": '[["w", [2]]]', "means": torch.ones(1), "codes": torch.zeros(2).byte()}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"layout": 3}, "type str"),
        ({"layout": "no JSON"}, "should read"),
        ({"layout": "[" * 100_000}, "should read"),
        ({"layout": '{"w": [2]}'}, "should read"),
        ({"layout": '[["w"]]'}, "should read"),
        ({"layout": "[[7, [2]]]"}, "should read"),
        ({"layout": '[["w", 2]]'}, "should read"),
        ({"layout": '[["w", [true, 2]]]'}, "should read"),
        ({"layout": '[["w", [-2]]]'}, "should read"),
        ({"layout": '[["w", [0]]]'}, "should read"),
        ({"layout": '[["w", [2.0]]]'}, "should read"),
        ({"layout": '[["w", [2]], ["w", [1]]]'}, "should read"),
        ({"layout": json.dumps([["w", [1] * 16 + [2]]])}, "should read"),
        ({"layout": '[["w", [3]]]'}, "1 means and 3 codes"),
        ({"layout": '[["w", [65536, 65536, 65536]]]'}, "codes"),
        ({"layout": '[["w", [2], [1]]]'}, "2 means"),
        ({"means": torch.ones(1).double()}, "float32"),
        ({"means": torch.ones(1, 1)}, "one row"),
        ({"codes": torch.zeros(2)}, "uint8"),
        ({"codes": None}, "uint8"),
        ({"means": torch.tensor([float("nan")])}, "finite and above 0"),
        ({"means": torch.tensor([float("inf")])}, "finite and above 0"),
        ({"means": torch.tensor([3e38]), "codes": torch.full((2,), 255).byte()}, "finite"),
        ({"means": torch.tensor([0.0])}, "finite and above 0"),
        ({"means": torch.tensor([-1.0])}, "finite and above 0"),
        ({"means": torch.tensor([1e-45])}, "finite and above 0"),
    ],
)
def test_what_is_no_packed_shape_is_refused(change: dict[str, Any], word: str) -> None:
    assert PackedShape(**GOOD).shape.numbers == 2
    with pytest.raises((ValueError, TypeError), match=word):
        _ = PackedShape(**{**GOOD, **change}).shape
