"""The report's sentences, made from its numbers."""

from collections.abc import Iterable, Mapping, Sequence

from gradveil._runner import Cell, Failure
from gradveil.catalog import shown_name
from gradveil.scoring import CANNOT_JUDGE, MARGIN

from .._result import AuditResult, DefenseResult, Undefended
from ..measure import Budget
from ._numbers import estimate, number, percent, plural
from ._style import attack_names, twins
from ._tables import strongest

MATCHES = {
    "scale": "The noise's scale or the pruning ratio is held equal.",
    "utility": "How much of a training step is kept (U1), and how much noise makes it vary (U2),"
    " are held equal within each family.",
    "error": "The reference error is held equal.",
    "training": "What a step of Adam is expected to gain is held equal.",
}
MESSAGES = {"gradient": "gradients", "update": "weight updates"}
LABELS = {
    "known": "the labels of the batch",
    "counts": "how often each class occurs in the batch, not which image has which label",
    "unknown": "no labels: it has to find them",
}


TOLD = {
    "known": "Know the defense and its settings, but not the noise that was drawn",
    "realised": "Know the defense and the very noise levels or mask, which nobody sends",
    "unknown": "Made for a known defense, but not told of it",
}


def what_was_audited(result: AuditResult) -> str:
    """One sentence."""
    setup, attacks = result.setup, attack_names(result)
    sent = MESSAGES.get(setup.message, setup.message)
    examples = "image" if setup.is_image else "example"
    text = (
        f"The {sent} of {setup.model} ({setup.parameters:,} parameters, {weights(result)}) for"
        f" {plural(setup.batches, 'batch')} of {plural(setup.batch_size, examples)} from"
        f" {setup.data}, {_settings(result)}"
    )
    if not attacks:
        return f"{text}; no attack was run."
    return f"{text}, attacked by {_list(attacks.values())} with {plural(setup.seeds, 'seed')} each."


def weights(result: AuditResult) -> str:
    """Whether the model was trained: leaks differ."""
    known = result.setup.weights
    return known if known in ("untrained", "as given") else f"weights of {known}"


def what_is_equal(result: AuditResult) -> str:
    """What the comparison holds equal; the audit's own words where it has any."""
    setup = result.setup
    return setup.equal or MATCHES.get(setup.match, setup.match)


RANGE_NOTE = (
    "The attacker was not told the range of the inputs, because it could only be taken from the"
    " audited examples themselves: give public examples or a normalisation."
)
PLAN_NOTE = (
    "Plans marked private are made from the private batch, and tell who was in it at any amount of"
    " noise. Their bounds count what the noise levels reveal. The other plans are made from public"
    " examples or from the model alone, and reveal nothing."
)
STOPPED = {
    "interrupted": "Stopped by the user before all was measured.",
    "time budget": "The time budget ended before all was measured.",
}


def notes(
    said: Sequence[str],
    failures: Mapping[Cell, Failure],
    stopped: str | None,
    *,
    private_plan: bool,
    range_hidden: bool,
) -> list[str]:
    """What a reader should know of this run: what was left out, what the bounds do not count."""
    found = [PLAN_NOTE] if private_plan else []
    if stopped is not None:
        found.append(f"{STOPPED[stopped]} The same command goes on where it stopped.")
    for cell, failure in failures.items():
        reason = " ".join(f"{failure.error}: {failure.message}".split())
        found.append(f"`{cell.name}` failed on {cell.settings['defense']}: {reason}")
    return [*found, *said, *([RANGE_NOTE] if range_hidden else [])]


def equal_words(match: str, budget: Budget | None) -> str:
    """What is equal among the defenses, in one or two sentences."""
    if match == "curves":
        return (
            "Each defense was run over strengths; what it protects is compared with the loss after"
            " a real training."
        )
    if budget is None:
        return "Nothing: all amounts were given."
    noise, pruning = f"isotropic noise of scale {budget.scale:.3g}", f"{budget.ratio:.0%}"
    if budget.match == "scale":
        return f"All noise has the scale {budget.scale:.3g}, all pruning cuts {pruning}."
    if budget.match == "error":
        return (
            f"Wherever there is noise, the reference error (in its simple form) is that of"
            f" {noise}, {budget.error:.3g} per entry; all pruning cuts {pruning}."
        )
    if budget.match == "training":
        share = budget.gain / budget.free_gain if budget.free_gain > 0 else 1.0
        return (
            f"Under all defenses a step of Adam should gain what it gains under {noise},"
            f" {share:.0%} of what it gains without a defense."
        )
    return (
        f"Noise, with clamping or without, makes a training step vary as much as {noise} does"
        f" (equal U2). Pruning keeps as much of a step as magnitude pruning of {pruning} (equal"
        " U1). Noisy pruning has both. What training loses in the end, the loss, need not be"
        " equal."
    )


