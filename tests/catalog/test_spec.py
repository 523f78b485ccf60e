"""Specifications as values: read, written, changed, completed, built."""

import pickle
import random
import subprocess
import sys

import pytest

import gradveil
from gradveil._checks import WrongType, WrongValue
from gradveil.catalog import DEFENSES, Spec, build_defense, spec_of

TEXTS = [
    "no-defense",
    "optimal-noise(scale=0.1)",
    "optimal-noise(scale=0.1, cap=inf)",
    "optimal-noise(scale=1e-05, estimator='per-example')",
    "optimal-pruning(ratio=0.9, noise=gradient-noise(scale=0.01))",
    "optimal-noise(scale=0.1, estimator=sketch(probes=3), source=model-source(refresh_every=5))",
    "mlp(sizes=[4, 8, 3], activation='leaky-relu')",
    "thing(a=(1,), b=(), c=[], d=(1, [2]), e=None, f=True, g=-3, h=-inf, i='it\\'s (a, \"b\")')",
    "package.module:Class.preset(y=1, x=other.module:Part)",
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
    assert spec.arguments == {"scale": 0.1, "source": Spec("model-source", {"refresh_every": 5})}
    pruning = Spec.parse("optimal-pruning(0.5, noise=gradient-noise(0.1))")
    assert pruning.arguments == {"ratio": 0.5, "noise": Spec("gradient-noise", {"scale": 0.1})}
    assert Spec.parse("mlp([4, 3])").arguments == {"sizes": [4, 3]}


def test_the_order_of_options_does_not_matter() -> None:
    assert Spec.parse("a(x=1, y=2)") == Spec.parse("a(y=2, x=1)")
    assert Spec.parse("a(x=1, y=2)") != Spec.parse("a(x=1, y=3)")


def test_spaces_and_a_last_comma_do_not_matter() -> None:
    assert Spec.parse("  a ( x = 1 ,\n y = b ( z = 2 , ) , ) ") == Spec.parse("a(x=1, y=b(z=(2)))")


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
    spec = Spec.parse("qsgd(8)" if name == "qsgd" else name)
    assert spec.completed().missing == {}
    assert type(build_defense(spec.completed())) is DEFENSES[name].build


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "'its end' at character 1"),
        ("   ", "'its end' at character 1"),
        ("(1)", "no name"),
        ("(1,)", "no name"),
        ("a,", "',' at character 2"),
        ("a(", "'its end' at character 3"),
        ("a(x=1", "'its end' at character 6"),
        ("a#b", "'#b' at character 2"),
        ("a)", "')' at character 2"),
        ("a b", "'b' at character 2"),
        ("a(x=1 2)", "'2)' at character 6"),
        ("a(,)", "',)' at character 3"),
        (":x", "':x' at character 1"),
        ("a(x=1, x=2)", "the option `x` twice"),
        ("a(x=1, 2)", "'2)' at character 7"),
        ("a(x=1+1)", "'+1)' at character 6"),
        ("a(x='b)", "at character 5"),
        ("a(x=b.c().d)", "'.d)' at character 10"),
        ("a(x=lambda: 1)", "'1)' at character 12"),
        ("a(x={})", "'{})' at character 5"),
        ("a(*b)", "'*b)' at character 3"),
        ("a(**b)", "'**b)' at character 3"),
        ("a(my-option=1)", "'=1)' at character 12"),
        ("a(x=b'x')", "at character 6"),
        ("a(x=f'{b}')", "at character 6"),
        ("a(x=1j)", "`1j`"),
        ("a(x=-b)", "'-b)' at character 5"),
        ("a(x=<Gaussian)", "'<Gaussian)' at character 5"),
        ("a(" * 4000, "too many nested parentheses"),
        ("-" * 9000 + "1", "at character 1"),
        ("a" * 20_000, "20000 characters"),
        (f"a(x={'9' * 5000})", "`99999"),
        ("a(\0)", "at character 3"),
        ("a(\ud800)", "at character 3"),
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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gradient-noise(0.1, scale=0.2)", r"Found \['scale'\] twice"),
        ("no-defense(1)", "Found 1 arguments without a name"),
    ],
)
def test_arguments_without_an_option_are_those_of_registered_names(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"should take its arguments.*{says}"):
        Spec.parse(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("laplace(0.1)", r"The name `laplace` .* Did you mean `laplace-noise`\?$"),
        ("optimal-pruning(0.9, noise=optimal-nois(0.1))", r"`optimal-nois` .* `optimal-noise`\?$"),
        ("my.module:Own(0.1)", r"`my.module:Own` .* Name its options, as `name\(option=value\)`"),
    ],
)
def test_an_unknown_name_is_the_complaint_not_its_arguments(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        Spec.parse(text)
    assert "should be one of the catalog's" in str(error.value)


@pytest.mark.parametrize(
    ("text", "argument", "kind"),
    [
        ("gradient-noise(-1)", "Parameter `scale` of `gradient-noise`", WrongValue),
        ("gradient-noise('x')", "Parameter `scale` of `gradient-noise`", WrongType),
        (
            "optimal-pruning(0.9, noise=optimal-noise(1, source='x'))",
            "Parameter `source` of `optimal-noise`",
            WrongValue,
        ),
    ],
)
def test_a_wrong_argument_of_a_registered_class_stays_a_value(text, argument, kind):
    with pytest.raises(kind) as error:
        build_defense(text)
    assert error.value.argument == argument
    assert str(error.value).startswith(f"{argument} should be ")


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
            clear = clear and (
                "should read `name` or" in str(error)
                or "should take its arguments" in str(error)
                or "should be one of the catalog's" in str(error)
            )
            continue
        read += 1
        assert Spec.parse(str(spec)) == spec, text
    assert clear
    assert read > 100


@pytest.mark.parametrize("name", ["", "None", "inf", "a b", "a(", "x=1", 3])
def test_bad_names(name: object) -> None:
    with pytest.raises(ValueError, match="Parameter `name` should be"):
        Spec(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{1: 2}, {"a b": 1}, {"": 1}], ids=str)
def test_bad_keys(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="should have options as keys"):
        Spec("a", arguments)


def test_words_for_what_has_no_specification_are_read_only_to_be_shown() -> None:
    text = "optimal-noise(target_error=0.1, prior=<Gaussian fitted to 9 examples>)"
    spec = Spec.parse(text)
    assert str(spec) == text
    assert spec.amounts == []
    with pytest.raises(ValueError, match=r"Found `<Gaussian fitted to 9 examples>`\. Build it in"):
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


def test_what_has_options_only_is_not_imported() -> None:
    """So a client that reads a server's text imports no attack."""
    code = (
        "import sys; from gradveil.catalog import Spec; Spec.parse('adaptive(restarts=1)')\n"
        "assert not [name for name in sys.modules if name.startswith('gradveil.attacks')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
