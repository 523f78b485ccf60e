"""A few steps on one batch: the training utility of the paper's scatter plots."""

from collections.abc import Mapping

from gradveil.federated import evaluate
from gradveil.studies.runner import Settings, Value, cell_function

from ._federation import config_of, federation


@cell_function("short-training")
def short_training(settings: Settings) -> Mapping[str, Value]:
    """The loss on the batch before the first step and after the last.

    Each of the clients has a fixed share of the batch, which it defends anew in every step.
    Settings: those of "training".
    """
    run = federation(settings)
    assert run.held_out is not None
    before = evaluate(run.server.model, config_of(settings).loss_fn, *run.held_out).loss
    last = run.run(settings["rounds"]).rounds[-1]
    return {"before": before, "after": last.held_out_loss, "accuracy": last.accuracy}
