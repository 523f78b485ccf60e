import io
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gradveil import Moments, measure
from gradveil.sensitivity import Exact, Sketch
from tests.messages.compare import assert_same_bytes
from tests.sensitivity.oracles import assert_same_squares
from tests.zoo import named

pytestmark = pytest.mark.usefixtures("global_rng_watch")

FIELDS = ("squared_values", "squared_sensitivities", "second_squares", "squared_example_values")


def make(seed: int = 0, count: float = 1, **changes: Any) -> Moments:
    generator = torch.Generator().manual_seed(seed)

    def draw() -> dict[str, Tensor]:
        shapes = {"layer.weight": (2, 3), "scale": ()}
        return {
            name: torch.rand(shape, generator=generator, dtype=torch.float64)
            for name, shape in shapes.items()
        }

    fields = {field: draw() for field in FIELDS}
    return Moments(**{**fields, "input_size": 7, "count": count, **changes})


def tensors(moments: Moments) -> Iterator[tuple[str, dict[str, Tensor]]]:
    for field in FIELDS:
        if getattr(moments, field) is not None:
            yield field, getattr(moments, field)


def assert_same_moments(found: Moments, expected: Moments) -> None:
    """The same up to the rounding of a few sums."""
    for field, value in tensors(expected):
        assert_same_squares(getattr(found, field), value, tolerance=1e-13)
    assert [field for field, _ in tensors(found)] == [field for field, _ in tensors(expected)]
    assert found.count == pytest.approx(expected.count, rel=1e-15)
    assert (found.clip, found.input_size) == (expected.clip, expected.input_size)


class TestAdding:
    def test_is_the_mean_weighted_by_count(self) -> None:
        a, b = make(1, count=1), make(2, count=3)
        for field in FIELDS:
            for name, value in getattr(a + b, field).items():
                one, other = getattr(a, field)[name], getattr(b, field)[name]
                torch.testing.assert_close(value, (one + 3 * other) / 4)
        assert (a + b).count == 4

    def test_is_associative_and_commutative(self) -> None:
        a, b, c = make(1, count=1), make(2, count=2.5), make(3, count=4)
        for order in itertools.permutations((a, b, c)):
            assert_same_moments((order[0] + order[1]) + order[2], a + (b + c))

    def test_leaves_its_parts_alone(self) -> None:
        a, b = make(1), make(2)
        _ = a + b
        assert_same_moments(a, make(1))
        assert_same_moments(b, make(2))

    def test_a_data_set_streams_through(self) -> None:
        case = named("mlp")
        batches = [case.inputs(seed=seed) for seed in range(5)]
        found = Moments.average(measure(case.message(), batch, Exact()) for batch in batches)
        each = [measure(case.message(), batch, Exact()) for batch in batches]
        for field in FIELDS[:2]:
            parts = [getattr(moments, field) for moments in each]
            mean = {n: torch.stack([part[n] for part in parts]).mean(0) for n in parts[0]}
            assert_same_squares(getattr(found, field), mean, tolerance=1e-13)
        assert found.count == 5

    def test_sum_works_like_average(self) -> None:
        parts = [make(seed) for seed in range(3)]
        assert_same_moments(sum(parts), Moments.average(parts))

    def test_a_second_estimate_that_is_missing_stays_missing(self) -> None:
        assert (make(1) + make(2, second_squares=None)).second_squares is None

    def test_values_alone_stay_values_alone(self) -> None:
        values = Moments.of_values(make().squared_values, input_size=7)
        assert (make() + values).squared_sensitivities is None

    def test_squares_of_examples_that_are_missing_stay_missing(self) -> None:
        assert (make(1) + make(2, squared_example_values=None)).squared_example_values is None

    def test_refuses_other_names(self) -> None:
        other = make(
            squared_values={"scale": torch.ones(())},
            squared_sensitivities=None,
            squared_example_values=None,
        )
        pattern = r"`other` should have the names of `self`. Found missing names \['layer.weight'\]"
        with pytest.raises(ValueError, match=pattern):
            make() + other

    def test_refuses_other_shapes(self) -> None:
        wrong = {**make().squared_values, "scale": torch.ones(1)}
        other = make(squared_values=wrong, squared_sensitivities=wrong, squared_example_values=None)
        with pytest.raises(ValueError, match=r"Found shape \(1,\) for `scale` instead of \(\)"):
            make() + other

    def test_refuses_another_clip(self) -> None:
        with pytest.raises(ValueError, match=r"same `clip`.*`clip = None` and `clip = 0.5`"):
            make() + make(clip=0.5)

    def test_refuses_what_is_no_moments(self) -> None:
        with pytest.raises(TypeError, match="unsupported operand"):
            make() + 1

    def test_average_of_nothing(self) -> None:
        with pytest.raises(ValueError, match="Parameter `moments` should not be empty"):
            Moments.average([])