def undefended_words(found: Undefended, tokens: bool) -> str:
    """What the strongest attack reaches without a defense, beside a blind guess."""
    unit = (
        "a share of wrong tokens of" if tokens else "a mean squared error, of values in [0, 1], of"
    )
    ours, its = f"{unit} {found.mse_pixels.mean:.2g}", f"{found.guess_mse_pixels:.2g}"
    each = "example by example"
    if found.psnr is not None and found.guess_psnr is not None:
        ours, its, each = (
            f"{found.psnr.mean:.1f} dB",
            f"{found.guess_psnr:.1f} dB",
            "image by image",
        )
    gain = found.gain
    ends = "" if gain.low == gain.high else f" [{gain.low:.1f}, {gain.high:.1f}]"
    numbers = (
        f"ithout a defense the strongest attack, {shown_name(found.attack)}, reaches {ours} and a"
        f" blind guess ({found.guess}) {its}: {gain.mean:+.1f}{ends} dB, {each}"
    )
    if found.can_judge:
        return f"W{numbers}."
    return (
        f"{CANNOT_JUDGE[0].upper()}{CANNOT_JUDGE[1:]}: w{numbers}. At least {MARGIN:g} dB in the"
        " mean and an interval above 0 are needed, or a near copy."
    )


def takeaways(result: AuditResult) -> list[str]:
    """The few things to remember."""
    findings = [_undefended(result), _leak(result), _largest_error(result), _gains(result)]
    findings.append(_below(result))
    findings.append(_told_apart(result))
    proofs = (_unproved(result), _does_not_hold(result), _near_copies(result))
    return [text for text in (*findings, *proofs, _formal(result)) if text]


def threat_model(result: AuditResult) -> list[str]:
    """What the attacker has, one line each."""
    setup = result.setup
    what = "one gradient" if setup.message == "gradient" else "one weight update"
    lines = [
        f"It sees {what} of a batch as it was sent, after the defense; it follows the protocol.",
        "It knows the model with its weights, the loss, the batch size and the inputs' shape.",
        f"It is given {LABELS.get(setup.threat_labels, setup.threat_labels)}.",
        "It knows the data's mean, standard deviation and range."
        if setup.threat_statistics
        else "It does not know the data's mean, standard deviation or range.",
    ]
    told = TOLD.get(setup.threat_mechanism, setup.threat_mechanism)
    for knows, phrase in ((True, told), (False, "Do not know the defense")):
        names = _attackers(result, knows)
        if names:
            lines.append(f"{phrase}: {_list(names)}.")
    return lines


def _settings(result: AuditResult) -> str:
    plain = sum(d.is_undefended for d in result.defenses)
    defended = f"under {plural(len(result.defenses) - plain, 'defense')}"
    return f"undefended and {defended}" if plain else defended


def _attackers(result: AuditResult, knows: bool) -> list[str]:
    names = attack_names(result)
    attacks = (a for d in result.defenses for a in d.attacks if a.knows_defense is knows)
    return list(dict.fromkeys(names[a.attack] for a in attacks))


def _undefended(result: AuditResult) -> str:
    """Whether the attacks work here at all."""
    return undefended_words(result.undefended, result.setup.tokens) if result.undefended else ""


def attacks_judge(result: AuditResult) -> bool:
    """Whether what the attacks left can be held against or in favour of a defense."""
    return result.undefended is None or result.undefended.can_judge


def _leak(result: AuditResult) -> str:
    plain = next((d for d in result.defenses if d.is_undefended), None)
    attack = strongest(plain) if plain else None
    if attack is None or not attacks_judge(result):
        return ""
    name, what = attack_names(result)[attack.attack], _inputs(result)
    psnr = f", {number(attack.psnr.mean)} dB" if attack.psnr else ""
    return (
        f"Without a defense, {name} rebuilt the {what} to a mean squared error of"
        f" {estimate(attack.mse)}{psnr}."
    )


def _largest_error(result: AuditResult) -> str:
    worst = {d.name: strongest(d) for d in result.defenses if not d.is_undefended}
    errors = {name: a.mse for name, a in worst.items() if a}
    if len(errors) < 2 or not attacks_judge(result):
        return ""
    best = max(errors, key=lambda name: errors[name].mean)
    rivals = [n for n, e in errors.items() if n != best and e.high >= errors[best].low]
    text = (
        f"Judged by the strongest attack that was run on each, {best} left the largest error:"
        f" {estimate(errors[best])}"
    )
    if not rivals:
        return f"{text}, above the interval of every other defense.{_at_what_price(result)}"
    return (
        f"{text}. The interval overlaps that of {_list(rivals)}: their order is not settled."
        f"{_at_what_price(result)}"
    )


