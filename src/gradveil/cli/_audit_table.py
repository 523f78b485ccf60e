"""An audit's result for the terminal, in 100 columns."""

import re

from rich import box
from rich.console import Console
from rich.table import Table

from gradveil.auditing import AttackResult, AuditResult, DefenseResult, Estimate

NOTE = (
    "U1: share of the expected progress of a step that is kept; U2: its variance over ‖g‖². Bound:"
    " no attacker's mean squared error per entry, in normalised units, is below it on data of the"
    " prior; real images carry more prior knowledge than a Gaussian. [..]: 95 % bootstrap interval"
    " over images, batches and seeds."
)


def show_audit(result: AuditResult, console: Console) -> None:
    """Two tables, the verdicts, and what one should know."""
    setup = result.setup
    console.print(
        f"[bold]{setup.model}[/] ({setup.parameters:,} parameters) on {setup.data}:"
        f" {setup.batches} × {setup.batch_size} examples, {setup.seeds} seed(s),"
        f" {setup.message} sent. {setup.equal}",
        highlight=False,
    )
    console.print(_cost_table(result))
    if any(defense.attacks for defense in result.defenses):
        console.print(_attack_table(result))
    for defense in result.defenses:
        console.print(f"[bold]{defense.name}[/]: {defense.verdict}", highlight=False)
    console.print()
    priors = {d.bound.prior for d in result.defenses if d.bound}
    prior = f"Prior: {', '.join(sorted(priors))}. " if priors else ""
    console.print(f"{prior}{NOTE} {' '.join(result.notes)}", style="dim", highlight=False)


def _cost_table(result: AuditResult) -> Table:
    table = _blank("What it costs and what it guarantees")
    for name in ("defense", "setting", "U1", "U2", "loss", "kB", "time", "bound (trace)", "dB ≤"):
        left = name in ("defense", "setting")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "setting")
    for defense in result.defenses:
        table.add_row(*_cost_row(defense))
    return table


def _cost_row(defense: DefenseResult) -> list[str]:
    bound, training = defense.bound, defense.training
    ceiling = bound.psnr_ceiling if bound else None
    return [
        defense.name,
        setting(defense.defense),
        f"{defense.utility_first:.3f}",
        f"{defense.utility_second:.1e}" if defense.utility_second else "0",
        f"{training.loss_after.mean:.3f}" if training else "-",
        f"{defense.bytes_sent / 1000:.0f}",
        f"{defense.time_ratio:.1f}×",
        f"{bound.mse:.3f} ({bound.trace_mse:.4f})" if bound else "no guarantee",
        "" if ceiling is None else f"{ceiling:.1f}",
    ]


def setting(spec: str) -> str:
    """The solved numbers of a specification, short.

    >>> setting("optimal-pruning(ratio=0.7784362, noise=optimal-noise(scale=0.0123456))")
    'ratio 0.778, scale 0.0123'
    >>> setting("no-defense")
    '-'
    """
    found = re.findall(r"(scale|ratio|clip|step)=([\d.e+-]+)", spec)
    return ", ".join(f"{name} {float(value):.3g}" for name, value in found) or "-"


def _attack_table(result: AuditResult) -> Table:
    image = result.setup.is_image
    table = _blank("What attacks recovered (*: knows the defense)")
    table.add_column("defense", no_wrap=True)
    table.add_column("attack", no_wrap=True)
    for name in ("MSE", *(("PSNR [dB]", "SSIM") if image else ()), "labels", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for defense in result.defenses:
        for place, attack in enumerate(defense.attacks):
            table.add_row("" if place else defense.name, *_attack_row(attack, image))
    return table


def _attack_row(attack: AttackResult, image: bool) -> list[str]:
    star = " *" if attack.knows_defense else ""
    cells = [f"{attack.attack.partition('(')[0]}{star}", _interval(attack.mse, 3)]
    if image:
        cells += [_interval(attack.psnr, 1), f"{attack.ssim.mean:.2f}" if attack.ssim else "-"]
    labels = "-" if attack.label_accuracy is None else f"{attack.label_accuracy:.0%}"
    return [*cells, labels, f"{attack.seconds:.0f}"]


def _blank(title: str) -> Table:
    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
    )


def _interval(value: Estimate | None, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value.mean:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"
