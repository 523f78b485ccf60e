"""Whether an attacker who knows the rest of the batch tells candidates apart."""

from collections.abc import Mapping

from torch.nn.functional import cross_entropy

from gradveil._random import named_stream
from gradveil.attacks import identify_trials
from gradveil.studies.runner import Settings, Value, cell_function

from ._parts import dataset, model
from ._public import planned_defense


@cell_function("identification")
def identification(settings: Settings) -> Mapping[str, Value]:
    """Some trials with one draw of candidates and of the rest of the batch.

    Settings: `data`, `model`, `start` (the number of the draw), `size` of the batch, `examples`
    (the first so many are drawn from), `candidates`, `one_class`, `trials`, `defense`, `public` or
    None (see `planned_defense`), `seed`; optional `model_seed`, `trained`.
    """
    data, net = dataset(settings["data"]), model(settings)
    defense, mechanism = planned_defense(settings)
    report = identify_trials(
        net,
        cross_entropy,
        data.batch(0, settings["examples"]),
        defense,
        num_classes=data.num_classes,
        candidates=settings["candidates"],
        batch_size=settings["size"],
        trials=settings["trials"],
        per_draw=settings["trials"],
        one_class=settings["one_class"],
        public_mechanism=mechanism,
        generator=named_stream("studies", settings["seed"], "identification", settings["start"]),
    )
    return {
        "right": [bool(trial.is_first) for trial in report.trials],
        "bits": [trial.bits for trial in report.trials],
        "rank": [trial.rank for trial in report.trials],
        "error": [trial.error for trial in report.trials],
    }