class TestMeaning:
    def test_size_counts_entries(self) -> None:
        assert make().size == 7

    def test_values_alone_have_no_sensitivities(self) -> None:
        moments = Moments.of_values({"a": torch.tensor([-2.0, 3.0])}, input_size=1)
        assert moments.squared_values["a"].tolist() == [4.0, 9.0]
        with pytest.raises(ValueError, match=r"`moments` should hold sensitivities.*measure\("):
            _ = moments.known_squared_sensitivities

    def test_squares_of_examples_must_be_measured(self) -> None:
        with pytest.raises(ValueError, match=r"Found none. Make them with.*examples=True"):
            _ = make(squared_example_values=None).known_squared_example_values

    def test_squares_of_examples_must_have_the_names_of_the_values(self) -> None:
        with pytest.raises(ValueError, match=r"`squared_example_values` should have the names"):
            make(squared_example_values={"other": torch.ones(())})

    def test_sensitivities_must_have_the_names_of_the_values(self) -> None:
        with pytest.raises(ValueError, match=r"`squared_sensitivities` should have the names"):
            make(squared_sensitivities={"other": torch.ones(())})


class TestClipping:
    """The Jacobian of the clamped message is the oracle in test_measure.py."""

    def test_the_same_clip_again_is_nothing_new(self) -> None:
        moments = make(clip=0.5)
        assert moments.clipped(0.5) is moments

    def test_refuses_a_mean_over_batches(self) -> None:
        """E[clip(g)²] is not known from E[g²]."""
        pattern = r"Found `clip = None` over 2 batches. Measure each batch with.*clip=0.5"
        with pytest.raises(ValueError, match=pattern):
            (make(1) + make(2)).clipped(0.5)

    def test_refuses_a_second_clip(self) -> None:
        with pytest.raises(ValueError, match=r"Found `clip = 0.5` over 1 batches"):
            make(clip=0.5).clipped(0.25)

    @pytest.mark.parametrize("clip", [-1.0, float("nan"), float("inf")])
    def test_refuses_a_threshold_that_is_none(self, clip: float) -> None:
        with pytest.raises(ValueError, match=f"`clip` should be.*Found `clip = {clip}`"):
            make().clipped(clip)

    def test_leaves_the_squares_of_examples_alone(self) -> None:
        """They stand for the loss's curvature, which clamping the message does not change."""
        moments = make()
        clipped = moments.clipped(0.5)
        assert_same_bytes(clipped.squared_example_values, moments.squared_example_values)

    def test_works_on_values_alone(self) -> None:
        moments = Moments.of_values({"a": torch.tensor([0.1, 3.0])}, input_size=1).clipped(1.0)
        assert moments.squared_values["a"].tolist() == pytest.approx([0.01, 1.0])
        assert moments.squared_sensitivities is None

    def test_measured_with_clip_they_average(self) -> None:
        case = named("mlp")
        each = [measure(case.message(), case.inputs(seed=s), Exact(), clip=0.05) for s in range(3)]
        mean = Moments.average(each)
        assert (mean.clip, mean.count) == (0.05, 3)
        assert mean.clipped(0.05) is mean


def assert_same_file(path: Path, moments: Moments) -> None:
    loaded = Moments.load(path)
    for field, value in tensors(moments):
        assert_same_bytes(getattr(loaded, field), value)
        assert {n: t.dtype for n, t in getattr(loaded, field).items()} == {
            n: t.dtype for n, t in value.items()
        }
    assert [field for field, _ in tensors(loaded)] == [field for field, _ in tensors(moments)]
    assert (loaded.count, loaded.clip, loaded.input_size) == (
        moments.count,
        moments.clip,
        moments.input_size,
    )


