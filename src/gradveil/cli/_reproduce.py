"""`gradveil reproduce`: every figure and every claim of the paper, from a store of cells."""

import os
from contextlib import closing, contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from gradveil._extras import require

from ._engines import EngineName, chosen_engine, processors
from ._format import Format
from ._options import option, options, own_options, useless

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradveil.studies.runner import Engine, Store, Work


class Preset(str, Enum):
    """The size of a run."""

    quick = "quick"
    standard = "standard"
    paper = "paper"


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Studies, `all`, or your package.module:STUDY.")
    ] = None,
    preset: Annotated[Preset, typer.Option(help="How much is run.")] = Preset.quick,
    engine: Annotated[EngineName, typer.Option(help="Where it is run.")] = EngineName.local,
    jobs: Annotated[
        int | None, typer.Option(help="Cells at once; all processors if not given.")
    ] = (None),
    address: Annotated[str | None, typer.Option(help="Of a running Ray cluster.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the store and the figures.")] = Path(
        "reproduction"
    ),
    data: Annotated[Path | None, typer.Option(help="Folder of the official data sets.")] = None,
    known: Annotated[
        Path | None, typer.Option(help="A cells.csv of elsewhere, whose cells are not run again.")
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="Show how far it is, run nothing.")] = (
        False
    ),
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run cells again that failed before.")
    ] = False,
    only_figures: Annotated[
        bool, typer.Option("--only-figures", help="Draw from the store, run nothing.")
    ] = False,
    format: Annotated[Format, typer.Option(help="A table, or JSON for machines.")] = Format.table,
) -> None:
    """Reproduce figures and claims of the paper.

    Stop it at any time, even by force: what is done stays in the store, and the same command goes
    on. A second one at the same time, with the same folder, shares the work.
    """
    require("reproducing", "gradveil[audit]", "matplotlib", "scipy", "torchmetrics")
    if engine is EngineName.ray:
        require("the ray engine", "gradveil[ray]", "ray")
    from gradveil.auditing.report import check_folder
    from gradveil.studies.reproduce import (
        check_data,
        left_to_run,
        select_studies,
        take_known,
        work_of,
        write_all,
    )
    from gradveil.studies.runner import read_done

    from ._reproduce_show import show_status, show_written

    useless("--only-figures", only_figures, not status, "with `--status`, which draws nothing")
    useless("--known", known, not status, "with `--status`, which takes nothing")
    runs = not (status or only_figures)
    useless("--retry-failed", retry_failed, runs, "with `--status` and `--only-figures`")
    wanted = names or (["all"] if status or only_figures else [])
    with option("STUDIES", "names"):
        studies = select_studies(wanted, allow_imports=True)
    work = work_of(studies, preset.value)
    at_once = processors() if jobs is None else jobs
    with options(own_options("jobs", "address")):
        chosen = chosen_engine(engine, jobs, address)()
    with option("--out", "out"):
        check_folder(out)
    if data is not None:
        with option("--data", "data"):
            _use_data(data)
    if status:
        with _opened(out, new="never") as store:
            show_status(store, work, at_once, format)
        return
    with option("--known", "known"):
        done = [] if known is None else read_done(known)
    if not only_figures:
        with options({"source": "--data"}), _opened(out, new="never") as store:
            left = left_to_run(store, studies, work, done)
            check_data(left, photos="all" not in wanted)
    with _opened(out, new="error" if only_figures and known is None else "made") as store:
        assert store is not None
        if known is not None:
            taken = take_known(store, studies, preset.value, done, runs=not only_figures)
            Console(stderr=True).print(f"Cells taken from {known}: {taken}.", highlight=False)
        if not only_figures:
            _run(store, work, chosen, at_once, retry_failed)
        folder = out / preset.value
        written = write_all(store, studies, preset.value, folder, any_sources=only_figures)
        complete = show_written(store, work, written, folder, format)
    if not complete:
        raise typer.Exit(1)


def _run(store: "Store", work: "Work", engine: "Engine", at_once: int, retry_failed: bool) -> None:
    """Run the cells under a progress bar."""
    from gradveil.studies.reproduce import prepare, run_cells

    from ._reproduce_show import RunBar

    console = Console(stderr=True)
    prepared = prepare(store, work, retry_failed)
    if prepared.lacking:
        console.print(f"Cells run again that lacked a package or data before: {prepared.lacking}.")
    if prepared.damaged:
        console.print(f"Cells run again because files of theirs are damaged: {prepared.damaged}.")
    try:
        with RunBar(console, work, at_once) as bar:
            run_cells(store, work, engine, bar.show)
    except KeyboardInterrupt:
        console.print("Stopped. What is done is kept: the same command goes on.")
        raise typer.Exit(130) from None


@contextmanager
def _opened(out: Path, new: str) -> "Iterator[Store | None]":
    """The store of a folder; where there is none it is made, None (never), or an error."""
    from gradveil.studies.runner import Store, database_path

    folder = out / "store"
    is_new = not database_path(folder).exists()
    if is_new and new == "error":
        raise FileNotFoundError(
            f"Folder `{out}` should hold a store to draw from. Found none. Leave out"
            " --only-figures, or name its folder with --out."
        )
    if is_new and new == "never":
        yield None
        return
    with closing(Store(folder)) as store:
        yield store


def _use_data(folder: Path) -> None:
    from gradveil.studies.runner import DATA_VARIABLE

    if not folder.is_dir():
        raise FileNotFoundError(
            f"Parameter `data` should be a folder. Found `{folder}`. Check the path."
        )
    os.environ[DATA_VARIABLE] = str(folder.resolve())
