"""`gradveil train`: every option of the configuration, and modes that exclude each other."""

import pytest

from tests.wrong_arguments.conftest import Refuses

SMALL = ["--data", "table.npz", "--model", "own:table_net", "--clients", "2", "--batch-size", "2"]
SHORT = ["--rounds", "1", "--held-out", "4", "--out", "run"]

TRAIN = [
    ("--data missing.npz", "Option `--data`", "missing.npz"),
    ("--data cut.npz", "Option `--data`", "cut.npz"),
    ("--data ignored.npz", "Option `--data`", "-100"),
    ("--data large.npz", "Option `--data`", str(2**40 + 3)),
    ("--data floats.npz", "Option `--data`", "float32"),
    ("--data nan.npz", "Option `--data`", "NaN"),
    ("--data folder", "Option `--data`", "nothing"),
    ("--dataset mnits", "Option `--data`", "Did you mean `mnist`"),
    ("--model resnet", "Option `--model`", "resnet"),
    ("--model conv-net(width=0)", "Option `--model`", "width = 0"),
    ("--model conv-net(wide=1)", "Option `--model`", "wide"),
    ("--model conv-net(", "Option `--model`", "conv-net("),
    ("--model own:raises", "Option `--model`", "no model today"),
    ("--model own:exits", "Option `--model`", "SystemExit: 3"),
    ("--model own:none", "Option `--model`", "NoneType"),
    ("--model own:other_shape", "Option `--model`", "9x3"),
    ("--model own:two_classes", "Option `--data`", "the model has 2 outputs"),
    ("--model own:frozen", "Option `--model`", "Found none"),
    ("--model own:half", "Option `--model`", "torch.float16"),
    ("--model own:parallel", "Option `--model`", "DataParallel"),
    ("--model own:not_finite", "Option `--model`", "1 of 15"),
    ("--model own:Fails", "Option `--model`", "KeyError: 'lost'"),
    ("--model own:ReturnsNothing", "Option `--model`", "NoneType"),
    ("--model own:Leaves", "Option `--model`", "SystemExit: 5"),
    ("--model own:meta", "Option `--model`", "meta"),
    ("--model broken_syntax:f", "Option `--model`", "SyntaxError"),
    ("--model broken_import:f", "Option `--model`", "ZeroDivisionError"),
    ("--model broken_exit:f", "Option `--model`", "SystemExit: 4"),
    ("--defense optimal-nose", "Option `--defense`", "optimal-nose"),
    ("--defense optimal-noise", "Option `--defense`", "none"),
    ("--defense optimal-noise(scale=nan)", "Option `--defense`", "nan"),
    ("--defense gradient-noise(1e300)", "Option `--defense`", "1e+300"),
    ("--defense broken_import:D", "Option `--defense`", "ZeroDivisionError"),
    ("--clients 0", "Option `--clients`", "0"),
    ("--clients 50", "Option `--clients`", "16"),
    ("--clients few", "--clients", "few"),
    ("--batch-size 0", "Option `--batch-size`", "0"),
    ("--rounds 0", "Option `--rounds`", "0"),
    ("--rounds -2", "Option `--rounds`", "-2"),
    ("--epochs 0", "Option `--epochs`", "0.0"),
    ("--epochs nan", "Option `--epochs`", "nan"),
    ("--epochs inf", "Option `--epochs`", "inf"),
    ("--rounds 1 --epochs 1", "`--epochs`", "`--rounds 1`"),
    ("--partition random", "Option `--partition`", "'random'"),
    ("--alpha 0.1", "Option `--alpha`", "--alpha 0.1"),
    ("--partition label --alpha 0.1", "Option `--alpha`", "--alpha 0.1"),
    ("--partition dirichlet --alpha 0", "Option `--alpha`", "0"),
    ("--partition dirichlet --alpha nan", "Option `--alpha`", "nan"),
    ("--fraction 0", "Option `--fraction`", "0.0"),
    ("--fraction 1.5", "Option `--fraction`", "1.5"),
    ("--fraction nan", "Option `--fraction`", "nan"),
    ("--optimizer rmsprop", "Option `--optimizer`", "'rmsprop'"),
    ("--lr 0", "Option `--lr`", "0"),
    ("--lr -1", "Option `--lr`", "-1"),
    ("--lr 1e38", "Option `--lr`", "1e+38"),
    ("--lr nan", "Option `--lr`", "nan"),
    ("--local-steps 0", "Option `--local-steps`", "0"),
    ("--local-lr 0.1", "Option `--local-lr`", "--local-lr 0.1"),
    ("--local-batch-size 2", "Option `--local-batch-size`", "--local-batch-size 2"),
    ("--local-steps 1 --local-lr 0", "Option `--local-lr`", "0"),
    ("--local-steps 1 --local-lr 1e38", "Option `--local-lr`", "1e+38"),
    ("--local-steps 1 --local-batch-size 0", "Option `--local-batch-size`", "0"),
    ("--limit 0", "Option `--limit`", "0"),
    ("--limit 20", "Option `--held-out`", "20"),
    ("--held-out -1", "Option `--held-out`", "-1"),
    ("--held-out 20", "Option `--held-out`", "20"),
    ("--held-out 0 --evaluate-every 2", "Option `--evaluate-every`", "--evaluate-every 2"),
    ("--evaluate-every 0", "Option `--evaluate-every`", "0"),
    ("--seed -1", "Option `--seed`", "-1"),
    (f"--seed {2**70}", "Option `--seed`", str(2**70)),
    ("--device meta", "Option `--device`", "'meta'"),
    ("--device abacus", "Option `--device`", "'abacus'"),
    ("--device cuda:9", "Option `--device`", "'cuda:9'"),
    ("--checkpoint-every 0", "Option `--checkpoint-every`", "0"),
    ("--out notes.txt", "Option `--out`", "notes.txt"),
    ("--out loop", "Option `--out`", "loop"),
    ("--format xml", "--format", "xml"),
]


def completed(typed: str, base: list[str]) -> list[str]:
    """The typed options, and small ones in place of those that were not typed."""
    words = [*typed.split(" ")]
    for name, value in zip(base[::2], base[1::2], strict=True):
        other = {"--data": "--dataset", "--rounds": "--epochs"}.get(name)
        if name not in words and other not in words:
            words += [name, value]
    return words


@pytest.mark.parametrize(("typed", "option", "found"), TRAIN)
def test_train(typed: str, option: str, found: str, refuses: Refuses) -> None:
    refuses(["train", *completed(typed, SMALL + SHORT)], option, found)


@pytest.mark.parametrize(
    ("typed", "option"),
    [("--resume", "Option `--resume`"), ("--checkpoint-every 2", "Option `--checkpoint-every`")],
)
def test_options_that_need_a_folder(typed: str, option: str, refuses: Refuses) -> None:
    refuses(["train", *SMALL, "--rounds", "1", *typed.split(" ")], option, "without `--out`")
