"""The grammar of specifications: text to names, values and nested specifications.

    spec  = name [ "(" [ item { "," item } ] ")" ]
    item  = [ option "=" ] value
    value = number | string | True | False | None | inf | [list] | (tuple) | spec
    name  = letters, digits, "_", "-", "."; or package.module:name

Text that was written to be shown may hold ``<words>`` for a value that has no specification.
Nothing in a text is ever evaluated.
"""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

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
