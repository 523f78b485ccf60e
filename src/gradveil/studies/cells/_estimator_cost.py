"""The `estimator-cost` cell: the cost of estimating sensitivities on this machine."""

from collections.abc import Mapping

from gradveil._random import named_stream
from gradveil.bench import time_ratios
from gradveil.studies.runner import Settings, Value, cell_function

from ._estimator_share import case_of, noise_of


@cell_function("estimator-cost")
def estimator_cost(settings: Settings) -> Mapping[str, Value]:
    """The time of a defended gradient over that of a plain one, the median of `repeats`.

    A measurement of time: the one kind of cell whose result is not the same in every run.
    Settings: `data`, `model`, `start`, `size`, `estimator`, `repeats`; optional `model_seed`,
    `trained`.
    """
    case, defense = case_of(settings), noise_of(settings)
    generator = named_stream("studies", 0, "probes", 0)
    jobs = {"defense": lambda: defense(case.message, case.inputs, generator)}
    return {"ratio": time_ratios(case.plain_gradient, jobs, settings["repeats"])["defense"]}
