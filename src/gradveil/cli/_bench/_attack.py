"""`gradveil bench attack`: attacks beside each other, or beside a peer's method."""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from gradveil._checks import check_not_negative, check_positive
from gradveil._extras import require

from .._format import Format
from .._options import option, options, own_options, useless
from ._app import bench
from ._show import check_options, digits, line_of, report, require_chart

if TYPE_CHECKING:
    from gradveil.data import Dataset

SHOWN = ["case", "attack", "guess", "peer", "ours", "gain", "seconds"]


class Peer(str, Enum):
    """Methods of others that are written down here."""

    inversefed = "inversefed"


@bench.command()
def attack(
    against: Annotated[
        Peer | None, typer.Option(help="Compare with this peer, in the time that ours take.")
    ] = None,
    speed: Annotated[
        bool, typer.Option(help="Only steps per second, ours beside the peer's.")
    ] = False,
    case: Annotated[
        list[str] | None, typer.Option(help="With a peer: a case; repeatable. All of them.")
    ] = None,
    attack: Annotated[
        list[str] | None, typer.Option(help="With a peer: ours; repeatable. Those of the case.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="With a peer: steps of ours.")] = None,
    time: Annotated[
        float | None, typer.Option(help="With a peer: seconds after which ours end.")
    ] = None,
    least: Annotated[
        float | None, typer.Option(help="With a peer: seconds that it gets at least.")
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(help="With a peer: the first image attacked.", show_default="the last ones"),
    ] = None,
    budget: Annotated[
        list[float] | None, typer.Option(help="Seconds for each batch; repeatable. 5, 20, 60.")
    ] = None,
    batches: Annotated[
        int | None,
        typer.Option(help="Batches.", show_default="3, 100 images apart; 8 with a peer; quick 1"),
    ] = None,
    images: Annotated[int | None, typer.Option(help="Images in a batch.", show_default="4")] = None,
    mnist: Annotated[str, typer.Option(help="MNIST: embedded, or a folder.")] = "mnist",
    cifar: Annotated[str, typer.Option(help="CIFAR-10: embedded, a folder or .npz.")] = "cifar10",
    quick: Annotated[bool, typer.Option(help="One batch, 2 seconds.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for results and the chart.")] = None,
    format: Annotated[Format, typer.Option(help="A table, or JSON for machines.")] = Format.table,
) -> None:
    """Steps per second of each attack, and the PSNR it reaches in a given time.

    With --against, each case of the table in docs/attacks.md: our attacks, the peer in the same
    time and a blind guess. Runs that are done are kept in --out, and not run again; one image of
    each case is drawn there, too.
    """
    peer = against is not None or speed
    useless("--case", case, peer, "without `--against`")
    mine = {"attack": attack, "steps": steps, "time": time, "least": least, "first": first}
    for name, value in mine.items():
        useless(f"--{name}", value, peer and not speed, "without `--against`")
    useless("--budget", budget, not peer, "with a peer")
    useless("--images", images, not peer, "with a peer")
    if speed:
        _speed(case, mnist, cifar, quick, out, format)
    elif peer:
        limits = {"steps": steps, "seconds": time, "least": least, "first": first}
        chosen = {"attacks": tuple(attack) if attack else None, "batches": batches, **limits}
        _against(case, chosen, mnist, cifar, quick, out, format)
    else:
        _alone(budget, batches, 4 if images is None else images, mnist, quick, out, format)


def _alone(
    budget: list[float] | None,
    batches: int | None,
    images: int,
    mnist: str,
    quick: bool,
    out: Path | None,
    format: Format,
) -> None:
    require_chart(out)
    require("the benchmark of attacks", "gradveil[audit]", "scipy")
    from gradveil.bench import AttackRow, attack_contenders, bench_attack, draw_attacks

    budgets = budget or ([2.0] if quick else [5.0, 20.0, 60.0])
    count = batches if batches is not None else 1 if quick else 3
    check_options(out, batches=count, images=images)
    for seconds in budgets:
        check_positive(seconds, "--budget")
    digits(mnist, images, "--images")
    data = digits(mnist, 100 * (count - 1) + images, "--batches")
    with Console(stderr=True).status("starting") as status:
        rows = bench_attack(
            data,
            attack_contenders(),
            starts=range(0, 100 * count, 100),
            images=images,
            budgets=budgets,
            progress=status.update,
        )
    report(rows, AttackRow, "attack", out, format)
    if out is not None:
        draw_attacks(rows, out / "attack.png")


def _against(
    case: list[str] | None,
    chosen: dict[str, Any],
    mnist: str,
    cifar: str,
    quick: bool,
    out: Path | None,
    format: Format,
) -> None:
    require("the benchmark of attacks", "gradveil[audit]", "scipy")
    from gradveil.bench import (
        AgainstPictures,
        AgainstRow,
        AgainstSettings,
        against_cases,
        bench_against,
    )

    require_chart(out)
    with options({"case": "--case", "seconds": "--time", **own_options("batches")}):
        cases = against_cases(case)[: 1 if quick else None]
        _check_limits(chosen, out)
        usual = {"batches": 1, "seconds": 2.0} if quick else {}
        given = {name: value for name, value in chosen.items() if value is not None}
        settings = AgainstSettings(**{**usual, **given})
        data = _both({one.data for one in cases}, mnist, cifar)
        for one in cases:
            settings.starts(one, data[one.data])
    rows: list[AgainstRow] = []
    shown: list[AgainstPictures] = []
    kept = None if out is None else out / "against.jsonl"
    console = Console(stderr=True)
    with console.status("starting") as status:
        found: Iterator[AgainstRow] = bench_against(
            cases, data, settings, file=kept, progress=status.update, show=shown.append
        )
        for row in found:
            rows.append(row)
            console.print(line_of(row), highlight=False)
    report(rows, AgainstRow, "against", out, format, SHOWN)
    if out is not None and shown:
        from gradveil.studies.figures import draw_images

        lines = [(one.case, one.images, one.notes) for one in shown]
        draw_images(out / "against", lines, width=1.25)


def _check_limits(chosen: dict[str, Any], out: Path | None) -> None:
    from gradveil.catalog import build_attack

    check_options(out, **{n: chosen[n] for n in ("batches", "steps") if chosen[n] is not None})
    if chosen["seconds"] is not None:
        check_positive(chosen["seconds"], "--time")
    if chosen["least"] is not None:
        check_not_negative(chosen["least"], "--least")
    with option("--attack", "spec"):
        for text in chosen["attacks"] or ():
            build_attack(text)


def _speed(
    case: list[str] | None, mnist: str, cifar: str, quick: bool, out: Path | None, format: Format
) -> None:
    from gradveil.bench import SPEED_CASES, SpeedRow, bench_speed

    known = {one.name: one for one in SPEED_CASES}
    for name in case or ():
        if name not in known:
            raise ValueError(
                f"Option `--case` should be one of {', '.join(known)}. Found {name!r}. Choose one."
            )
    cases = [known[name] for name in case or known][: 1 if quick else None]
    check_options(out)
    data = _both({one.data for one in cases}, mnist, cifar)
    rows: list[SpeedRow] = []
    console = Console(stderr=True)
    with console.status("starting") as status:
        repeats = 1 if quick else 5
        for row in bench_speed(data, cases, repeats=repeats, progress=status.update):
            rows.append(row)
            console.print(line_of(row), highlight=False)
    report(rows, SpeedRow, "attack-speed", out, format)


def _both(names: set[str], mnist: str, cifar: str) -> "dict[str, Dataset]":
    """The data sets that are needed."""
    from gradveil.data import load_dataset

    found = {}
    if "mnist" in names:
        found["mnist"] = digits(mnist, 1, "--mnist")
    if "cifar10" in names:
        with option("--cifar", "source"):
            found["cifar10"] = load_dataset(cifar, normalization="cifar10")
    return found
