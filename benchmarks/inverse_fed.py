"""The method of "Inverting Gradients" as its authors' code runs it, written down again."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradveil._random import generator_or_fresh, normal_like
from gradveil.attacks import FINISHED, Attack, Observation, Progress, Reconstruction, recover_labels

DECAYS = (2.667, 1.6, 1.142)
"""One over the shares of the steps, about 3/8, 5/8 and 7/8, after which the rate is × 0.1."""


@dataclass(frozen=True)
class InverseFed(Attack):
    """Signed Adam on the cosine distance of gradients and total variation, from one start.

    The settings are the published ones: lr 0.1, × 0.1 after 3/8, 5/8 and 7/8 of the steps; pixels
    clamped to their range after each step; a start from N(0, I); the last iterate is the result.
    Total variation weighs 1e-4 by default in the authors' script (1e-2 in their notebook on a
    ResNet and CIFAR images, 1e-6 in others), and they take up to 24,000 steps. The loop is a plain
    transcription: `backward` differentiates with respect to the weights, too, as theirs does.
    FedAvg's updates are matched in the same way.

    Reference: Geiping et al., "Inverting Gradients - How easy is it to break privacy in federated
    learning?", NeurIPS 2020; github.com/JonasGeiping/invertinggradients.

    """

    steps: int = 24_000
    lr: float = 0.1
    total_variation: float = 1e-4
    time_budget: float | None = None
    """Seconds of this process's own time, over which the schedule of the rates is then spread: it
    is complete however fast the machine is."""
    progress: Progress | None = None

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack one observation."""
        generator = generator_or_fresh(generator)
        labels = recover_labels(observation, generator)
        like = next(iter(observation.sent.values()))
        shape = (observation.batch_size, *observation.input_shape)
        images = normal_like(like.new_empty(shape), generator).requires_grad_()
        optimizer = torch.optim.Adam([images], lr=self.lr)
        closure = self._closure(observation, labels, images, optimizer)
        begin, step, loss = time.process_time(), 0, torch.tensor(torch.nan)
        while step < self.steps and (share := self._share(step, begin)) < 1:
            optimizer.param_groups[0]["lr"] = self.lr * 0.1 ** self._decays(step, share)
            loss = optimizer.step(closure)
            with torch.no_grad():
                images.data = images.clamp(observation.low, observation.high)
            step += 1
            if self.progress is not None:
                self.progress(step, self.steps, float(loss))
        return Reconstruction(images.detach(), labels, float(loss), FINISHED)

    def _share(self, step: int, begin: float) -> float:
        """How much of the schedule is done."""
        if self.time_budget is None:
            return step / self.steps
        return (time.process_time() - begin) / max(self.time_budget, 1e-9)

    def _decays(self, step: int, share: float) -> int:
        """How often the rate has fallen."""
        if self.time_budget is None:
            return sum(step >= self.steps // divisor for divisor in DECAYS)
        return sum(share >= 1 / divisor for divisor in DECAYS)

    def _closure(
        self,
        observation: Observation,
        labels: Tensor,
        images: Tensor,
        optimizer: torch.optim.Optimizer,
    ) -> Callable[[], Tensor]:
        model = copy.deepcopy(observation.model)
        weights = {name: w for name, w in model.named_parameters() if w.requires_grad}
        sent = [observation.sent[name] for name in weights]
        update = observation.plain_message(labels) if observation.local is not None else None

        def closure() -> Tensor:
            optimizer.zero_grad()
            model.zero_grad()
            if update is None:
                loss = observation.loss_fn(model(images), labels)
                own = [*torch.autograd.grad(loss, [*weights.values()], create_graph=True)]
            else:
                values = update(images)
                own = [values[name] for name in weights]
            cost = _cosine(own, sent) + self.total_variation * _total_variation(images)
            cost.backward()  # type: ignore[no-untyped-call]
            assert images.grad is not None
            images.grad.sign_()
            return cost.detach()

        return closure


def _cosine(own: list[Tensor], sent: list[Tensor]) -> Tensor:
    """1 - ⟨g, y⟩ / (‖g‖ ‖y‖) over all tensors."""
    ours, theirs = (torch.cat([tensor.flatten() for tensor in group]) for group in (own, sent))
    return 1 - torch.nn.functional.cosine_similarity(ours, theirs, dim=0)


def _total_variation(images: Tensor) -> Tensor:
    """The mean absolute difference of neighbours, over columns and over rows."""
    if images.dim() < 4:
        return images.new_zeros(())
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()
