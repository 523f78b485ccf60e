"""The kinds of things that specifications describe, and the checks on a user's own classes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradveil._imports import AllowImports, check_class, import_object, takes
from gradveil._suggest import suggestion
from gradveil.defenses import Defense

from ._entries import ATTACKS, DEFENSES, ESTIMATORS, EVERYTHING, Entry


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
