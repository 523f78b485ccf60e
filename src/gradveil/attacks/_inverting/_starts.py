"""Descents from the regression's estimate and from noise, and what they found."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from .._attack import Progress
from .._observation import Observation
from .._reconstruction import FINISHED, INTERRUPTED, Reconstruction
from .._regression import Regress
from .._search import Cost, Descent, Minimum, Watch, minimise, noise_start, sent_row

TRIAL = 0.2
"""The share of the steps after which a single start is chosen."""
GENTLE = 0.25
"""The rate from the regression's start, over that from noise."""


class Found(NamedTuple):
    """The candidates of one observation, the best first."""

    inputs: Tensor
    costs: Tensor
    history: list[tuple[int, float]]
    status: str

    def best(self, labels: Tensor) -> Reconstruction:
        """The first one."""
        return Reconstruction(
            self.inputs[0], labels, float(self.costs[0]), self.history, self.status
        )


class Starts(NamedTuple):
    """Observations of one model and what their descents share."""

    observations: Sequence[Observation]
    labels: Sequence[Tensor]
    units: Tensor
    """Of the distance, one for each observation."""
    cost: Cost
    """Of starts from noise, annealed."""
    plain_cost: Cost
    """Of starts from the estimates: the model itself, not its smooth twin."""
    descent: Descent
    progress: Progress | None

    def search(
        self,
        restarts: int,
        regress: Regress | None,
        draws: tuple[torch.Generator, torch.Generator],
        watch: Watch,
    ) -> list[Found]:
        """From the estimates first, if there are any; the other starts are noise."""
        noise = [noise_start(o, restarts, draws[0]) for o in self.observations]
        estimates = self._estimates(regress, draws[1], watch, restarts)
        if estimates is None:
            return self._found([self._run(noise, watch.left())])
        if restarts == 1:
            return self._single(estimates, noise, watch)
        left = watch.left()
        gentle = self._gentle()
        runs = [gentle._run(estimates, None if left is None else left / restarts)]
        if runs[0].status != INTERRUPTED:  # each start has its own part of a time budget
            runs.append(self._run([rows[1:] for rows in noise], watch.left()))
        return self._found(runs)

    def _single(self, estimates: list[Tensor], noise: list[Tensor], watch: Watch) -> list[Found]:
        """One descent for each observation, from the start that a short trial favours."""
        short = replace(self.descent, steps=max(1, round(TRIAL * self.descent.steps)))
        trial, left = self._replace(descent=short, progress=None), watch.left()
        part = None if left is None else TRIAL * left
        runs = [trial._gentle()._run(estimates, part), trial._run(noise, part)]
        stopped = [run for run in runs if run.status == INTERRUPTED]
        if stopped:
            return self._found(runs)
        better = (runs[0].costs < runs[1].costs).tolist()
        found: dict[int, Found] = {}
        for side, own in ((True, self._gentle()), (False, self)):
            chosen = [n for n, wins in enumerate(better) if wins == side]
            starts = [(estimates if side else noise)[n] for n in chosen]
            if chosen:
                some = own._some(chosen)
                found |= zip(chosen, some._found([some._run(starts, watch.left())]), strict=True)
        return [found[n] for n in range(len(better))]

    def _gentle(self) -> "Starts":
        """For the estimates: a lower rate, and the model itself."""
        gentle = replace(self.descent, lr=GENTLE * self.descent.lr)
        return self._replace(cost=self.plain_cost, descent=gentle)

    def _some(self, chosen: list[int]) -> "Starts":
        """For some of the observations."""
        return self._replace(
            observations=[self.observations[n] for n in chosen],
            labels=[self.labels[n] for n in chosen],
            units=self.units[chosen],
        )

    def _estimates(
        self, regress: Regress | None, generator: torch.Generator, watch: Watch, restarts: int
    ) -> list[Tensor] | None:
        """One candidate for each observation; `None` without a regression."""
        if regress is None:
            return None
        left = watch.left()
        share = Watch(None if left is None else left / (4 * restarts))
        found = regress.estimates(self.observations, self.labels, generator, share)
        return [inputs[None] for inputs in found]

    def _run(self, starts: list[Tensor], time_budget: float | None) -> Minimum:
        """All observations beside each other."""
        first, each = self.observations[0], len(starts[0])
        sent = torch.stack([sent_row(o) for o in self.observations])
        rows = (torch.stack(list(self.labels)), sent, self.units)
        return minimise(
            self.cost,
            torch.cat(starts),
            replace(self.descent, time_budget=time_budget),
            data=tuple(row.repeat_interleave(each, 0) for row in rows),
            low=first.low,
            high=first.high,
            progress=self.progress,
        )

    def _found(self, runs: list[Minimum]) -> list[Found]:
        """Of each observation."""
        count = len(self.observations)
        per_run = [(run, len(run.inputs) // count) for run in runs]
        found = []
        for number in range(count):
            own = [(run, slice(number * k, (number + 1) * k)) for run, k in per_run]
            inputs = torch.cat([run.inputs[mine] for run, mine in own])
            costs = torch.cat([run.costs[mine] for run, mine in own])
            order = costs.argsort()
            status = next((run.status for run in runs if run.status != FINISHED), FINISHED)
            found.append(Found(inputs[order], costs[order], self._history(own), status))
        return found

    def _history(self, runs: list[tuple[Minimum, slice]]) -> list[tuple[int, float]]:
        """The least cost so far, over the steps of all runs."""
        history: list[tuple[int, float]] = []
        for number, (run, mine) in enumerate(runs):
            for step, past in run.history:
                before = history[-1][1] if number else float("inf")
                history.append(
                    (number * self.descent.steps + step, min(before, float(past[mine].min())))
                )
        return history
