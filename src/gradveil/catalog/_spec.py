"""Specifications as values: 'name(argument, option=value)', read, changed, written and built."""

import ast
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn

from gradveil._imports import AllowImports, check_class, import_object, takes
from gradveil._suggest import suggestion
from gradveil.defenses import Defense

from ._entries import ATTACKS, DEFENSES, ESTIMATORS, EVERYTHING, OTHER_SPELLINGS, Entry

_NAME = re.compile(r"[^\s()\[\],='\"]+")


def check_name(name: object) -> None:
    """Require a name that text can hold, and that is no word for a value."""
    reserved = ("True", "False", "None", "inf")
    if not isinstance(name, str) or name in reserved or not _NAME.fullmatch(name):
        raise ValueError(
            "Parameter `name` should be a name as the catalog lists it, or package.module:Class."
            f" Found {name!r}; specifications should read `name` or `name(option=value, ...)`."
        )


def check_keys(arguments: Mapping[int | str, Any], name: str) -> None:
    """Require options, and positions without a gap."""
    places = sorted(key for key in arguments if isinstance(key, int))
    options = [key for key in arguments if not isinstance(key, int)]
    if places != [*range(len(places))] or not all(option.isidentifier() for option in options):
        raise ValueError(
            f"Parameter `arguments` of `{name}` should have options as keys, or positions from 0."
            f" Found {[*arguments]}."
        )


@dataclass(frozen=True)
class Kind:
    """Registered names, and the test that an imported class must pass before it is called."""

    word: str
    entries: Mapping[str, Entry]
    fits: Callable[[type], bool]
    wanted: str
    """What that test asks for, in words."""

    def find(self, name: str, allow_imports: AllowImports) -> Callable[..., Any]:
        """The class or factory of this name."""
        if ":" in name:
            imported = import_object(name, self.word, allow_imports)
            make: Callable[..., Any] = check_class(
                imported, name, self.word, self.fits, self.wanted
            )
            return make
        if name not in self.entries:
            raise ValueError(
                f"There is no {self.word} named `{name}`.{suggestion(name, self.entries)}"
                f" Known: {', '.join(self.entries)}; or, where imports are allowed,"
                " 'package.module:Class' for your own."
            )
        return self.entries[name].build

    def checked(self, made: Any, text: str) -> Any:
        """What was made, if it is of this kind."""
        if not self.fits(type(made)) and self.word != "part":
            raise ValueError(
                f"A {self.word} should be {self.wanted}. Found that {text!r} gives a"
                f" {type(made).__name__}."
            )
        return made


def _is_defense(kind: type) -> bool:
    return issubclass(kind, Defense)


def _is_attack(kind: type) -> bool:
    return takes(kind, 2)


def _is_estimator(kind: type) -> bool:
    return takes(kind, 3)


def _is_part(kind: type) -> bool:
    return _is_defense(kind) or _is_attack(kind) or _is_estimator(kind)


DEFENSE = Kind("defense", DEFENSES, _is_defense, "a subclass of `gradveil.Defense`")
ATTACK = Kind(
    "attack", ATTACKS, _is_attack, "a class whose objects are called as (observation, generator)"
)
ESTIMATOR = Kind(
    "estimator",
    ESTIMATORS,
    _is_estimator,
    "a class whose objects are called as (message, inputs, generator)",
)
PART = Kind("part", EVERYTHING, _is_part, "a defense, an attack or an estimator")
KINDS = {kind.word: kind for kind in (DEFENSE, ATTACK, ESTIMATOR)}


