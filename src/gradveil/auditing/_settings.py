"""An audit's settings: checked before any work, and written down to do it again."""

import platform
from collections.abc import Mapping, Sequence
from datetime import date

import torch

from gradveil._checks import (
    check_at_most,
    check_callable,
    check_choice,
    check_count,
    check_flag,
    check_not_negative,
    check_ratio,
    check_seed,
)
from gradveil.attacks import Attack, ThreatModel, as_attack
from gradveil.catalog import build_attack, spec_of
from gradveil.data import Dataset

from ._amounts import MATCHES, RequestedDefense
from ._defaults import STEPS, default_attacks
from ._result import Setup
from ._subject import Subject


def check_settings(
    seeds: int,
    seed: int,
    match: str,
    scale: float | None,
    ratio: float | None,
    steps: int | None,
    training: bool,
    time_budget: float | None,
) -> None:
    """Require numbers that make sense, before any work."""
    check_count(seeds, "seeds")
    check_seed(seed)
    check_choice(match, "match", MATCHES)
    check_flag(training, "training")
    if scale is not None:
        check_not_negative(scale, "scale")
        check_at_most(scale, "scale")
    if ratio is not None:
        check_ratio(ratio, "ratio")
    if steps is not None:
        check_count(steps, "steps")
    if time_budget is not None:
        check_not_negative(time_budget, "time_budget")


def check_use(
    requested: Sequence[RequestedDefense], match: str, scale: float | None, ratio: float | None
) -> None:
    """Require that amounts of the references are of use: some defense leaves its own open."""
    amounts = {amount for one in requested for amount in one.open}
    uses = (
        ("scale", scale, {"scale", "noise"}),
        ("ratio", ratio, {"ratio"}),
        ("match", None if match == "utility" else match, {"scale", "noise", "ratio"}),
    )
    for name, value, needed in uses:
        if value is not None and not amounts & needed:
            raise ValueError(
                f"Parameter `{name}` should be left out where no defense leaves an amount open that"
                f" depends on it. Found `{name} = {value}` with {[one.name for one in requested]}."
            )


def chosen_attacks(
    asked: Sequence[str | Attack] | None, steps: int | None, data: Dataset
) -> list[Attack]:
    """The attacks that were asked for, or the usual ones for these data, with so many steps."""
    if asked is None:
        return default_attacks(STEPS if steps is None else steps, data)
    built = check_attacks(asked)
    if steps is not None and built and all(map(_takes_no_steps, built)):
        raise ValueError(
            "Parameter `steps` should be left out for attacks that take none. Found"
            f" `steps = {steps}` with {[spec_of(one) for one in built]}."
        )
    return [one.configured(steps=steps) for one in built]


def check_attacks(asked: Sequence[str | Attack]) -> list[Attack]:
    """Require attacks or their specifications; returns the attacks."""
    built = [build_attack(one) if isinstance(one, str) else one for one in asked]
    for one in built:
        check_callable(one, "attacks", "Use for example `InvertingGradients()`.")
    return [as_attack(one) for one in built]


def _takes_no_steps(attack: Attack) -> bool:
    """Whether one step more or less makes no difference to it."""
    return attack.configured(steps=1) == attack.configured(steps=2)


def describe_setup(
    subject: Subject,
    seeds: int,
    seed: int,
    match: str,
    threat: ThreatModel,
    equal: str,
    names: Mapping[str, str],
) -> Setup:
    """What was audited, and with which versions."""
    from gradveil import __version__

    return Setup(
        data=subject.data.name,
        model=names.get("model", type(subject.model).__name__),
        parameters=sum(p.numel() for p in subject.model.parameters()),
        input_shape=tuple(subject.data.inputs.shape[1:]),
        batch_size=subject.batch_size,
        batches=subject.batches,
        seeds=seeds,
        seed=seed,
        match=match,
        message="gradient" if subject.local is None else "update",
        threat_labels=threat.labels,
        threat_statistics=threat.statistics,
        is_image=subject.is_image,
        device=str(subject.data.inputs.device),
        command=names.get("command", ""),
        threat_mechanism=threat.mechanism,
        equal=equal,
        weights=names.get("weights", "as given"),
        date=date.today().isoformat(),
        task=subject.task,
        tokens=subject.tokens,
        versions={
            "gradveil": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        },
    )