def _at_what_price(result: AuditResult) -> str:
    defended = [d for d in result.defenses if not d.is_undefended]
    utilities = {(number(d.utility_first), number(d.utility_second)) for d in defended}
    return " The defenses differ in utility; the chart shows both." if len(utilities) > 1 else ""


def _gains(result: AuditResult) -> str:
    """The bounds of optimal defenses over their twins'; equal utility only where losses agree."""
    pairs = [(pair, _ratio(*pair)) for pair in twins(result)]
    known = [(pair, ratio) for pair, ratio in pairs if ratio is not None]
    if not known:
        return ""
    parts = [f"{pair[1].name} {number(ratio)} ×" for pair, ratio in known]
    text = f"reference error over that of the classical form: {_list(parts)}."
    if result.setup.match != "utility":
        return f"The {text}"
    if all(_losses_agree(*pair) for pair, _ in known):
        return f"At equal utility, the {text}"
    losses = [f"{a.name} {_loss(a)}, {b.name} {_loss(b)}" for (a, b), _ in known]
    return (
        f"Where as much of a step is kept (U1) and noise makes it vary as much (U2), the {text}"
        f" The loss after training is not equal: {_list(losses)}."
    )


def _told_apart(result: AuditResult) -> str:
    """Who is recognised by an attacker that knows all but one example of the batch."""
    told = {d.name: d.told_apart for d in result.defenses if d.told_apart}
    if not told:
        return ""
    count, what = max(one.candidates for one in told.values()), _inputs(result)
    kind = " of its class" if all(one.one_class for one in told.values()) else ""
    rates = [f"{percent(one.rate.mean)} for {name}" for name, one in told.items()]
    return (
        f"An attacker who knows the other {what} of the batch and is given {count} candidates{kind}"
        f" picks the right one in this share of trials (chance: {percent(1 / count)}):"
        f" {_list(rates)}."
    )


def _losses_agree(classical: DefenseResult, optimal: DefenseResult) -> bool:
    """Whether the intervals of the loss after training overlap."""
    if classical.training is None or optimal.training is None:
        return False
    a, b = classical.training.loss_after, optimal.training.loss_after
    return a.low <= b.high and b.low <= a.high


def _loss(defense: DefenseResult) -> str:
    return number(defense.training.loss_after.mean) if defense.training else "not measured"


def _ratio(classical: DefenseResult, optimal: DefenseResult) -> float | None:
    if not (classical.bound and optimal.bound) or classical.bound.trace_mse <= 0:
        return None
    return optimal.bound.trace_mse / classical.bound.trace_mse


def _below(result: AuditResult) -> str:
    names = [
        d.name
        for d in result.defenses
        if d.bound and any(a.mse.high < d.bound.mse for a in d.attacks)
    ]
    if not names:
        return ""
    return (
        f"An attack went below the reference error for {_list(names)}. That error is a limit for"
        f" Gaussian data, not a guarantee for {_inputs(result)}: these are easier to guess, so it"
        " does not protect them."
    )


def _does_not_hold(result: AuditResult) -> str:
    """A number whose assumptions fail is a reference, and no more."""
    names = [d.name for d in result.defenses if d.bound and not d.bound.holds]
    if not names:
        return ""
    reasons = {d.bound.reason for d in result.defenses if d.bound and not d.bound.holds}
    return (
        f"The reference error is no guarantee for {_list(names)}: {'; '.join(sorted(reasons))}. Use"
        " it only to compare defenses."
    )


def _near_copies(result: AuditResult) -> str:
    names = [d.name for d in result.defenses if not d.excludes_copies]
    if not names:
        return ""
    return f"The reference error does not exclude near copies for {_list(names)}."


def _unproved(result: AuditResult) -> str:
    unproved = [d for d in result.defenses if d.bound is None]
    if not unproved:
        return ""
    reasons = sorted({d.no_guarantee for d in unproved if d.no_guarantee})
    why = f" ({'; '.join(reasons)})" if reasons else ""
    what = (
        "the attacks that were run" if attacks_judge(result) else "how often candidates are picked"
    )
    return (
        f"No guarantee: {_list(d.name for d in unproved)}{why}. All that is known there is what was"
        f" measured with {what}; a stronger attack may recover more."
    )


def _formal(result: AuditResult) -> str:
    carriers = [d.name for d in result.defenses if d.is_formal]
    if carriers:
        return f"Formal privacy is stated for {_list(carriers)} only; see Guarantees."
    return "None of this carries a formal (ε, δ) privacy guarantee."


def _inputs(result: AuditResult) -> str:
    return "images" if result.setup.is_image else "inputs"


def _list(parts: Iterable[str]) -> str:
    """Words with commas and "and"."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
