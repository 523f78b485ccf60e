"""A client's limits on what its server may choose."""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from gradveil._checks import WrongType, WrongValue
from gradveil.catalog import Spec, build_defense
from gradveil.defenses import Defense

from ._guard import RefusedError


@dataclass(frozen=True)
class Limits:
    """Bounds, set in the client's own code, on what a server's round configuration may ask for.

    Without a bound the server has no say in a setting. A request outside of the bounds is an error
    on the client: nothing is sent.

    Args:
        defenses: Specifications. A server may ask for one of them, or for the same with a larger
            `scale`, `ratio`, `step`, `target_error` or `noise_multiplier`; all other options must
            agree.
        batch_size: The least and the most examples in a message. A shorter rest of an epoch is left
            out, whoever chose the size. A server that chooses it can still compare messages that
            differ by an example; against that there is only noise. Where Poisson sampling has no
            rate of its own, the rate is that of the size asked for: account for the largest.
        local_steps, local_lr: The least and the most of FedAvg's local steps, and of their rate.

    >>> limits = Limits(["optimal-noise(scale=0.01)"])
    >>> limits.defense("optimal-noise(scale=0.05)").scale
    0.05
    """

    defenses: tuple[str, ...] = ()
    _: KW_ONLY
    batch_size: tuple[int, int] | None = None
    local_steps: tuple[int, int] | None = None
    local_lr: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.defenses, str):
            found, advice = f"one text, {self.defenses!r}", "Put it into a list."
            raise WrongType("defenses", "be a list of specifications", found, advice)
        object.__setattr__(self, "defenses", tuple(self.defenses))
        for text in self.defenses:
            self._built(text)  # a mistake is an error now
        for name in ("batch_size", "local_steps", "local_lr"):
            _check_range(getattr(self, name), name)

    @property
    def least_examples(self) -> int:
        """In a message, whatever is left of an epoch."""
        return 1 if self.batch_size is None else math.ceil(self.batch_size[0])

    def defense(self, asked: str) -> Defense:
        """The defense that a server asked for, if it is within these limits."""
        try:
            spec = Spec.parse(asked, "defense")
            known = [Spec.parse(text, "defense") for text in self.defenses]
            allowed = any(_protects_as(spec, least) for least in known)
        except (ValueError, TypeError):
            allowed = False
        if not allowed:
            limits = f"within this client's limits, {[*self.defenses]} or more of it"
            raise _refused(f"ask for a defense {limits}", f"{str(asked)[:200]!r}")
        return self._built(asked)

    def _built(self, text: str) -> Defense:
        """Import paths in the client's own list are allowed: its code names them."""
        own = [path for each in self.defenses for path in Spec.parse(each, "defense").imports]
        return build_defense(text, allow_imports=own)

    def settings(self, config: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """The client's own settings, with what a round's configuration asks for in their place.

        Of the client: "defense", "batch_size", "local". Of the server: "defense", "batch-size",
        "local-steps", "local-lr"; "seed" and the parts of a defense are never its to choose.
        """
        for key in OWN & config.keys():
            raise _refused(f"leave `{key}` to the client", "it in the round's configuration")
        asked: dict[str, Any] = {}
        if "defense" in config:
            asked["defense"] = self.defense(config["defense"])
        asked |= _within(config, "batch-size", "batch_size", self.batch_size, int)
        local = _within(config, "local-steps", "steps", self.local_steps, int)
        local |= _within(config, "local-lr", "lr", self.local_lr, float)
        if local and own["local"] is None:
            found = f"{sorted(local)} of local steps in the round's configuration"
            raise _refused("ask clients of FedSGD for gradients only", found)
        if local:
            asked["local"] = replace(own["local"], **local)
        return {**own, **asked}


def _refused(expected: str, found: str) -> RefusedError:
    return RefusedError("A server", expected, found, "Nothing was sent.")


OWN = {"seed", "scale", "ratio", "clip", "noise", "local-batch-size", "local-momentum"}
"""Never a server's to choose: who knows the seed can take the noise off."""

AMOUNTS = ("scale", "ratio", "step", "target_error", "noise_multiplier")
"""Options of a defense of which more protects more."""


def _protects_as(asked: Spec, least: Spec) -> bool:
    """Whether one specification is another, with amounts that are at least as large."""
    if asked.name != least.name or asked.arguments.keys() != least.arguments.keys():
        return False
    return all(_enough(key, asked.arguments[key], value) for key, value in least.arguments.items())


def _enough(key: str, asked: Any, least: Any) -> bool:
    if isinstance(asked, Spec) and isinstance(least, Spec):
        return _protects_as(asked, least)
    if key in AMOUNTS and _is_number(asked) and _is_number(least):
        return math.isfinite(asked) and bool(asked >= least)
    return type(asked) is type(least) and bool(asked == least)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _within(
    config: Mapping[str, Any], name: str, own: str, limits: tuple[Any, Any] | None, kind: type
) -> dict[str, Any]:
    """What is asked for under a name, by the client's own word for it; nothing if nothing is."""
    if name not in config:
        return {}
    asked = config[name]
    fits = _is_number(asked) and (kind is float or isinstance(asked, int))
    if limits is None or not fits or not limits[0] <= asked <= limits[1]:
        bounds = "leave" if limits is None else f"ask for {limits[0]} to {limits[1]} as"
        found = f"`{name} = {str(asked)[:200]!r}`"
        raise _refused(f"{bounds} `{name}`, within this client's limits", found)
    return {own: kind(asked)}


def _check_range(limits: Any, name: str) -> None:
    if limits is None:
        return
    pair = isinstance(limits, (tuple, list)) and len(limits) == 2
    if not pair or not all(map(_is_number, limits)) or not 0 < limits[0] <= limits[1] < math.inf:
        expected = "be (least, most), two numbers above 0 in order"
        raise WrongValue(name, expected, repr(limits), assigned=True)
