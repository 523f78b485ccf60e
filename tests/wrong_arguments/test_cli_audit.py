"""`gradveil audit` and `gradveil bound`: data, models, weights, numbers, modes."""

import pytest

from tests.wrong_arguments.conftest import Refuses

SHARED = [
    ("--data missing.npz", "Option `--data`", "missing.npz"),
    ("--data nowhere/x.npz", "Option `--data`", "does not exist"),
    ("--data notes.txt", "Option `--data`", "notes.txt"),
    ("--data folder", "Option `--data`", "nothing"),
    ("--data cut.npz", "Option `--data`", "cut.npz"),
    ("--data text.npz", "Option `--data`", "not a zip file"),
    ("--data floats.npz", "Option `--loss`", "targets are numbers"),
    ("--data nan.npz", "Option `--data`", "NaN"),
    ("--data names.npz", "Option `--data`", "none"),
    ("--data integers.npz", "Option `--data`", "int64"),
    ("--data ignored.npz", "Option `--data`", "-100"),
    ("--data large.npz", "Option `--data`", str(2**40 + 3)),
    ("--data ~nobody-here/x.npz", "Option `--data`", "~nobody-here"),
    ("--dataset mnits", "Option `--data`", "Did you mean `mnist`"),
    ("--dataset=", "Option `--dataset`", "''"),
    ("--device meta", "Option `--device`", "'meta'"),
    ("--device abacus", "Option `--device`", "'abacus'"),
    ("--device cuda:9", "Option `--device`", "'cuda:9'"),
    ("--device cpu:3", "Option `--device`", "'cpu:3'"),
    ("--device=", "Option `--device`", "''"),
    ("--seed -1", "Option `--seed`", "-1"),
    (f"--seed {2**70}", "Option `--seed`", str(2**70)),
    ("--seed 0.5", "--seed", "0.5"),
    ("--batch-size 0", "Option `--batch-size`", "0"),
    ("--batch-size -3", "Option `--batch-size`", "-3"),
    ("--batch-size 50", "`--batch-size`", "50"),
    ("--batch-size two", "--batch-size", "two"),
    ("--model resnet", "Option `--model`", "`resnet`"),
    ("--model=", "Option `--model`", "''"),
    ("--model own:missing", "Option `--model`", "AttributeError"),
    ("--model absent_module:net", "Option `--model`", "ModuleNotFoundError"),
    ("--model :net", "Option `--model`", ":net"),
    ("--model own:", "Option `--model`", "own:"),
    ("--model own:CONSTANT", "Option `--model`", "int"),
    ("--model own:raises", "Option `--model`", "no model today"),
    ("--model own:exits", "Option `--model`", "SystemExit: 3"),
    ("--model own:none", "Option `--model`", "NoneType"),
    ("--model own:number", "Option `--model`", "int"),
    ("--model own:needs", "Option `--model`", "width"),
    ("--model own:two_classes", "Option `--data`", "the model has 2 outputs"),
    ("--model own:other_shape", "Option `--model`", "9x3"),
    ("--model own:frozen", "Option `--model`", "Found none"),
    ("--model own:half", "Option `--model`", "torch.float16"),
    ("--model own:parallel", "Option `--model`", "DataParallel"),
    ("--model own:not_finite", "Option `--model`", "1 of 15"),
    ("--model own:infinite_buffer", "Option `--model`", "`scale`"),
    ("--model own:Fails", "Option `--model`", "KeyError: 'lost'"),
    ("--model own:ReturnsNothing", "Option `--model`", "NoneType"),
    ("--model own:Checkpointed", "Option `--model`", "switch checkpointing off"),
    ("--model own:Leaves", "Option `--model`", "SystemExit: 5"),
    ("--model own:meta", "Option `--model`", "meta"),
    ("--device hpu", "Option `--device`", "'hpu'"),
    ("--weights=", "Option `--weights`", "''"),
    ("--model broken_syntax:f", "Option `--model`", "SyntaxError"),
    ("--model broken_import:f", "Option `--model`", "ZeroDivisionError: at import"),
    ("--model broken_exit:f", "Option `--model`", "SystemExit: 4"),
    ("--model simple-conv-net", "Option `--model`", "(5,)"),
    ("--weights missing.pt", "Option `--weights`", "does not exist"),
    ("--weights folder", "Option `--weights`", "is a folder"),
    ("--weights cut.pt", "Option `--weights`", "is damaged"),
    ("--weights cut_late.pt", "Option `--weights`", "is damaged"),
    ("--weights empty.pt", "Option `--weights`", "is damaged"),
    ("--weights notes.txt", "Option `--weights`", "notes.txt"),
    ("--weights table.npz", "Option `--weights`", "table.npz"),
    ("--weights names.pt", "Option `--weights`", "x.0.weight"),
    ("--weights shapes.pt", "Option `--weights`", "size mismatch"),
    ("--weights nan.pt", "Option `--weights`", "NaN"),
    ("--weights complex.pt", "Option `--weights`", "0.weight"),
    ("--weights list.pt", "Option `--weights`", "list"),
    ("--weights numbers.pt", "Option `--weights`", "[1]"),
    ("--defense optimal-nose", "Option `--defense`", "Did you mean `optimal-noise`"),
    ("--defense optimal-noise(scale=-1)", "Option `--defense`", "scale = -1"),
    ("--defense optimal-noise(scale=1e300)", "Option `--defense`", "1e+300"),
    ("--defense optimal-noise(wide=1)", "Option `--defense`", "wide"),
    ("--defense optimal-noise(", "Option `--defense`", "optimal-noise("),
    ("--defense=", "Option `--defense`", "''"),
    ("--defense optimal-pruning(ratio=3)", "Option `--defense`", "ratio = 3"),
    ("--defense broken_import:D", "Option `--defense`", "ZeroDivisionError"),
    ("--defense own:absent", "Option `--defense`", "absent"),
    ("--format xml", "--format", "xml"),
    ("--speed 3", "--speed", "No such option"),
    ("stray", "stray", "unexpected extra argument"),
]

