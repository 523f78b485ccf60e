"""The shape of the source tree: who imports whom."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import gradveil

ROOT = Path(gradveil.__file__).parent
CORE = ("messages", "sensitivity", "shapes", "mechanisms", "defenses", "theory")
OUTSIDE = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {*CORE}
"""All other rooms."""


def module_name(path: Path) -> str:
    parts = ("gradveil", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def tree_of(path: Path) -> ast.Module:
    """The module's syntax tree, parsed once."""
    return ast.parse(path.read_text())


def imports_of(name: str, tree: ast.AST, is_package: bool) -> Iterator[str]:
    """The modules of gradveil that a module imports, at its top or inside of functions."""
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("gradveil"))
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            target = ".".join(part for part in (above, node.module) if part)
            if target.partition(".")[0] == "gradveil":
                yield target
                inner = (f"{target}.{alias.name}" for alias in node.names)
                yield from (module for module in inner if module in MODULES)


@cache
def imports() -> frozenset[tuple[str, str]]:
    """(importing module, imported module)."""
    return frozenset(
        (name, target)
        for name, path in MODULES.items()
        for target in imports_of(name, tree_of(path), path.stem == "__init__")
    )


def is_private_to_another(importer: str, target: str) -> bool:
    """Whether a part of the target starts with an underscore outside of the importer's packages."""
    parts = target.split(".")
    owners = (".".join(parts[:i]) for i, part in enumerate(parts) if part.startswith("_"))
    return any(not f"{importer}.".startswith(f"{owner}.") for owner in owners)


def test_the_core_imports_nothing_outward():
    outward = {
        (importer, target)
        for importer, target in imports()
        if importer.split(".")[1:2] and importer.split(".")[1] in CORE
        if target.split(".")[1:2] and target.split(".")[1] in OUTSIDE
    }
    assert outward == set()
    assert all((ROOT / room / "__init__.py").exists() for room in CORE)


def test_the_wheel_imports_neither_the_evidence_nor_the_benchmarks():
    """`paper/` and `benchmarks/` import gradveil, never the other way."""
    found = {
        (name, module)
        for name, path in MODULES.items()
        for node in ast.walk(tree_of(path))
        for module in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
        if module.split(".")[0] in ("paper", "benchmarks", "tests")
    }
    assert found == set()


def test_underscore_modules_are_imported_inside_of_their_package_only():
    foreign = {pair for pair in imports() if is_private_to_another(*pair)}
    assert foreign == set()


def test_no_module_imports_itself_through_others():
    """Of what runs when a module is imported: not in functions, nor for type checkers."""
    left = {name: set(_at_once(name, path)) for name, path in MODULES.items()}
    while ready := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in ready:
            del left[name]
    assert left == {}


def _at_once(name: str, path: Path) -> Iterator[str]:
    for node in tree_of(path).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from imports_of(name, node, path.stem == "__init__")


CLIENT = """
import sys
import gradveil.federated
assert not [name for name in sys.modules if name.startswith("gradveil.attacks")]
"""


def test_a_deployed_client_imports_no_attack():
    subprocess.run([sys.executable, "-c", CLIENT], check=True)


def test_the_tests_above_see_every_kind_of_import():
    tree = ast.parse(
        "import gradveil.a._b\nfrom ._c import d\nfrom .. import data\n"
        "def f():\n    from gradveil.cli import _app\n"
    )
    seen = set(imports_of("gradveil.models._mlp", tree, is_package=False))
    assert seen >= {"gradveil.a._b", "gradveil.models._c", "gradveil.data", "gradveil.cli._app"}
    inner = ast.parse("from ._c import d")
    assert set(imports_of("gradveil.models", inner, True)) == {"gradveil.models._c"}


def test_what_is_private_to_whom():
    assert is_private_to_another("gradveil.audit._run", "gradveil.attacks._search")
    assert is_private_to_another("gradveil.attacks._dlg", "gradveil.attacks._search._head")
    assert not is_private_to_another("gradveil.attacks._dlg", "gradveil.attacks._search")
    assert not is_private_to_another(
        "gradveil.attacks._search._head", "gradveil.attacks._observation"
    )
    assert not is_private_to_another("gradveil.attacks", "gradveil.attacks._dlg")
    assert not is_private_to_another("gradveil.attacks._dlg", "gradveil._checks")


