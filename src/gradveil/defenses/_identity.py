"""What a defense says of itself: its name in tables, its family, its classical counterpart."""

import re
from typing import TYPE_CHECKING, Any, TypeVar

from gradveil._typing import Tensors

if TYPE_CHECKING:
    from ._base import Defense

Own = TypeVar("Own", bound="Identity")


class Identity:
    """Properties that every defense answers for itself, so that nobody has to read its name.

    A class that does not set `label` is called by the words of its own name; the others are
    inherited.
    """

    clip: float | None = None
    """The option of this name: a threshold of entries, or of norms; `None` without one."""

    formal_privacy: str | None = None
    """Which formal privacy it has by itself, in words; `None`: none."""

    amount_name: str | None = None
    """The option that says how much is done: "scale", "ratio" or "step"; `None` without one."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "label" not in vars(cls):
            cls.label = _words(cls.__name__)  # type: ignore[method-assign, assignment]

    @property
    def label(self) -> str:
        """What tables and figures call it, as "optimal noise"."""
        return _words(type(self).__name__)

    @property
    def clamp(self) -> float | None:
        """The threshold P if entries are clamped to [-P, P]; `None` if they are not."""
        return self.clip

    @property
    def family(self) -> str:
        """What it shares with its classical or optimal counterpart, as "noise"; else its label."""
        return self.label

    @property
    def twin(self) -> "type[Defense] | None":
        """Its classical counterpart, where it is the optimal form of one."""
        return None

    @property
    def is_undefended(self) -> bool:
        """Whether the message is sent as it is."""
        return False

    @property
    def prunes_by_sensitivity(self) -> bool:
        """Whether sensitivities decide which entries are pruned."""
        return False

    def seen_in(self: Own, sent: Tensors) -> Own:
        """The defense with what the message shows of its choices; here it is the same.

        Where a choice that was made from the private batch can be read off what was sent, it is
        known to `prepared` of this one, and attacks look at that.
        """
        return self

    def steps_unlike(self, base: type) -> bool:
        """Whether its class observes or responds in another way than this base class."""
        own = type(self)
        return any(getattr(own, n) is not getattr(base, n) for n in ("observe", "respond"))

    def check_amount_is_known(self) -> None:
        """Refuse amounts that only real examples can tell."""
        for option in ("utility_budget", "target_error"):
            if getattr(self, option, None) is not None:
                raise ValueError(
                    f"Parameter `{option}` should be used with a plan that sees real examples:"
                    " synthetic ones say how noise should be spread, not how much. Found a plan"
                    " from the model alone. Use `Public(defense, (inputs, targets))` with public"
                    " examples, or plan='private', which reveals the batch."
                )


def _words(name: str) -> str:
    """The words of a class's name.

    >>> _words("MyOwnNoise"), _words("DPSGD"), _words("_Louder")
    ('my own noise', 'DPSGD', 'louder')
    """
    words = re.findall(r"[A-Z]{2,}(?![a-z])|[A-Z]?[a-z0-9]+|[A-Z]", name)
    return " ".join(w if len(w) > 1 and w.isupper() else w.lower() for w in words) or name
