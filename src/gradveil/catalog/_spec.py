"""Specifications as values: `name(argument, option=value)`, read, changed, written and built."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gradveil._imports import AllowImports

from ._entries import EVERYTHING
from ._kinds import KINDS, PART, Kind
from ._names import check_keys, check_name
from ._parser import Parser, Unwritable
from ._signatures import call, names_of

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

        >>> Spec.parse("dpsgd(scale=0.009054506197571754, clip=0.5)").rounded()
        Spec.parse('dpsgd(scale=0.009055, clip=0.5)')
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