AUDIT = [
    ("--batches 0", "Option `--batches`", "0"),
    ("--batches 7", "`--batches`", "28"),
    ("--seeds 0", "Option `--seeds`", "0"),
    ("--steps 0", "Option `--steps`", "0"),
    ("--steps -1", "Option `--steps`", "-1"),
    ("--quick --steps 0", "Option `--steps`", "0"),
    ("--time-budget -1", "Option `--time-budget`", "-1.0"),
    ("--time-budget nan", "Option `--time-budget`", "nan"),
    ("--message letter", "--message", "letter"),
    ("--local-steps 3", "Option `--local-steps`", "--local-steps 3"),
    ("--local-lr 0.1", "Option `--local-lr`", "--local-lr 0.1"),
    ("--message gradient --local-lr 0.1", "Option `--local-lr`", "0.1"),
    ("--message update --local-steps 0", "Option `--local-steps`", "0"),
    ("--message update --local-lr 1e38", "Option `--local-lr`", "1e+38"),
    ("--message update --local-lr nan", "Option `--local-lr`", "nan"),
    ("--attack strongg", "Option `--attack`", "Did you mean `strong`"),
    ("--attack strong(steps=0)", "Option `--attack`", "steps = 0"),
    ("--attack broken_syntax:A", "Option `--attack`", "SyntaxError"),
    ("--attack analytic --steps 5", "Option `--steps`", "5"),
    ("--out notes.txt", "Option `--out`", "notes.txt"),
    ("--out loop", "Option `--out`", "loop"),
    ("--out /proc/x/y", "Option `--out`", "/proc/x/y"),
    ("--out=", "Option `--out`", "''"),
    ("--out notes.txt/deeper", "Option `--out`", "is a file"),
]

BOUND = [
    ("--out somewhere", "Option `--out`", "--out somewhere"),
    ("--sweep --out notes.txt", "Option `--out`", "notes.txt"),
    ("--sweep --defense no-defense", "Option `--sweep`", "--defense no-defense"),
    ("--sweep --defense rounding(0.1)", "Option `--sweep`", "--defense rounding(0.1)"),
    ("--defense a --defense optimal-nose", "Option `--defense`", "optimal-nose"),
    ("--kind exact", "--kind", "exact"),
    ("--guess 0.1", "Option `--guess`", "--guess 0.1"),
    ("--kind fisher --sweep", "Option `--sweep`", "--sweep"),
    ("--kind fisher --steps 3", "Option `--steps`", "--steps 3"),
    ("--kind recognition --guess 0.1", "Option `--data`", "--data table.npz"),
]

STATEMENTS = [
    ("recognition --noise-multiplier 1", "Option `--guess`", "Found none"),
    ("recognition --guess 0.1", "Option `--noise-multiplier`", "Found none"),
    ("recognition --guess 0 --noise-multiplier 1", "Option `--guess`", "0.0"),
    ("recognition --guess 0.1 --noise-multiplier -1", "Option `--noise-multiplier`", "-1.0"),
    ("renyi --noise-multiplier 1 --sample-rate 50", "Option `--sample-rate`", "50.0"),
    ("renyi --noise-multiplier 1 --steps 0", "Option `--steps`", "0"),
    ("renyi --noise-multiplier 1 --diameter 0", "Option `--diameter`", "0.0"),
    ("renyi --noise-multiplier 1 --batch-size 2", "Option `--batch-size`", "--batch-size 2"),
]


def completed(typed: str) -> list[str]:
    """The typed options, and small ones in place of those that were not typed."""
    arguments = typed.split(" ")
    data = [] if "--data" in typed else ["--data", "table.npz"]
    own = "--weights" in typed
    return [*arguments, *data, *(["--model", "own:table_net"] if own else [])]


@pytest.mark.parametrize(("typed", "option", "found"), SHARED + AUDIT)
def test_audit(typed: str, option: str, found: str, refuses: Refuses) -> None:
    refuses(["audit", *completed(typed)], option, found)


@pytest.mark.parametrize(("typed", "option", "found"), SHARED + BOUND)
def test_bound(typed: str, option: str, found: str, refuses: Refuses) -> None:
    refuses(["bound", *completed(typed)], option, found)


@pytest.mark.parametrize(("typed", "option", "found"), STATEMENTS)
def test_statements(typed: str, option: str, found: str, refuses: Refuses) -> None:
    refuses(["bound", "--kind", *typed.split(" ")], option, found)
