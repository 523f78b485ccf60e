"""Specifications as values: 'name(argument, option=value)', read, changed, written and built."""

import ast
import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from torch import nn

from gradveil._checks import (
    WrongArgument,
    WrongType,
    WrongValue,
    check_kind,
    first_line,
    suggestion,
)
from gradveil._imports import AllowImports, imported, makes, owned_by, takes
from gradveil.defenses import Defense

from ._entries import ATTACKS, DEFENSES, ESTIMATORS, EVERYTHING, MODELS, Entry

if TYPE_CHECKING:  # who builds defenses imports no attack
    from gradveil.attacks import Attack

_NAME = r"[^\W\d][\w.\-]*(?::[\w.<>]*)?|<[^<>]*>"
"""As the catalog lists it, as it is imported, or words for what has no specification."""

OTHER_SPELLINGS = {"dpsgd": "clamped-noise", "optimal-dpsgd": "optimal-clamped-noise"}
"""What the paper calls DP-SGD is not differentially private, so it has another name here."""

_OPTION = r"[^\W\d]\w*(?=\s*=)"
_PLAIN = r"""[+-]?\.?\d[\w.]*(?:(?<=[eE])[+-]\d+)?|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
_WORDS = {"True": True, "False": False, "None": None, "inf": math.inf}

_LONGEST, _DEEPEST = 10_000, 50
"""Characters of a text, and brackets inside of brackets: texts come from elsewhere, too."""


class _Reader:
    """Reads one text from left to right; nothing in it is evaluated but numbers and strings."""

    def __init__(self, text: str, what: str) -> None:
        self._text, self._what, self._place, self._depth = text, what, 0, 0

    def spec(self) -> "Spec":
        """The specification that the whole text is."""
        if len(self._text) > _LONGEST:
            self._fail(f"{len(self._text)} characters")
        found = self._value()
        if not isinstance(found, Spec):
            self._fail("no name")
        if self._text[self._place :].strip():
            self._fail()
        return found

    def _take(self, pattern: str) -> str:
        """The next piece, if it is of this kind; otherwise nothing."""
        found = re.compile(rf"\s*({pattern})").match(self._text, self._place)
        if found is None:
            return ""
        self._place = found.end()
        return found.group(1)

    def _value(self) -> Any:
        if infinite := self._take(r"[+-]inf\b"):
            return float(infinite)
        if plain := self._take(_PLAIN):
            try:
                value = ast.literal_eval(plain)
            except (ValueError, SyntaxError):
                self._fail(f"`{plain[:40]}`")
            return self._fail(f"`{plain}`") if isinstance(value, complex) else value
        if self._take(r"\["):
            return [self._value() for _ in self._until("]")]
        if self._take(r"\("):
            start = self._place
            values = [self._value() for _ in self._until(")")]
            comma = self._text[start : self._place - 1].rstrip().endswith(",")
            return values[0] if len(values) == 1 and not comma else tuple(values)
        name = self._take(_NAME) or self._fail()
        name = OTHER_SPELLINGS.get(name, name)
        if name in _WORDS:
            return _WORDS[name]
        return Spec(name, self._arguments(name) if self._take(r"\(") else {})

    def _arguments(self, name: str) -> dict[str, Any]:
        """By option; those without one by the names that the registered class has for them."""
        values: list[Any] = []
        options: dict[str, Any] = {}
        for _ in self._until(")"):
            if option := self._take(_OPTION):
                if option in options:
                    self._fail(f"the option `{option}` twice")
                self._take("=")
                options[option] = self._value()
            elif options:
                self._fail()
            else:
                values.append(self._value())
        known = EVERYTHING | MODELS
        asked = values and name in known  # what has options only is not imported yet
        taken = inspect.signature(known[name].build).parameters if asked else {}
        names = [n for n, p in taken.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        by_name = dict(zip(names, values, strict=False))
        twice = sorted(by_name.keys() & options.keys())
        own, advice = f"The name `{name}`", "Name its options, as `name(option=value)`."
        if values and name not in known:
            expected = "be one of the catalog's where arguments have no names"
            raise WrongValue(own, expected, "another", suggestion(name, known).strip() or advice)
        if twice or len(values) > len(names):
            found = f"{twice} twice" if twice else f"{len(values)} arguments without a name"
            raise WrongValue(own, "take its arguments", found, advice)
        return {**by_name, **options}

    def _until(self, end: str) -> Iterator[None]:
        """Once for each part up to the bracket that closes; commas are between them."""
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail("too many nested parentheses")
        while not self._take(re.escape(end)):
            yield
            if not self._take(",") and not self._text[self._place :].lstrip().startswith(end):
                self._fail()
        self._depth -= 1

    def _fail(self, problem: str = "") -> NoReturn:
        rest = self._text[self._place :].lstrip()[:40]
        problem = problem or f"{rest or 'its end'!r} at character {self._place + 1}"
        expected = (
            "read `name` or `name(option=value, ...)`, where values are plain values or names with"
            " options of their own, as in `gradient-pruning(ratio=0.9, noise=gradient-noise(0.1))`"
        )
        raise WrongValue(f"A {self._what}", expected, f"{problem} in {self._text[:200]!r}")


AMOUNTS = {"noise_multiplier": 1.0, "scale": 1.0, "ratio": 0.5, "step": 1.0, "clip": 1.0}
"""What says how much a defense does, each with a placeholder for one that is left out."""

SETTLED = {"scale", "ratio", "utility_budget", "target_error"}
"""With one of these a defense leaves nothing out."""

_DEFENSE = owned_by(lambda kind: issubclass(kind, Defense))
_ATTACK, _ESTIMATOR = owned_by(partial(takes, count=2)), owned_by(partial(takes, count=3))
_TAKES = "a class whose objects take"
KINDS: dict[str, tuple[Mapping[str, Entry], Callable[[Any], bool], str]] = {
    "defense": (DEFENSES, _DEFENSE, "a subclass of `gradveil.Defense`"),
    "attack": (ATTACKS, _ATTACK, f"{_TAKES} (observation, generator)"),
    "estimator": (ESTIMATORS, _ESTIMATOR, f"{_TAKES} (message, inputs, generator)"),
    "part": (
        EVERYTHING,
        lambda found: any(fits(found) for fits in (_DEFENSE, _ATTACK, _ESTIMATOR)),
        "a defense, an attack or an estimator",
    ),
    "model": (
        MODELS,
        makes(nn.Module),
        "a subclass of `torch.nn.Module`, or a Python function of yours that returns one",
    ),
}
"""Registered names; the test that what is imported must pass before it is called, and its words."""


def _named(name: str, kind: str, allow_imports: AllowImports) -> Any:
    """The class or factory of this name."""
    entries, fits, wanted = KINDS[kind]
    if ":" in name:
        return imported(name, kind, allow_imports, fits, wanted)
    if name in entries:
        return entries[name].build
    own = "or, where imports are allowed, 'package.module:name' for your own"
    expected, advice = f"be one of {', '.join(entries)}; {own}", suggestion(name, entries).strip()
    if kind == "part" and not advice:
        advice = "Build it in Python." if name.startswith("<") else "Put words into quotes."
    raise WrongValue(f"A {kind}", expected, f"`{name}`", advice)


@dataclass(frozen=True)
class Spec:
    """The name of a thing and the arguments it is made with: `optimal-noise(scale=0.1)`.

    The only reader and writer of such texts. ``Spec.parse(str(spec)) == spec``. In a text, the
    arguments of registered names may go without their options, as in Python.

    Args:
        name: As the catalog lists it, or the import path of a user's own, `package.module:Class`.
        arguments: By option, plain values (numbers, words, `None`, lists and tuples of them) or
            further Specs.

    >>> spec = Spec.parse("optimal-pruning(ratio=0.9, noise=gradient-noise(0.01))")
    >>> spec.name, spec.arguments["ratio"], spec.arguments["noise"]
    ('optimal-pruning', 0.9, Spec.parse('gradient-noise(scale=0.01)'))
    >>> str(spec.with_(ratio=0.5))
    'optimal-pruning(ratio=0.5, noise=gradient-noise(scale=0.01))'
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = isinstance(self.name, str) and re.fullmatch(_NAME, self.name)
        if not named or self.name in _WORDS:
            expected = "be a name as the catalog lists it, or package.module:Class"
            advice = "Specifications should read `name` or `name(option=value, ...)`."
            raise WrongValue("name", expected, repr(self.name), advice)
        own = f"Parameter `arguments` of `{self.name}`"
        if not all(isinstance(key, str) and key.isidentifier() for key in self.arguments):
            raise WrongValue(own, "have options as keys", str([*self.arguments]))
        for value in _leaves([*self.arguments.values()]):
            plain = isinstance(value, (bool, int, float, str, type(None), Spec))
            if not plain or value != value:
                expected = "hold numbers, words, None, lists and tuples of these, or Specs"
                raise WrongType(own, expected, f"{type(value).__name__} ({value!r})")
        object.__setattr__(self, "arguments", {**self.arguments})

    @classmethod
    def parse(cls, text: str, what: str = "specification") -> "Spec":
        """The specification that a text is; nothing in it is evaluated or imported.

        ``<words>`` stand for values without a specification, as `spec_of` writes them: such a
        specification can be shown, but not built. Errors name what it is for, as "defense".
        """
        check_kind(text, "spec", str, f"Give the text of a {what}, as `name(option=value)`.")
        return _Reader(text, what).spec()

    def __str__(self) -> str:
        items = [f"{key}={_text(value)}" for key, value in self.arguments.items()]
        return f"{self.name}({', '.join(items)})" if items else self.name

    def __repr__(self) -> str:
        return f"Spec.parse({str(self)!r})"

    def __hash__(self) -> int:
        return hash((self.name, frozenset(self.arguments)))

    @property
    def imports(self) -> list[str]:
        """The import paths that it and its parts name."""
        found = [self.name] if ":" in self.name else []
        for value in _leaves([*self.arguments.values()]):
            found += value.imports if isinstance(value, Spec) else []
        return found

    def with_(self, **arguments: Any) -> "Spec":
        """The same with other arguments."""
        return Spec(self.name, {**self.arguments, **arguments})

    @property
    def amounts(self) -> list[tuple[str, float]]:
        """How much a defense does, and the noise inside of it, as scale, ratio, clip or step.

        >>> Spec.parse("optimal-pruning(0.9, noise=gradient-noise(0.01))").amounts
        [('ratio', 0.9), ('scale', 0.01)]
        """
        amounts: list[tuple[str, float]] = []
        for key, value in self.arguments.items():
            if isinstance(value, Spec):
                amounts += value.amounts
            elif key in AMOUNTS and isinstance(value, (int, float)):
                amounts.append((key, float(value)))
        return amounts

    @property
    def missing(self) -> dict[str, Any]:
        """The amounts that a defense leaves out, or its noise does, each with a placeholder.

        >>> Spec.parse("optimal-pruning(noise=optimal-noise)").missing
        {'ratio': 0.5, 'noise': Spec.parse('optimal-noise(scale=1.0)')}
        """
        noise, given = self.arguments.get("noise"), self.arguments.keys()
        inner = {"noise": noise.completed()} if isinstance(noise, Spec) and noise.missing else {}
        if self.name not in DEFENSES or given & SETTLED:
            return inner
        takes = inspect.signature(DEFENSES[self.name].build).parameters
        needed = {n for n, p in takes.items() if n == "clip" or p.default in (p.empty, None)}
        return {n: usual for n, usual in AMOUNTS.items() if n in needed - given} | inner

    def completed(self) -> "Spec":
        """The same with a placeholder for every amount that is missing."""
        return self.with_(**self.missing)

    def build(self, kind: str, *, allow_imports: AllowImports = False) -> Any:
        """The "defense", "attack", "estimator", "model" or "part" of one that this describes.

        Names may be import paths, whose code is then run, where `allow_imports` is True, for text
        that the local user typed, or lists them. Never for text that comes from elsewhere.
        """

        def built(value: Any) -> Any:
            is_spec = isinstance(value, Spec)
            return value.build("part", allow_imports=allow_imports) if is_spec else value

        make = _named(self.name, kind, allow_imports)
        options = {key: each(built, value) for key, value in self.arguments.items()}
        try:
            inspect.signature(make).bind(**options)
        except TypeError as error:
            own, known = f"Parameter `options` of `{self.name}`", parameters_of(make)
            raise WrongValue(own, f"fit ({known})", f"{options!r}: {error}") from None
        try:
            made = make(**options)
        except WrongArgument as error:
            raise error.described(f"{error.subject} of `{self.name}`") from error
        except (Exception, SystemExit) as error:  # a user's class may raise anything
            said = error if isinstance(error, (TypeError, ValueError)) else first_line(error)
            raise ValueError(f"`{self.name}`: {said}") from error
        _, fits, wanted = KINDS[kind]
        if kind != "part" and not fits(type(made)):
            found = f"that '{self}' gives a {type(made).__name__}"
            raise WrongValue(f"A {kind}", f"be {wanted}", found)
        return made


