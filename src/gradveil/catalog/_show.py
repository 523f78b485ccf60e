"""Display of the specifications in results; other text is shown as it is."""

from ._spec import Spec


def shown_name(text: str) -> str:
    """The name without its arguments.

    >>> shown_name("adaptive(prior=None)"), shown_name("<b>no specification</b>")
    ('adaptive', '<b>no specification</b>')
    """
    spec = _read(text)
    return text if spec is None else spec.name


def shown_text(text: str) -> str:
    """The specification with numbers of four digits.

    >>> shown_text("dpsgd(scale=0.009054506197571754, clip=0.5)")
    'dpsgd(scale=0.009055, clip=0.5)'
    """
    spec = _read(text)
    return text if spec is None else str(spec.rounded())


def shown_amounts(text: str) -> list[tuple[str, float]]:
    """How much a defense does; see `Spec.amounts`.

    >>> shown_amounts("optimal-noise(target_error=0.1, prior=<Gaussian>)")
    []
    """
    spec = _read(text)
    return [] if spec is None else spec.amounts


def _read(text: str) -> Spec | None:
    try:
        return Spec.parse(text, allow_words=True)
    except ValueError:
        return None
