"""Specifications as values: read, written, changed, completed, built."""

import pickle
import random

import pytest

import gradveil
from gradveil.catalog import DEFENSES, Spec, build_defense, spec_of

TEXTS = [
    "no-defense",
    "optimal-noise(scale=0.1)",
    "optimal-noise(0.1, cap=inf)",
    "optimal-noise(scale=1e-05, estimator='per-example')",
    "optimal-pruning(ratio=0.9, noise=gradient-noise(0.01))",
    "optimal-noise(scale=0.1, estimator=sketch(probes=3), source=model-source(refresh_every=5))",
    "mlp(sizes=[4, 8, 3], activation='leaky-relu')",
    "thing((1,), (), [], (1, 2), None, True, -3, -inf, key='it\\'s (a, \"b\")')",
    "package.module:Class.preset(1, x=other.module:Part)",
]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_written_is_read_again(text: str) -> None:
    spec = Spec.parse(text)
    assert Spec.parse(str(spec)) == spec
    assert hash(Spec.parse(str(spec))) == hash(spec)
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize("text", TEXTS[:6])
def test_the_text_itself_is_canonical(text: str) -> None:
    assert str(Spec.parse(text)) == text


def test_parts() -> None:
    spec = Spec.parse("optimal-noise(scale=0.1, source=model-source(refresh_every=5))")
    assert spec.name == "optimal-noise"
    assert spec.options == {"scale": 0.1, "source": Spec("model-source", {"refresh_every": 5})}
    pruning = Spec.parse("optimal-pruning(0.5, noise=gradient-noise(0.1))")
    assert pruning.positional == [0.5]
    assert pruning.named().options["ratio"] == 0.5


def test_the_order_of_options_does_not_matter() -> None:
    assert Spec.parse("a(x=1, y=2)") == Spec.parse("a(y=2, x=1)")
    assert Spec.parse("a(x=1, y=2)") != Spec.parse("a(x=1, y=3)")


def test_spaces_and_a_last_comma_do_not_matter() -> None:
    assert Spec.parse("  a ( x = 1 ,\n y = b ( 2 , ) , ) ") == Spec.parse("a(x=1, y=b(2))")


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("gradient-noise", "gradient-noise(scale=2)"),
        ("gradient-noise(0.1)", "gradient-noise(scale=2)"),
        ("optimal-noise(0.1, cap=3.0)", "optimal-noise(scale=2, cap=3.0)"),
    ],
)
def test_with_other_arguments(text: str, changed: str) -> None:
    assert str(Spec.parse(text).with_(scale=2)) == changed


def test_hyphens_inside_quotes_survive() -> None:
    text = 'optimal-noise(scale=0.1, estimator="per-example")'
    assert build_defense(text) == gradveil.OptimalNoise(0.1, estimator="per-example")


def test_an_infinite_option_comes_back() -> None:
    defense = gradveil.OptimalNoise(0.1, cap=float("inf"))
    assert build_defense(spec_of(defense)) == defense


@pytest.mark.parametrize("name", DEFENSES)
def test_a_completed_defense_can_be_built(name: str) -> None:
    given = {"qsgd": "qsgd(8)", "soteria": "soteria(0.5)"}
    spec = Spec.parse(given.get(name, name))
    assert spec.completed().missing == frozenset()
    assert type(build_defense(spec.completed())) is DEFENSES[name].build


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "no name"),
        ("   ", "no name"),
        ("(1)", "no name"),
        ("a,", "no name"),
        ("a(", "never closed"),
        ("a(x=1", "never closed"),
        ("a#b", "never closed"),
        ("a)", "unmatched ')'"),
        ("a b", "forgot a comma"),
        ("a(1 2)", "forgot a comma"),
        ("a(,)", "invalid syntax at character 3"),
        (":x", "invalid syntax at character 1"),
        ("a(x=1, x=2)", "the option `x` twice"),
        ("a(x=1, 2)", "positional argument follows keyword argument"),
        ("a(x=1+1)", "`1+1`"),
        ("a(x='b)", "at character 5"),
        ("a(x=b.c().d)", "`b.c().d`"),
        ("a(x=lambda: 1)", "forgot a comma"),
        ("a(x={})", "`{}`"),
        ("a(*b)", "`*b`"),
        ("a(**b)", "`**b`"),
        ("a(my-option=1)", "`my-option=1`"),
        ("a(b'x')", "`b'x'`"),
        ("a(f'{b}')", "`f'{b}'`"),
        ("a(1j)", "`1j`"),
        ("a(-b)", "`-b`"),
        ("a(x=<Gaussian)", "at character 5"),
        ("a(" * 4000, "too many nested parentheses"),
        ("-" * 9000 + "1", "MemoryError"),
        ("a" * 20_000, "20000 characters"),
        (f"a({'9' * 5000})", "digits"),
        ("a(\0)", "null bytes"),
        ("a(\ud800)", "UnicodeEncodeError"),
    ],
)
def test_a_text_that_is_none_gets_a_clear_error(text: str, found: str) -> None:
    with pytest.raises(ValueError, match="should read `name` or") as error:
        Spec.parse(text)
    assert found in str(error.value)