def each(change: Callable[[Any], Any], value: Any) -> Any:
    """What becomes of a value, or of each part of lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)(each(change, part) for part in value)
    return change(value)


def _leaves(value: Any) -> Iterator[Any]:
    """A value, or the parts of lists and tuples."""
    for part in value if isinstance(value, (list, tuple)) else ():
        yield from _leaves(part)
    if not isinstance(value, (list, tuple)):
        yield value


def parameters_of(make: Callable[..., Any]) -> str:
    """What a class or a function takes, with the defaults that are plain."""
    items = []
    for one in inspect.signature(make).parameters.values():
        plain = isinstance(one.default, (bool, int, float, str, tuple, type(None)))
        default = repr(one.default) if plain else "..."
        if one.name != "_" and one.kind is not one.VAR_KEYWORD:
            items.append(one.name if one.default is one.empty else f"{one.name}={default}")
    return ", ".join(items)


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        inside = ", ".join(_text(part) for part in value)
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return str(value) if isinstance(value, Spec) else repr(value)


def spec_of(thing: object) -> str:
    """The specification of a defense, an attack or an estimator: what differs from the defaults.

    >>> from gradveil import OptimalNoise
    >>> spec_of(OptimalNoise(0.1, cap=10.0))
    'optimal-noise(scale=0.1, cap=10.0)'
    """
    return str(_described(thing))


def _described(value: object) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    words = getattr(value, "spec_words", None)
    if words is not None:  # samples, networks and shapes have no specification
        return Spec(f"<{words}>")
    changed = {name: each(_described, option) for name, option in _changed(value).items()}
    return Spec(_name_of(type(value)), changed)


def _name_of(kind: type) -> str:
    """As registered, or the import path."""
    package = kind.__module__.removeprefix("gradveil.").partition(".")[0]
    for entry in EVERYTHING.values():
        if entry.place == f"{package}:{kind.__qualname__}" and entry.build is kind:
            return entry.name
    return f"{kind.__module__}:{kind.__qualname__}"


def _changed(thing: object) -> dict[str, Any]:
    """The options that are not at their defaults."""
    usual = {n: p.default for n, p in inspect.signature(type(thing)).parameters.items()}
    for option in dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ():
        if option.default_factory is not dataclasses.MISSING:
            usual[option.name] = option.default_factory()
    now = {name: getattr(thing, name) for name in usual if hasattr(thing, name)}
    return {
        name: value
        for name, value in now.items()
        if type(value) is not type(usual[name]) or value != usual[name]
    }


def shown_name(text: str) -> str:
    """The name without its arguments; a text that is no specification as it is.

    >>> shown_name("adaptive(prior=None)"), shown_name("<b>no specification</b>")
    ('adaptive', '<b>no specification</b>')
    """
    try:
        return Spec.parse(text).name
    except ValueError:
        return text


def build_defense(spec: str | Spec, *, allow_imports: AllowImports = False) -> Defense:
    """A defense from its specification.

    Args:
        spec: As text or as a `Spec`; only registered names, unless imports are allowed.
        allow_imports: For ``package.module:Class(...)``, whose code is then run: True for text of
            the local user's, or the import paths that are allowed.

    >>> build_defense("optimal-pruning(ratio=0.9, noise=gradient-noise(0.01))").ratio
    0.9
    """
    made: Defense = _parsed(spec, "defense").build("defense", allow_imports=allow_imports)
    return made


def build_attack(spec: str | Spec, *, allow_imports: AllowImports = False) -> "Attack":
    """An attack from its specification; arguments as for `build_defense`.

    >>> build_attack("inverting-gradients(steps=100, total_variation=1e-2)").steps
    100
    """
    made: Attack = _parsed(spec, "attack").build("attack", allow_imports=allow_imports)
    return made


def _parsed(spec: str | Spec, what: str) -> Spec:
    return spec if isinstance(spec, Spec) else Spec.parse(spec, what)