_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<number>[+-]?(?:inf\b|(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])))
    |(?P<name>[^\W\d][\w.\-]*(?::[\w.<>]*)?|:[\w.]+|\.[\w.]*:[\w.]*)
    |(?P<words><[^<>]*>)
    |(?P<sign>[()\[\],=])
    |(?P<end>$)
    )""",
    re.VERBOSE,
)
_WORDS = {"True": True, "False": False, "None": None}
_DEEPEST = 20

Make = Callable[[str, dict[int | str, Any]], Any]


@dataclass(frozen=True)
class Unwritable:
    """A value that has no specification, such as the data that a prior was fitted to."""

    text: str


class Parser:
    """Reads one text; `make(name, arguments)` makes each specification in it."""

    def __init__(self, text: str, what: str, make: Make, *, allow_words: bool = False) -> None:
        self._text, self._what, self._make = text, what, make
        self._allow_words = allow_words
        self._place, self._depth, self._last_comma = 0, 0, False
        self._next()

    def whole(self) -> Any:
        """The specification that the whole text is."""
        if self._kind != "name":
            self._fail()
        spec = self._spec()
        if self._kind != "end":
            self._fail()
        return spec

    def _next(self) -> None:
        matched = _TOKEN.match(self._text, self._place)
        if matched is None:
            self._start = self._place
            self._fail()
        self._kind = str(matched.lastgroup)
        self._token = matched.group(self._kind)
        self._start, self._place = matched.start(self._kind), matched.end()

    def _taken(self) -> str:
        token = self._token
        self._next()
        return token

    def _takes(self, sign: str) -> bool:
        if self._kind != "sign" or self._token != sign:
            return False
        self._next()
        return True

    def _spec(self) -> Any:
        name = self._taken()
        arguments: dict[int | str, Any] = {}
        if self._takes("("):
            for place, (option, value) in enumerate(self._until(")", self._item)):
                if option is None and len(arguments) > sum(isinstance(k, int) for k in arguments):
                    self._fail("a value without a name behind one with a name")
                key: int | str = place if option is None else option
                if key in arguments:
                    self._fail(f"the option `{key}` twice")
                arguments[key] = value
        return self._make(name, arguments)

    def _item(self) -> tuple[str | None, Any]:
        if self._kind == "name" and self._token.isidentifier():
            kind, token, start, place = self._kind, self._token, self._start, self._place
            self._next()
            if self._takes("="):
                return token, self._value()
            self._kind, self._token, self._start, self._place = kind, token, start, place
        return None, self._value()

    def _value(self) -> Any:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail(f"values nested more than {_DEEPEST} deep")
        value = self._plain() if self._kind != "sign" else self._collection()
        self._depth -= 1
        return value

    def _plain(self) -> Any:
        if self._kind == "name":
            return _WORDS[self._taken()] if self._token in _WORDS else self._spec()
        if self._kind == "end":
            self._fail()
        if self._kind == "words":
            if not self._allow_words:
                self._fail()
            return Unwritable(self._taken()[1:-1])
        token = self._token
        try:
            value = float(token) if token.lstrip("+-") == "inf" else ast.literal_eval(token)
        except (ValueError, SyntaxError):
            self._fail()
        self._next()
        return value

    def _collection(self) -> Any:
        if self._takes("["):
            return self._until("]", self._value)
        if not self._takes("("):
            self._fail()
        parts = self._until(")", self._value)
        return parts[0] if len(parts) == 1 and not self._last_comma else tuple(parts)

    def _until(self, end: str, read: Callable[[], Any]) -> list[Any]:
        """Values with commas between them, up to the closing sign; a last comma is allowed."""
        values, comma = [], True
        while not self._takes(end):
            if not comma:
                self._fail()
            values.append(read())
            comma = self._takes(",")
        self._last_comma = comma
        return values

    def _fail(self, problem: str | None = None) -> NoReturn:
        rest = self._text[self._start :][:40]
        problem = problem or (f"`{rest}` at character {self._start + 1}" if rest else "its end")
        raise ValueError(
            f"A {self._what} should read `name` or `name(option=value, ...)`, where values are"
            " plain values or names with options of their own, as in"
            f" `gradient-pruning(ratio=0.9, noise=gradient-noise(0.1))`. Found {problem} in"
            f" {self._text[:200]!r}."
        )


def call(
    make: Callable[..., Any], name: str, positional: list[Any], options: dict[str, Any]
) -> Any:
    """`make(*positional, **options)`; arguments that do not fit are an error that says so."""
    try:
        inspect.signature(make).bind(*positional, **options)
    except TypeError as error:
        raise ValueError(f"`{name}` takes {_signature(make)}. Found a mismatch: {error}.") from None
    try:
        return make(*positional, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}`: {error}") from error


def names_of(make: Callable[..., Any]) -> list[str]:
    """The names of the arguments that can be given without one, in order."""
    parameters = inspect.signature(make).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def _signature(make: Callable[..., Any]) -> str:
    parts = []
    for parameter in inspect.signature(make).parameters.values():
        if parameter.name == "_" or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        default = parameter.default
        parts.append(
            parameter.name if default is parameter.empty else f"{parameter.name}={default!r}"
        )
    return f"({', '.join(parts)})"


_AMOUNTS = ("scale", "ratio", "clip", "step", "noise_multiplier")
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Spec:
    """The name of a thing and the arguments it is made with: `optimal-noise(scale=0.1)`.

    The only reader and writer of such texts. ``Spec.parse(str(spec)) == spec``.

    Args:
        name: As the catalog lists it, or the import path of a user's own, `package.module:Class`.
        arguments: Plain values (numbers, words, `None`, lists and tuples of them) or further Specs,
            by option; those without an option by position, from 0.

    >>> spec = Spec.parse("optimal-pruning(ratio=0.9, noise=gradient-noise(0.01))")
    >>> spec.name, spec.arguments["ratio"], spec.arguments["noise"]
    ('optimal-pruning', 0.9, Spec.parse('gradient-noise(0.01)'))
    >>> str(spec.with_(ratio=0.5))
    'optimal-pruning(ratio=0.5, noise=gradient-noise(0.01))'
    """

    name: str
    arguments: Mapping[int | str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.name)
        object.__setattr__(self, "name", OTHER_SPELLINGS.get(self.name, self.name))
        check_keys(self.arguments, self.name)
        for value in self.arguments.values():
            _check_value(value, self.name)
        ordered = sorted(self.arguments.items(), key=_place)
        object.__setattr__(self, "arguments", MappingProxyType(dict(ordered)))

    @classmethod
    def parse(cls, text: str, what: str = "specification", *, allow_words: bool = False) -> "Spec":
        """The specification that a text is; nothing in it is evaluated or imported.

        Args:
            text: As `gradient-pruning(ratio=0.9, noise=gradient-noise(0.1))`.
            what: What it stands for, for error messages.
            allow_words: Whether it may hold ``<words>`` for values that have no specification, as
                `spec_of` writes them. Such a specification can be shown, but not built.
        """
        if not isinstance(text, str):
            raise TypeError(
                f"Parameter `spec` should be the text of a {what}, as `name(option=value)`. Found"
                f" {type(text).__name__} ({text!r:.80})."
            )
        spec: Spec = Parser(text, what, cls, allow_words=allow_words).whole()
        return spec

    def __str__(self) -> str:
        items = [
            _text(value) if isinstance(key, int) else f"{key}={_text(value)}"
            for key, value in self.arguments.items()
        ]
        return f"{self.name}({', '.join(items)})" if items else self.name

    def __repr__(self) -> str:
        return f"Spec.parse({str(self)!r})"

    def __hash__(self) -> int:
        return hash((self.name, frozenset(self.arguments)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Spec, (self.name, dict(self.arguments))

    @property
    def positional(self) -> list[Any]:
        """The arguments without an option, in order."""
        return [value for key, value in self.arguments.items() if isinstance(key, int)]

    @property
    def options(self) -> dict[str, Any]:
        """The arguments with an option."""
        return {key: value for key, value in self.arguments.items() if isinstance(key, str)}

    @property
    def imports(self) -> list[str]:
        """The import paths that it and its parts name."""
        own = [self.name] if ":" in self.name else []
        return own + [path for inner in self._inner() for path in inner.imports]

    def named(self) -> "Spec":
        """The same with an option for every argument, as the registered class calls them.

        >>> Spec.parse("gradient-noise(0.01)").named()
        Spec.parse('gradient-noise(scale=0.01)')
        """
        names = names_of(EVERYTHING[self.name].build) if self.name in EVERYTHING else []
        if len(self.positional) > len(names):
            raise ValueError(
                f"`{self.name}` should be a registered name that takes {len(self.positional)}"
                f" arguments without an option. Found `{self}`. Name its options."
            )
        by_name = dict(zip(names, self.positional, strict=False))
        twice = by_name.keys() & self.options.keys()
        if twice:
            raise ValueError(
                f"`{self.name}` should get each option once. Found {sorted(twice)} twice, in"
                f" `{self}`. Leave one out."
            )
        every = {**by_name, **self.options}
        return Spec(self.name, {k: v.named() if _is_spec(v) else v for k, v in every.items()})

    def with_(self, **arguments: Any) -> "Spec":
        """The same with other arguments.

        >>> str(Spec.parse("gradient-noise(0.01)").with_(scale=0.1))
        'gradient-noise(scale=0.1)'
        """
        base = self.named() if self.positional else self
        changed: dict[Any, Any] = {**base.arguments}
        return Spec(self.name, changed | arguments)

    @property
    def amounts(self) -> list[tuple[str, float]]:
        """How much a defense does, and the noise inside of it, as scale, ratio, clip or step.

        >>> Spec.parse("optimal-pruning(0.9, noise=gradient-noise(0.01))").amounts
        [('ratio', 0.9), ('scale', 0.01)]
        """
        whole = self.named() if self.name in EVERYTHING else self
        amounts: list[tuple[str, float]] = []
        for key, value in whole.arguments.items():
            if isinstance(value, Spec):
                amounts += value.amounts
            elif key in _AMOUNTS and isinstance(value, (int, float)):
                amounts.append((str(key), float(value)))
        return amounts

    def rounded(self, digits: int = 4) -> "Spec":
        """The same with numbers of so many significant digits, to be shown.

        >>> Spec.parse("clamped-noise(scale=0.009054506197571754, clip=0.5)").rounded()
        Spec.parse('clamped-noise(scale=0.009055, clip=0.5)')
        """
        return Spec(self.name, {key: _rounded(v, digits) for key, v in self.arguments.items()})

    @property
    def missing(self) -> frozenset[str]:
        """Which amounts a defense leaves out: "scale", "ratio", "clip", or "noise" (its scale).

        >>> sorted(Spec.parse("optimal-pruning(noise=optimal-noise)").missing)
        ['noise', 'ratio']
        """
        noise = self.options.get("noise")
        inner = {"noise"} if isinstance(noise, Spec) and noise._left_out() else set()
        return frozenset({*self._left_out(), *inner})

    def completed(self) -> "Spec":
        """The same with a placeholder for every amount that is missing."""
        noise = self.options.get("noise")
        whole: dict[Any, Any] = {**self.arguments, **self._left_out()}
        if isinstance(noise, Spec):
            whole["noise"] = noise.completed()
        return Spec(self.name, whole)

    def build(self, kind: str, *, allow_imports: AllowImports = False) -> Any:
        """The "defense", "attack" or "estimator" that this describes.

        Args:
            kind: What it should be.
            allow_imports: Whether names may be import paths, whose code is then run: True for text
                that the local user typed, or the paths that are allowed. Never for text that comes
                from elsewhere.
        """
        return self._built(KINDS[kind], allow_imports)

    def _built(self, kind: Kind, allow_imports: AllowImports) -> Any:
        make = kind.find(self.name, allow_imports)
        arguments = {key: _built(v, allow_imports) for key, v in self.arguments.items()}
        positional = [value for key, value in arguments.items() if isinstance(key, int)]
        options = {key: value for key, value in arguments.items() if isinstance(key, str)}
        return kind.checked(call(make, self.name, positional, options), str(self))

    def _left_out(self) -> dict[str, float]:
        """Placeholders for the amounts that a registered defense needs and this does not give."""
        amounts = EVERYTHING[self.name].amounts if self.name in EVERYTHING else {}
        given = self.options.keys()
        if self.positional or given & {"scale", "ratio", "utility_budget", "target_error"}:
            return {}
        return {name: amount for name, amount in amounts.items() if name not in given}

    def _inner(self) -> Iterator["Spec"]:
        return (spec for value in self.arguments.values() for spec in _specs_in(value))


def _place(argument: tuple[int | str, Any]) -> float:
    """Positions first, in order; then options as they were given."""
    return argument[0] if isinstance(argument[0], int) else math.inf


def _is_spec(value: object) -> bool:
    return isinstance(value, Spec)


def _specs_in(value: object) -> Iterator[Spec]:
    if isinstance(value, Spec):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _specs_in(part)


def _built(value: Any, allow_imports: AllowImports) -> Any:
    if isinstance(value, Spec):
        return value._built(PART, allow_imports)
    if isinstance(value, Unwritable):
        raise ValueError(
            "A specification should hold numbers, words and names to build something from. Found"
            f" `<{value.text}>`, which stands for an object. Build it in Python."
        )
    if isinstance(value, (list, tuple)):
        return type(value)(_built(part, allow_imports) for part in value)
    return value


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, Spec):
        return value.rounded(digits)
    if isinstance(value, (list, tuple)):
        return type(value)(_rounded(part, digits) for part in value)
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def _check_value(value: object, name: str) -> None:
    if isinstance(value, (list, tuple)):
        for part in value:
            _check_value(part, name)
    elif not isinstance(value, (*_PLAIN, Spec, Unwritable)) or value != value:
        raise TypeError(
            f"Parameter `arguments` of `{name}` should hold numbers, words, None, lists and tuples"
            f" of these, or Specs. Found {type(value).__name__} ({value!r})."
        )


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        inside = ", ".join(_text(part) for part in value)
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, Unwritable):
        return f"<{value.text}>"
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return str(value) if isinstance(value, Spec) else repr(value)
