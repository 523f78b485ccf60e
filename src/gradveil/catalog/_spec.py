"""Specifications as values: 'name(argument, option=value)', read, changed, written and built."""

import ast
import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from torch import nn

from gradveil._checks import WrongType, WrongValue, check_kind, suggestion
from gradveil._imports import AllowImports, imported, makes, owned_by, takes
from gradveil.defenses import Defense
from gradveil.sensitivity import Estimator

from ._entries import ATTACKS, DEFENSES, ESTIMATORS, EVERYTHING, MODELS, OTHER_SPELLINGS, Entry

if TYPE_CHECKING:  # who builds defenses imports no attack
    from gradveil.attacks import Attack

_NAME = r"[^\W\d][\w.\-]*(?::[\w.<>]*)?"
_TOKEN = re.compile(
    rf"""(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<number>\.?\d[\w.]*(?:(?<=[eE])[+-]\d+)?)
    |(?P<name>{_NAME})|(?P<words><[^<>]*>)|(?P<space>\s)""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Unwritable:
    """A value that has no specification, such as the data that a prior was fitted to."""

    text: str


class _Reader:
    """Reads one text by Python's own grammar; nothing in it is evaluated.

    Names hold hyphens, dots and colons, and may be words of Python's (`from-server`). So the parser
    gets a text of the same length with identifiers in their places, and names are read from the
    original at the same places.
    """

    def __init__(self, text: str, what: str) -> None:
        self._text, self._what = text, what

    def spec(self) -> "Spec":
        """The specification that the whole text is."""
        if len(self._text) > 10_000:  # Python's parser is not made for more from elsewhere
            self._fail(f"{len(self._text)} characters")
        try:
            self._masked = f"({_TOKEN.sub(self._mask, self._text)})".encode()
            tree = ast.parse(self._masked, mode="eval").body
        except SyntaxError as error:
            self._fail(f"{error.msg} at character {max(1, (error.offset or 0) - 1)}")
        except (ValueError, RecursionError, MemoryError) as error:
            self._fail(type(error).__name__)
        found = self._value(tree)
        if not isinstance(found, Spec):
            self._fail("no name")
        return found

    def _mask(self, token: re.Match[str]) -> str:
        if token.lastgroup == "name":
            return re.sub(r"\W", "_", token.group())
        if token.lastgroup == "words":
            return "_" * len(token.group())
        return " " if token.lastgroup == "space" else token.group()

    def _value(self, node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None as value):
                return value
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                number = self._value(operand)
                if isinstance(number, (int, float)) and not isinstance(number, bool):
                    return -number if isinstance(sign, ast.USub) else number
            case ast.List(elts=parts):
                return [self._value(part) for part in parts]
            case ast.Tuple(elts=parts):
                return tuple(self._value(part) for part in parts)
            case ast.Name():
                name = self._original(node)
                if name == "inf":
                    return math.inf
                return Unwritable(name[1:-1]) if name.startswith("<") else Spec(name)
            case ast.Call(func=ast.Name() as function, args=given, keywords=options):
                arguments: dict[int | str, Any] = dict(enumerate(map(self._value, given)))
                for option in options:
                    if option.arg is None or not self._original(option).startswith(option.arg):
                        self._fail(f"`{self._original(option)}`")
                    if option.arg in arguments:
                        self._fail(f"the option `{option.arg}` twice")
                    arguments[option.arg] = self._value(option.value)
                return Spec(self._original(function), arguments)
        self._fail(f"`{self._original(node)[:40]}`")

    def _original(self, node: Any) -> str:
        """The text of a node; Python counts bytes, and the parenthesis before it."""
        start, end = (
            len(self._masked[:place].decode()) - 1
            for place in (node.col_offset, node.end_col_offset)
        )
        return self._text[start:end]

    def _fail(self, problem: str) -> NoReturn:
        expected = (
            "read `name` or `name(option=value, ...)`, where values are plain values or names with"
            " options of their own, as in `gradient-pruning(ratio=0.9, noise=gradient-noise(0.1))`"
        )
        raise WrongValue(f"A {self._what}", expected, f"{problem} in {self._text[:200]!r}")


class Kind(NamedTuple):
    """Registered names, and the test that what is imported must pass before it is called."""

    word: str
    entries: Mapping[str, Entry]
    wanted: str
    """What that test asks for, in words."""
    fits: Callable[[Any], bool]

    def find(
        self, name: str, allow_imports: AllowImports, argument: str = ""
    ) -> Callable[..., Any]:
        """The class or factory of this name, which `argument` gave."""
        if ":" in name:
            made: Callable[..., Any] = imported(
                name, self.word, allow_imports, self.fits, self.wanted
            )
            return made
        if name not in self.entries:
            own = "or, where imports are allowed, 'package.module:name' for your own"
            expected = f"be one of {', '.join(self.entries)}; {own}"
            advice = suggestion(name, self.entries).strip()
            raise WrongValue(argument or f"A {self.word}", expected, f"`{name}`", advice)
        return self.entries[name].build


def _is_defense(kind: type) -> bool:
    return issubclass(kind, Defense)


def _is_attack(kind: type) -> bool:
    return takes(kind, 2)


def _is_estimator(kind: type) -> bool:
    return takes(kind, 3)


def _is_part(kind: type) -> bool:
    return _is_defense(kind) or _is_attack(kind) or _is_estimator(kind)


_TAKES = "a class whose objects take"
KINDS = {
    kind.word: kind
    for kind in (
        Kind("defense", DEFENSES, "a subclass of `gradveil.Defense`", owned_by(_is_defense)),
        Kind("attack", ATTACKS, f"{_TAKES} (observation, generator)", owned_by(_is_attack)),
        Kind(
            "estimator",
            ESTIMATORS,
            f"{_TAKES} (message, inputs, generator)",
            owned_by(_is_estimator),
        ),
        Kind("part", EVERYTHING, "a defense, an attack or an estimator", owned_by(_is_part)),
        Kind(
            "model",
            MODELS,
            "a subclass of `torch.nn.Module`, or a Python function of yours that returns one",
            makes(nn.Module),
        ),
    )
}


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
        reserved = ("True", "False", "None", "inf")
        named = isinstance(self.name, str) and re.fullmatch(_NAME, self.name)
        if not named or self.name in reserved:
            expected = "be a name as the catalog lists it, or package.module:Class"
            advice = "Specifications should read `name` or `name(option=value, ...)`."
            raise WrongValue("name", expected, repr(self.name), advice)
        own = f"Parameter `arguments` of `{self.name}`"
        options = [key for key in self.arguments if not isinstance(key, int)]
        places = {*self.arguments} - {*options}
        if places != {*range(len(places))} or not all(map(str.isidentifier, options)):
            expected = "have options as keys, or positions from 0"
            raise WrongValue(own, expected, str([*self.arguments]))

        def check(value: object) -> None:
            plain = isinstance(value, (bool, int, float, str, type(None), Spec, Unwritable))
            if not plain or value != value:
                expected = "hold numbers, words, None, lists and tuples of these, or Specs"
                raise WrongType(own, expected, f"{type(value).__name__} ({value!r})")

        each(check, [*self.arguments.values()])
        ordered = [*sorted(places), *options]  # type: ignore[type-var]
        object.__setattr__(self, "arguments", {key: self.arguments[key] for key in ordered})
        object.__setattr__(self, "name", OTHER_SPELLINGS.get(self.name, self.name))

    @classmethod
    def parse(cls, text: str, what: str = "specification") -> "Spec":
        """The specification that a text is; nothing in it is evaluated or imported.

        It may hold ``<words>`` for values without a specification, as `spec_of` writes them. Such
        a specification can be shown, but not built.

        Args:
            text: As `gradient-pruning(ratio=0.9, noise=gradient-noise(0.1))`.
            what: What it stands for, for error messages.
        """
        check_kind(text, "spec", str, f"Give the text of a {what}, as `name(option=value)`.")
        return _Reader(text, what).spec()

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
        found = [self.name] if ":" in self.name else []
        each(
            lambda part: found.extend(part.imports) if isinstance(part, Spec) else None,
            [*self.arguments.values()],
        )
        return found

    def named(self) -> "Spec":
        """The same with an option for every argument, as the registered class calls them.

        >>> Spec.parse("gradient-noise(0.01)").named()
        Spec.parse('gradient-noise(scale=0.01)')
        """
        names = _names_of(EVERYTHING[self.name].build) if self.name in EVERYTHING else []
        by_name = dict(zip(names, self.positional, strict=False))
        twice = by_name.keys() & self.options.keys()
        if twice or len(self.positional) > len(names):
            found = f"`{self}`{f', {sorted(twice)} twice' if twice else ''}"
            expected = "be registered, with each of its options once"
            raise WrongValue(f"The name `{self.name}`", expected, found, "Name its options.")
        every = {**by_name, **self.options}
        return Spec(
            self.name, {k: v.named() if isinstance(v, Spec) else v for k, v in every.items()}
        )

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
        known = ("scale", "ratio", "clip", "step", "noise_multiplier")
        whole = self.named() if self.name in EVERYTHING else self
        amounts: list[tuple[str, float]] = []
        for key, value in whole.arguments.items():
            if isinstance(value, Spec):
                amounts += value.amounts
            elif key in known and isinstance(value, (int, float)):
                amounts.append((str(key), float(value)))
        return amounts

    def rounded(self, digits: int = 4) -> "Spec":
        """The same with numbers of so many significant digits, to be shown.

        >>> Spec.parse("clamped-noise(scale=0.009054506197571754, clip=0.5)").rounded()
        Spec.parse('clamped-noise(scale=0.009055, clip=0.5)')
        """

        def change(value: Any) -> Any:
            if isinstance(value, Spec):
                return value.rounded(digits)
            return float(f"{value:.{digits}g}") if isinstance(value, float) else value

        return Spec(self.name, {key: each(change, v) for key, v in self.arguments.items()})

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
        """The "defense", "attack", "estimator" or "part" of one that this describes.

        Args:
            kind: What it should be.
            allow_imports: Whether names may be import paths, whose code is then run: True for text
                that the local user typed, or the paths that are allowed. Never for text that comes
                from elsewhere.
        """

        def built(value: Any) -> Any:
            if isinstance(value, Spec):
                return value.build("part", allow_imports=allow_imports)
            if isinstance(value, Unwritable):
                expected = "hold numbers, words and names to build something from"
                found = f"`<{value.text}>`, which stands for an object"
                raise WrongValue("A specification", expected, found, "Build it in Python.")
            return value

        make = KINDS[kind].find(self.name, allow_imports)
        positional = each(built, self.positional)
        options = {key: each(built, value) for key, value in self.options.items()}
        check_call(make, self.name, positional, options)
        try:
            made = make(*positional, **options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"`{self.name}`: {error}") from error
        if kind != "part" and not KINDS[kind].fits(type(made)):
            found = f"that '{self}' gives a {type(made).__name__}"
            raise WrongValue(f"A {kind}", f"be {KINDS[kind].wanted}", found)
        return made

    def _left_out(self) -> dict[str, float]:
        """Placeholders for the amounts that a registered defense needs and this does not give."""
        amounts = EVERYTHING[self.name].amounts if self.name in EVERYTHING else {}
        given = self.options.keys()
        if self.positional or given & {"scale", "ratio", "utility_budget", "target_error"}:
            return {}
        return {name: amount for name, amount in amounts.items() if name not in given}


def each(change: Callable[[Any], Any], value: Any) -> Any:
    """What becomes of a value, or of each part of lists and tuples."""
    if isinstance(value, (list, tuple)):
        return type(value)(each(change, part) for part in value)
    return change(value)


def check_call(
    make: Callable[..., Any], name: str, positional: list[Any], options: dict[str, Any]
) -> None:
    """Require arguments that `make` takes."""
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):
        return  # built in C, say: calling it will tell
    try:
        signature.bind(*positional, **options)
    except TypeError as error:
        parameters = signature.parameters.values()
        known = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
        given = f"{positional!r} and {options!r}" if positional else f"{options!r}"
        expected, own = f"fit ({', '.join(known)})", f"Parameter `options` of `{name}`"
        raise WrongValue(own, expected, f"{given}: {error}") from None


def _names_of(make: Callable[..., Any]) -> list[str]:
    """The names of the arguments that can be given without one, in order."""
    parameters = inspect.signature(make).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        inside = ", ".join(_text(part) for part in value)
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, Unwritable):
        return f"<{value.text}>"
    return str(value) if isinstance(value, Spec) else repr(value)


def spec_of(thing: object) -> str:
    """The specification of a defense, an attack or an estimator: what differs from the defaults.

    >>> from gradveil import OptimalNoise
    >>> spec_of(OptimalNoise(0.1, cap=10.0))
    'optimal-noise(scale=0.1, cap=10.0)'
    """
    return str(_described(thing))


def _described(thing: object) -> Spec:
    return Spec(
        name_of(type(thing)), {k: each(_described_value, v) for k, v in _changed(thing).items()}
    )


def name_of(kind: type) -> str:
    """The name of a class in specifications: as registered, or its import path.

    >>> from gradveil import OptimalNoise
    >>> name_of(OptimalNoise)
    'optimal-noise'
    """
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
    return {name: value for name, value in now.items() if not _same(value, usual[name])}


def _same(value: object, default: object) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def _described_value(value: object) -> Any:
    words = getattr(value, "spec_words", None)
    if words is not None:  # samples, networks and shapes have no specification
        return Unwritable(words)
    return value if isinstance(value, (bool, int, float, str, type(None))) else _described(value)


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


def build_estimator(spec: str | Spec, *, allow_imports: AllowImports = False) -> Estimator | str:
    """An estimator from its specification, or "auto"; arguments as for `build_defense`.

    >>> build_estimator("sketch(probes=3)")
    Sketch(probes=3)
    """
    if spec == "auto":
        return "auto"
    made: Estimator = _parsed(spec, "estimator").build("estimator", allow_imports=allow_imports)
    return made


def _parsed(spec: str | Spec, what: str) -> Spec:
    return spec if isinstance(spec, Spec) else Spec.parse(spec, what)