def test_only_text_is_parsed() -> None:
    with pytest.raises(
        TypeError,
        match=r"`spec` should be of type str. Found int \(3\). Give the text of a defense",
    ):
        build_defense(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), {"a": 1}, object(), [1, {2}]])
def test_only_plain_values_are_arguments(value: object) -> None:
    with pytest.raises(TypeError, match="Parameter `arguments` of `a` should hold numbers"):
        Spec("a", {"x": value})


def test_an_option_that_was_given_by_position_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\['scale'\] twice"):
        Spec.parse("gradient-noise(0.1, scale=0.2)").named()


def test_random_texts_are_specifications_or_clear_errors() -> None:
    """Pieces of specifications in random order: no other error, and what is read comes back."""
    words = ["a", "x=", "optimal-noise", "1", "-2.5e-3", "inf", "None", "'q'"]
    pieces = [*"()[],=-.:'\" \n<{+", *words]
    dice, read, clear = random.Random(0), 0, True
    for _ in range(20_000):
        text = "".join(dice.choices(pieces, k=dice.randint(1, 10)))
        try:
            spec = Spec.parse(text)
        except ValueError as error:
            clear = clear and "should read `name` or" in str(error)
            continue
        read += 1
        assert Spec.parse(str(spec)) == spec, text
    assert clear
    assert read > 100


@pytest.mark.parametrize("name", ["", "None", "inf", "a b", "a(", "x=1", 3])
def test_bad_names(name: object) -> None:
    with pytest.raises(ValueError, match="Parameter `name` should be"):
        Spec(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{1: 2}, {0: 1, 2: 3}, {"a b": 1}, {"": 1}], ids=str)
def test_bad_keys(arguments: dict[int | str, object]) -> None:
    with pytest.raises(ValueError, match="should have options as keys, or positions from 0"):
        Spec("a", arguments)


def test_words_for_what_has_no_specification_are_read_only_to_be_shown() -> None:
    text = "optimal-noise(target_error=0.1, prior=<Gaussian fitted to 9 examples>)"
    spec = Spec.parse(text)
    assert str(spec) == text
    assert spec.amounts == []
    with pytest.raises(ValueError, match="Found `<Gaussian fitted to 9 examples>`, which stands"):
        spec.build("defense")


def test_the_name_of_a_local_class_is_read_back() -> None:
    class Local(gradveil.GradientNoise):
        pass

    assert Spec.parse(spec_of(Local(0.1))).name.endswith("<locals>.Local")


@pytest.mark.parametrize(
    ("text", "amounts"),
    [
        ("gradient-noise(0.1)", [("scale", 0.1)]),
        ("clamped-noise(scale=0.1, clip=2)", [("scale", 0.1), ("clip", 2.0)]),
        ("optimal-noise(0.1, source=model-source(refresh_every=3))", [("scale", 0.1)]),
        ("my.module:Own(scale=0.1, other=2)", [("scale", 0.1)]),
        ("rounding(step=0.5)", [("step", 0.5)]),
        ("optimal-noise(scale=None, utility_budget=0.1)", []),
        ("no-defense", []),
    ],
)
def test_amounts(text: str, amounts: list[tuple[str, float]]) -> None:
    assert Spec.parse(text).amounts == amounts


def test_numbers_are_rounded_inside_too() -> None:
    spec = Spec.parse("a(0.123456, b=[1.23456e-7, (2, 'x')], c=d(x=9.87654321, n=123456))")
    assert str(spec.rounded()) == "a(0.1235, b=[1.235e-07, (2, 'x')], c=d(x=9.877, n=123456))"