PUBLIC = {
    "": """
        AdaptedModel Bound ClampedNoise Defended Defense FromServer GaussianPrior
        GradientMessage GradientNoise GradientPruning LocalUpdateMessage Message ModelError
        Moments NoDefense NonFiniteError Observation OptimalClampedNoise OptimalNoise
        OptimalPruning OptimalRounding PrivateNoise Public Rounding load_dataset measure
        reconstruction_bound score utility
    """,
    "attacks": """
        Adaptive Analytic Attack CAFE DLG ExactInversion Fishing GradInversion IDLG Identify
        Imprint InvertingGradients Observation Peel PlanReader Reconstruction Regress SpanCheck
        TabLeak ThreatModel TokenRows TotalVariation Unpool identify_trials observe
        recover_labels
    """,
    "audit": """
        AuditResult Federation Goal Releases Settings Subject run write_results
    """,
    "audit.measure": """
        BoundStudy
    """,
    "audit.report": """
        render_report write_results
    """,
    "catalog": """
        Spec build_attack build_defense spec_of
    """,
    "cli": """
        app main
    """,
    "data": """
        Dataset Normalization TableLayout load_dataset
    """,
    "defenses": """
        About ClampedNoise Defended Defense ErrorFeedback GradientNoise GradientPruning
        InstaHide LaplaceNoise MixUp NoDefense NoiseDefense OptimalClampedNoise OptimalNoise
        OptimalPruning OptimalRounding Outpost Pixelization PrivateNoise PruningDefense QSGD
        Rounding SignCompression Soteria
    """,
    "denoising": """
        Denoiser LearnedPrior LearnedPriors
    """,
    "federated": """
        Client FederatedRun Federation Limits ModelGuard NoReplyError Planner RefusedError
        Server TrainingConfig TrainingHistory evaluate partition train
    """,
    "flower": """
        DefendReply FedAvgUpdates FedSGD reply_to train_function
    """,
    "mechanisms": """
        AnyMechanism LaplaceMechanism Mechanism QuantisationMechanism RoundingMechanism
        SignMechanism
    """,
    "messages": """
        AdaptedModel ClippedMessage ClippedUpdate GradientMessage LocalSteps LocalUpdateMessage
        LossFunction Message ModelError
    """,
    "models": """
        build_loss build_model next_token_loss with_bottleneck
    """,
    "privacy": """
        BudgetError PrivacyAccount SecureGenerator epsilon_after
        poisson_sample recognition_bound renyi_bound solve_noise_multiplier
    """,
    "scoring": """
        Interval PieceScores Scores bootstrap_interval score score_table score_tokens
    """,
    "sensitivity": """
        Estimator Exact HiddenPathWarning Measurement Moments PerExample Sketch Structured
        measure
    """,
    "shapes": """
        FromServer Given ModelSource Public Shape Source fit_shape rms_shape
    """,
    "theory": """
        Bound BoundCase GaussianPrior Prior expected_decrease fisher_trace gain_over_isotropic
        mean_bound plan_information reconstruction_bound share_of_optimum utility
    """,
}
"""The `__all__` of each public package ("": gradveil itself). A new name is a decision."""


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_are_those_decided_on(package):
    if package == "flower":
        pytest.importorskip("flwr")
    found = import_module(f"gradveil.{package}".rstrip(".")).__all__
    told = (
        "A new public name is a decision: add it to PUBLIC in tests/test_structure.py, and to"
        " CHANGELOG.md with what it is for; or leave it out of `__all__`."
    )
    assert set(found) == set(PUBLIC[package].split()), told
    assert len(found) == len(set(found))


def test_public_packages_and_names_are_few():
    packages = {name for name, path in MODULES.items() if path.stem == "__init__"}
    public = {name.removeprefix("gradveil").lstrip(".") for name in packages if "._" not in name}
    assert public == PUBLIC.keys()
    assert len(PUBLIC[""].split()) <= 30
    assert sum(len(names.split()) for names in PUBLIC.values()) <= 200
