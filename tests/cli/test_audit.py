"""`gradveil audit` as a user runs it: own models and data, mistakes, interruptions."""

import dataclasses
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from gradveil.audit import AuditResult
from gradveil.cli import app
from gradveil.cli._audit import show_audit
from tests.audit.example_frontier import frontier_result
from tests.audit.example_result import example_result

MODULE = '''
import torch
from gradveil import GradientNoise
from torch import nn


class TinyViT(nn.Module):
    """Patches of 4x4, one attention block, a linear head."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Unfold(4, stride=4)
        self.embed = nn.Linear(16, 8)
        self.positions = nn.Parameter(0.1 * torch.randn(4, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        tokens = self.embed(self.patches(x).transpose(1, 2)) + self.positions
        return self.head(self.block(tokens).mean(1))


def table_net():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


class OwnNoise(GradientNoise):
    """A defense of the user's."""
'''


def saved(folder):
    return AuditResult.from_json((folder / "results.json").read_text())


MAIN = "from gradveil.cli import main; main()"
QUICK = [
    "--batch-size",
    "2",
    "--steps",
    "4",
    "--training-rounds",
    "5",
    "--defense",
    "no-defense",
    "--defense",
]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with a module of models and two data sets."""
    (tmp_path / "own_models.py").write_text(MODULE)
    numbers = np.random.default_rng(0)
    labels = np.arange(20) % 3
    images = numbers.integers(0, 256, (20, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=labels)
    rows = numbers.normal(size=(20, 5)).astype(np.float32)
    np.savez(tmp_path / "table.npz", x=rows, y=labels)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments], capture_output=True, text=True, env=environment
    )


def invoke(*arguments: str):
    """The command in this process; its mistakes are exceptions."""
    jobs = [] if "--jobs" in arguments else ["--jobs", "1"]
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["audit", *arguments, *jobs])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "model", "is_image"),
    [("images.npz", "own_models:TinyViT", True), ("table.npz", "own_models:table_net", False)],
)
def test_a_users_own_model_and_data_end_to_end(workplace, data, model, is_image):
    done = invoke("--data", data, "--model", model, *QUICK, "optimal-noise(0.1)", "--out", "result")
    assert done.exit_code == 0, (done.output, done.exception)
    result = saved(workplace / "result")
    assert result.setup.is_image is is_image
    assert result.setup.model == model
    noisy = result.defenses[1]
    assert noisy.name == "optimal noise"
    assert noisy.bound.mse > 0
    assert result.setup.federation.rounds == 5
    assert [len(one.runs) for one in noisy.attacks] == [1]
    assert (noisy.attacks[0].psnr is not None) is is_image
    assert (workplace / "result" / "report.html").exists()
    for line in ("Nothing is guaranteed", "optimal noise", "result/report.html", "Gaussian"):
        assert line in " ".join(done.stdout.split()), line
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_typed_import_paths_quoted_hyphens_and_options_of_a_model(workplace):
    done = invoke(
        "--data", "table.npz", "--model", "mlp(sizes=[5, 7, 3])", "--quick", "--format", "json",
        *QUICK, 'optimal-noise(0.1, estimator="per-example")',
        "--defense", "own_models:OwnNoise(scale=0.25)",
        "--attack", "gradveil.attacks:InvertingGradients(steps=2)",
    )  # fmt: skip
    assert done.exit_code == 0, (done.output, done.exception)
    result = json.loads(done.stdout)
    assert result["setup"]["model"] == "mlp(sizes=[5, 7, 3])"
    specs = [one["defense"] for one in result["defenses"]]
    assert specs[1].endswith("estimator='per-example')")
    assert specs[2] == "own_models:OwnNoise(scale=0.25)"


def test_other_peoples_defenses_are_rows_by_name(workplace):
    done = invoke(
        "--data", "table.npz", "--quick", "--format", "json", "--batch-size", "2", "--steps", "2",
        "--defense", "laplace-noise(scale=0.1)", "--defense", "sign-compression",
    )  # fmt: skip
    assert done.exit_code == 0, (done.output, done.exception)
    _, noise, signs = json.loads(done.stdout)["defenses"]
    assert (noise["name"], signs["name"]) == ("Laplace noise", "sign compression")
    assert noise["bound"] is not None
    assert signs["bound"] is None
    assert noise["attacks"]
    assert signs["attacks"]


def test_json_is_the_file(workplace):
    done = invoke(
        "--data", "table.npz", *QUICK, "gradient-noise(0.1)", "--quick", "--format", "json",
        "--labels", "counts", "--no-statistics",
    )  # fmt: skip
    assert done.exit_code == 0, (done.output, done.exception)
    assert json.loads(done.stdout) == json.loads(Path("gradveil-audit/results.json").read_text())
    setup = json.loads(done.stdout)["setup"]
    assert (setup["threat"]["labels"], setup["threat"]["statistics"]) == ("counts", False)


def test_weights_are_used(workplace):
    from own_models import table_net

    torch.save(table_net().state_dict(), "weights.pt")
    done = invoke("--data", "table.npz", "--model", "own_models:table_net", "--quick", "--weights",
                  "weights.pt", *QUICK, "gradient-noise(0.1)")  # fmt: skip
    assert done.exit_code == 0, (done.output, done.exception)


class Malicious:
    """Would run code when unpickled."""

    def __reduce__(self):
        return os.mkdir, ("pwned",)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "missing.npz"], "which does not exist"),
        (["--dataset", "mnits"], "Did you mean `mnist`?"),
        (["--model", "simple-convnet"], "Did you mean `simple-conv-net`?"),
        (["--defense", "optimal-nose"], "Did you mean `optimal-noise`?"),
        (["--attack", "adaptiv"], "Did you mean `adaptive`?"),
        (["--defense", "os:mkdir(path='pwned')"], "It was not called"),
        (["--attack", "os:mkdir(path='pwned')"], "It was not called"),
        (["--model", "os:mkdir(path='pwned')"], "It was not called"),
        (["--defense", "optimal-noise(cap=1.0, cap=2.0)"], "the option `cap` twice"),
        (["--weights", "missing.pt"], "does not exist"),
        (["--weights", "code.pt"], "code, which is not run"),
        (["--weights", "other.pt"], "should fit the model"),
        (["--model", "own_models:TinyViT"], "should accept inputs of shape (2, 5)"),
        (["--device", "abacus"], "device of this machine"),
        (["--out", "table.npz"], "should be a folder"),
        (["--batch-size", "50"], "Choose a smaller batch"),
    ],
)
def test_mistakes_are_named(workplace, arguments, words):
    torch.save(Malicious(), "code.pt")
    torch.save({"a": torch.ones(1)}, "other.pt")
    data = [] if {"--dataset", "--data"} & {*arguments} else ["--data", "table.npz"]
    size = [] if "--batch-size" in arguments else ["--batch-size", "2"]
    done = invoke(*data, *size, *arguments)
    assert isinstance(done.exception, (ValueError, OSError)), done.output
    assert words in " ".join(str(done.exception).split())
    assert not Path("pwned").exists()
    assert not Path("gradveil-audit/results.json").exists()


def test_more_labels_than_outputs_is_one_line_exit_code_2_and_json(workplace):
    rows = np.zeros((4, 5), dtype=np.float32)
    np.savez("many.npz", x=rows, y=np.array([0, 7, 1, 2]))
    done = run(
        "audit", "--data", "many.npz", "--model", "own_models:table_net", "--batch-size", "2",
        "--format", "json",
    )  # fmt: skip
    assert done.returncode == 2
    assert "the model has 3 outputs" in json.loads(done.stdout)["error"]
    assert len([line for line in done.stderr.splitlines() if line.startswith("gradveil: ")]) == 1
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_written_is_found_before_the_work(workplace):
    Path("locked").write_text("")
    done = invoke("--data", "table.npz", "--out", "locked/deeper")
    assert isinstance(done.exception, OSError)


@pytest.mark.slow
def test_a_full_disk_leaves_nothing_half_written(workplace):
    """A limit on the size of files stands for the disk: writes fail in the same way."""
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); {MAIN}"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", code, "audit", "--data", "table.npz", "--quick", *QUICK,
         "gradient-noise(0.1)", "--out", "full"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    kept = [path for path in Path("full").rglob("*") if path.is_file()]
    assert not [path for path in kept if path.parent == Path("full")]
    for path in kept:  # small cells fit; each is whole
        assert json.loads(path.read_text())["function"] == path.name.split("-")[0]


def test_ctrl_c_writes_what_is_finished_and_says_so(workplace):
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "audit", "--data", "table.npz", "--quick", "--steps",
         "10000000", "--batch-size", "2", "--out", "stopped", "--jobs", "2"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=workplace,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not [*workplace.glob("stopped/cells/*.json")] and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "stopped early; what is finished was written" in " ".join(output.split())
    result = saved(workplace / "stopped")
    assert result.stopped == "interrupted"
    assert [*workplace.glob("stopped/cells/*.json")]


def test_ctrl_c_on_curves_keeps_what_is_done_and_the_same_command_goes_on(workplace):
    command = [
        sys.executable, "-c", MAIN, "audit", "--data", "table.npz", "--batch-size", "2", "--jobs",
        "1", "--steps", "3", "--defense", "gradient-noise", "--training-rounds", "2",
        "--strengths", "3", "--goal", "loss<=+50%", "--out", "stopped",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=workplace
    )
    assert process.stderr is not None
    seen = ""
    while "first strengths" not in seen and process.poll() is None:
        seen += process.stderr.read(1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130, output
    assert saved(workplace / "stopped").stopped == "interrupted"
    done = subprocess.run(command, capture_output=True, text=True, cwd=workplace, timeout=600)
    assert done.returncode == 0, done.stderr
    result = saved(workplace / "stopped")
    assert result.stopped is None
    assert [answer.goals for answer in result.frontier.answers] == [("loss<=+50%",)]
    assert "loss<=+50%" in done.stdout


def test_goals_are_asked_of_given_strengths_too(workplace):
    asked = ["--goal", "loss<=+90%", "--format", "json"]
    done = invoke("--data", "table.npz", *QUICK, "gradient-noise(0.1)", *asked)
    assert done.exit_code == 0, (done.output, done.exception)
    (answer,) = json.loads(done.stdout)["frontier"]["answers"]
    assert answer["goals"] == ["loss<=+90%"]
    done = invoke("--data", "table.npz", "--goal", "psnr=15")
    assert "psnr<=15" in str(done.exception)


@pytest.mark.parametrize(
    ("stopped", "notes", "code"),
    [
        (None, ("Plans of the user's own were used.",), 0),
        ("time budget", ("The time budget, set by the user, was over.",), 0),
        ("interrupted", (), 130),
    ],
)
def test_the_exit_code_is_that_of_the_stop_reason(workplace, monkeypatch, stopped, notes, code):
    result = dataclasses.replace(example_result(size=2), stopped=stopped, notes=notes)
    monkeypatch.setattr("gradveil.audit.run", lambda *_, **__: result)
    done = invoke("--data", "table.npz", *QUICK, "gradient-noise(0.1)", "--out", "result")
    assert done.exit_code == code, done.output


def shown(result):
    """What the terminal says, and its lines as they are."""
    console = Console(width=100, record=True, file=io.StringIO())
    show_audit(result, console)
    return console.export_text()


def test_a_comparison_says_a_verdict_for_each_defense():
    result = example_result(size=2)
    text = " ".join(shown(result).split())
    places = [text.find(f"{one.name}: {one.verdict}") for one in result.defenses]
    assert -1 not in places
    assert places == sorted(places)
    assert result.notes[0] in text


def test_answers_come_first_and_lines_can_be_pasted():
    text = shown(frontier_result(size=2))
    lines = [
        "Use optimal noise with scale 0.3",
        "Without a defense: ",
        "Attacks no better than a guess (psnr<=13): Use optimal noise with scale 0.3.",
        "    defense = gradveil.OptimalNoise(scale=0.3, source=gradveil.Public(images))\n",
        "Formal (epsilon<=8, not reached): ",
        "simple-conv-net (119,530 parameters, untrained)",
    ]
    places = [text.find(line) for line in lines]
    assert -1 not in places, lines[places.index(-1)]
    assert places == sorted(places)
    assert max(map(len, text.splitlines())) <= 100
