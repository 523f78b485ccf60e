"""What a run's account says, in words."""

from gradveil.privacy import PrivacyAccount

from .._storage import TrainingHistory

NEIGHBOURS = {
    "add-remove": "one {unit} more or less",
    "replace-one": "one {unit} replaced by another",
}
SEEDED = (
    "The noise came from a seed, and whoever knows it can take it off: a seeded run protects"
    " nobody. Leave the seed out where data is private."
)


def privacy_statement(history: TrainingHistory) -> str | None:
    """ε(δ) of a run with all that it means: unit, neighbours, sampling; `None` without an account.

    A run that was seeded says so in any case: see `SEEDED`.
    """
    told = history.privacy
    if told is None:
        return None
    spent = history.rounds[-1].epsilon if history.rounds else 0.0
    unit = told["unit"]
    lines = [
        f"ε = {spent:.4g} at δ = {told['delta']:g} after {len(history.rounds)} rounds, for each"
        f" {unit} ({NEIGHBOURS[told['neighbours']].format(unit=unit)}), noise multiplier"
        f" {told['noise_multiplier']:.4g}.",
        f"Sampling: {told['sampling']}.",
    ]
    if unit == "client":
        lines.append(
            "Each client's message is clipped as a whole and noised by the client; that it takes"
            " part is not hidden."
        )
    elif told["sample_rate"] < 1:
        lines.append("Where clients have other rates, the largest is accounted for.")
    if unit == "client" or told["sample_rate"] == 1:
        lines.append("Nothing is gained from clients or examples that were not drawn.")
    if not told.get("grid", True):
        lines.append(
            "The noise is continuous: what the last bits of floating-point sums tell is not"
            " covered."
        )
    lines.append(
        "Covered is what clients send. The losses, U1 and U2 of their batches are not: do not"
        " publish them."
    )
    return " ".join(lines)


def budget_spent(account: PrivacyAccount, rounds: int) -> str:
    """Why a run ended after so many rounds."""
    return (
        f"After {rounds} rounds ε is {account.epsilon():.4g} at δ = {account.delta:g}; one more"
        f" round would make it {account.epsilon(1):.4g}, above the budget of {account.budget:g}."
    )