class TestFiles:
    @pytest.mark.parametrize(
        "moments",
        [
            make(),
            make(count=2.5, clip=0.1),
            make(second_squares=None),
            make(squared_sensitivities=None, second_squares=None),
            make(
                squared_values={"a/b": torch.rand(0) + 1},
                squared_sensitivities=None,
                squared_example_values=None,
            ),
            make(squared_example_values=None),
        ],
        ids=[
            "all",
            "clip and count",
            "exact",
            "values alone",
            "odd names, no entries",
            "no examples",
        ],
    )
    def test_what_is_saved_is_loaded(self, moments: Moments, tmp_path: Path) -> None:
        moments.save(tmp_path / "moments.npz")
        assert_same_file(tmp_path / "moments.npz", moments)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_measured_ones(self, dtype: torch.dtype, tmp_path: Path) -> None:
        case = named("scalar")
        moments = measure(case.message(dtype), case.inputs(dtype), Sketch(probes=2))
        moments.save(str(tmp_path / "no suffix"))
        assert_same_file(tmp_path / "no suffix", moments)

    def test_tensors_of_a_graph_are_saved(self, tmp_path: Path) -> None:
        graph = {"a": torch.ones(2, requires_grad=True) * 2}
        Moments(graph, graph, input_size=1).save(tmp_path / "file")
        assert Moments.load(tmp_path / "file").squared_values["a"].tolist() == [2.0, 2.0]

    def test_numpy_reads_it_without_pickle(self, tmp_path: Path) -> None:
        make().save(tmp_path / "file.npz")
        with np.load(tmp_path / "file.npz", allow_pickle=False) as archive:
            expected = make().squared_values["layer.weight"].numpy()
            assert np.array_equal(archive["squared_values/layer.weight"], expected)
            assert json.loads(archive["header"].tobytes())["input_size"] == 7

    def test_the_same_moments_are_the_same_bytes(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            make().save(tmp_path / name)
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()

    def test_replaces_an_old_file(self, tmp_path: Path) -> None:
        make(1).save(tmp_path / "file")
        make(2).save(tmp_path / "file")
        assert_same_file(tmp_path / "file", make(2))
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


class TestFailedWrites:
    """All of it or nothing: the old file stays, and no part of a new one."""

    def check(self, folder: Path) -> None:
        with pytest.raises(OSError, match="disk full"):
            make(2).save(folder / "file")
        assert [path.name for path in folder.iterdir()] == ["file"]
        assert_same_file(folder / "file", make(1))

    def test_while_writing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make(1).save(tmp_path / "file")
        open_handle = os.fdopen

        class Full(io.BytesIO):
            def __init__(self, handle: int, mode: str) -> None:
                super().__init__()
                self.real = open_handle(handle, mode)

            def write(self, content: Any) -> int:
                self.real.write(content[: len(content) // 2])
                raise OSError("disk full")

            def close(self) -> None:
                self.real.close()
                super().close()

        monkeypatch.setattr("os.fdopen", Full)
        self.check(tmp_path)

    def test_while_moving(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make(1).save(tmp_path / "file")

        def refuse(*_: object) -> None:
            raise OSError("disk full")

        monkeypatch.setattr("os.replace", refuse)
        self.check(tmp_path)

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="missing"):
            make().save(tmp_path / "missing" / "file")


class TestDamagedFiles:
    MESSAGE = r"File `.*` should be one that `Moments.save` wrote.*Measure and save again"

    def check(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=self.MESSAGE):
            Moments.load(path)

    def test_truncated_anywhere(self, tmp_path: Path) -> None:
        make().save(tmp_path / "whole")
        content = (tmp_path / "whole").read_bytes()
        for length in range(0, len(content), 37):
            self.check(tmp_path / "part", content[:length])

    def test_a_changed_number(self, tmp_path: Path) -> None:
        make().save(tmp_path / "whole")
        content = bytearray((tmp_path / "whole").read_bytes())
        number = make().squared_values["layer.weight"].numpy().tobytes()[:8]
        content[content.index(number)] ^= 1
        self.check(tmp_path / "changed", bytes(content))

    def test_a_changed_byte_is_an_error_or_changes_nothing(self, tmp_path: Path) -> None:
        """Some bytes of a zip file mean nothing; no other may change a number unnoticed."""
        make().save(tmp_path / "whole")
        content = (tmp_path / "whole").read_bytes()
        for index in range(0, len(content), 3):
            changed = bytearray(content)
            changed[index] ^= 1 << (index % 8)
            (tmp_path / "changed").write_bytes(changed)
            try:
                Moments.load(tmp_path / "changed")
            except ValueError:
                continue
            assert_same_file(tmp_path / "changed", make())

    @pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", b"\x80\x04N."])
    def test_something_else(self, content: bytes, tmp_path: Path) -> None:
        self.check(tmp_path / "file", content)

    def test_a_numpy_array(self, tmp_path: Path) -> None:
        np.save(tmp_path / "array.npy", np.ones(3))
        self.check(tmp_path / "file", (tmp_path / "array.npy").read_bytes())

    def test_a_foreign_archive(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "foreign.npz", weights=np.ones(3))
        self.check(tmp_path / "file", (tmp_path / "foreign.npz").read_bytes())

    @pytest.mark.parametrize("header", ["[]", "{}", '{"input_size": 1, "other": 2}', "{"])
    def test_a_foreign_header(self, header: str, tmp_path: Path) -> None:
        arrays = {
            "header": np.frombuffer(header.encode(), np.uint8),
            "squared_values/a": np.ones(1),
        }
        np.savez(tmp_path / "foreign.npz", **arrays)
        self.check(tmp_path / "file", (tmp_path / "foreign.npz").read_bytes())

    def test_a_pickle_is_not_executed(self, tmp_path: Path) -> None:
        arrays = {"header": np.array([{"a": 1}], dtype=object)}
        np.savez(tmp_path / "foreign.npz", **arrays)
        self.check(tmp_path / "file", (tmp_path / "foreign.npz").read_bytes())

    def test_no_file_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="missing"):
            Moments.load(tmp_path / "missing")
