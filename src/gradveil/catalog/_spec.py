"""Specifications as values: 'name(argument, option=value)', read, changed, written and built."""

import ast
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from gradveil._imports import AllowImports, check_class, import_object, takes
from gradveil._suggest import suggestion
from gradveil.defenses import Defense

from ._entries import ATTACKS, DEFENSES, ESTIMATORS, EVERYTHING, OTHER_SPELLINGS, Entry

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
        raise ValueError(
            f"A {self._what} should read `name` or `name(option=value, ...)`, where values are"
            " plain values or names with options of their own, as in"
            f" `gradient-pruning(ratio=0.9, noise=gradient-noise(0.1))`. Found {problem} in"
            f" {self._text[:200]!r}."
        )


class Kind(NamedTuple):
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
            made: Callable[..., Any] = check_class(
                imported, name, self.word, self.fits, self.wanted
            )
            return made
        if name not in self.entries:
            raise ValueError(
                f"There is no {self.word} named `{name}`.{suggestion(name, self.entries)}"
                f" Known: {', '.join(self.entries)}; or, where imports are allowed,"
                " 'package.module:Class' for your own."
            )
        return self.entries[name].build


def _is_defense(kind: type) -> bool:
    return issubclass(kind, Defense)


def _is_attack(kind: type) -> bool:
    return takes(kind, 2)


def _is_estimator(kind: type) -> bool:
    return takes(kind, 3)


def _is_part(kind: type) -> bool:
    return _is_defense(kind) or _is_attack(kind) or _is_estimator(kind)


KINDS = {
    "defense": Kind("defense", DEFENSES, _is_defense, "a subclass of `gradveil.Defense`"),
    "attack": Kind(
        "attack", ATTACKS, _is_attack, "a class whose objects take (observation, generator)"
    ),
    "estimator": Kind(
        "estimator",
        ESTIMATORS,
        _is_estimator,
        "a class whose objects take (message, inputs, generator)",
    ),
    "part": Kind("part", EVERYTHING, _is_part, "a defense, an attack or an estimator"),
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
        if (
            not isinstance(self.name, str)
            or self.name in reserved
            or not re.fullmatch(_NAME, self.name)
        ):
            raise ValueError(
                "Parameter `name` should be a name as the catalog lists it, or"
                f" package.module:Class. Found {self.name!r}; specifications should read `name` or"
                " `name(option=value, ...)`."
            )
        options = [key for key in self.arguments if not isinstance(key, int)]
        places = {*self.arguments} - {*options}
        if places != {*range(len(places))} or not all(map(str.isidentifier, options)):
            raise ValueError(
                f"Parameter `arguments` of `{self.name}` should have options as keys, or positions"
                f" from 0. Found {[*self.arguments]}."
            )
        _check_value([*self.arguments.values()], self.name)
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
        if not isinstance(text, str):
            raise TypeError(
                f"Parameter `spec` should be the text of a {what}, as `name(option=value)`. Found"
                f" {type(text).__name__} ({text!r:.80})."
            )
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
        own = [self.name] if ":" in self.name else []
        inner = _specs_in([*self.arguments.values()])
        return own + [path for spec in inner for path in spec.imports]

    def named(self) -> "Spec":
        """The same with an option for every argument, as the registered class calls them.

        >>> Spec.parse("gradient-noise(0.01)").named()
        Spec.parse('gradient-noise(scale=0.01)')
        """
        names = _names_of(EVERYTHING[self.name].build) if self.name in EVERYTHING else []
        by_name = dict(zip(names, self.positional, strict=False))
        twice = by_name.keys() & self.options.keys()
        if twice or len(self.positional) > len(names):
            raise ValueError(
                f"`{self.name}` should be a registered name, with each of its options once. Found"
                f" `{self}`{f', {sorted(twice)} twice' if twice else ''}. Name its options."
            )
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
        """The "defense", "attack", "estimator" or "part" of one that this describes.

        Args:
            kind: What it should be.
            allow_imports: Whether names may be import paths, whose code is then run: True for text
                that the local user typed, or the paths that are allowed. Never for text that comes
                from elsewhere.
        """
        word, _, fits, wanted = KINDS[kind]
        make = KINDS[kind].find(self.name, allow_imports)
        positional = _built(self.positional, allow_imports)
        options = {key: _built(value, allow_imports) for key, value in self.options.items()}
        made = _call(make, self.name, positional, options)
        if not fits(type(made)) and kind != "part":
            raise ValueError(
                f"A {word} should be {wanted}. Found that '{self}' gives a {type(made).__name__}."
            )
        return made

    def _left_out(self) -> dict[str, float]:
        """Placeholders for the amounts that a registered defense needs and this does not give."""
        amounts = EVERYTHING[self.name].amounts if self.name in EVERYTHING else {}
        given = self.options.keys()
        if self.positional or given & {"scale", "ratio", "utility_budget", "target_error"}:
            return {}
        return {name: amount for name, amount in amounts.items() if name not in given}


def _specs_in(value: object) -> Iterator[Spec]:
    if isinstance(value, Spec):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _specs_in(part)


def _built(value: Any, allow_imports: AllowImports) -> Any:
    if isinstance(value, Spec):
        return value.build("part", allow_imports=allow_imports)
    if isinstance(value, Unwritable):
        raise ValueError(
            "A specification should hold numbers, words and names to build something from. Found"
            f" `<{value.text}>`, which stands for an object. Build it in Python."
        )
    if isinstance(value, (list, tuple)):
        return type(value)(_built(part, allow_imports) for part in value)
    return value


def _call(
    make: Callable[..., Any], name: str, positional: list[Any], options: dict[str, Any]
) -> Any:
    """`make(*positional, **options)`; arguments that do not fit are an error that says so."""
    parameters = inspect.signature(make).parameters.values()
    try:
        inspect.signature(make).bind(*positional, **options)
    except TypeError as error:
        known = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
        raise ValueError(
            f"`{name}` takes ({', '.join(known)}). Found a mismatch: {error}."
        ) from None
    try:
        return make(*positional, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"`{name}`: {error}") from error


def _names_of(make: Callable[..., Any]) -> list[str]:
    """The names of the arguments that can be given without one, in order."""
    parameters = inspect.signature(make).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


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
    elif (
        not isinstance(value, (bool, int, float, str, type(None), Spec, Unwritable))
        or value != value
    ):
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
    return str(value) if isinstance(value, Spec) else repr(value)
