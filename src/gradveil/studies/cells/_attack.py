"""The `attack` cell: one attack on one defended batch, scored."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gradveil._random import named_stream
from gradveil.attacks import (
    LocalSteps,
    Observation,
    Reconstruction,
    ThreatModel,
    observe,
)
from gradveil.catalog import build_attack
from gradveil.data import Dataset
from gradveil.scoring import Scores, score
from gradveil.studies.runner import Settings, Value, cell_function

from ._parts import dataset, model
from ._public import planned_defense


@cell_function("attack")
def attack(settings: Settings) -> Mapping[str, Value]:
    """Play the client, attack what it sent, score the images.

    Settings: `data`, `model`, `start` and `size` of the batch, `defense`, `attack`, `mechanism`
    (what the attacker knows of the defense), `seed`; optional `model_seed`, `trained`, `local`
    (FedAvg's steps) and `public` (the plan is made from other data, see `planned_defense`). Two
    cells that differ in the defense alone share the attacker's starting point.
    """
    data, net, seed = dataset(settings["data"]), model(settings), settings["seed"]
    batch = data.batch(settings["start"], settings["size"])
    seen = _observation(settings, data, net, batch)
    reconstruction = build_attack(settings["attack"])(
        seen, named_stream("studies", seed, "attack", settings["start"])
    )
    return {
        **_scores(score(reconstruction, batch, normalization=data)),
        **_outcome(reconstruction),
        "blank_mse": batch[0].square().flatten(1).mean(1).tolist(),
        "images": data.to_pixels(reconstruction.inputs).clamp(0, 1),
        "originals": data.to_pixels(batch[0]).clamp(0, 1),
    }


def _observation(
    settings: Settings, data: Dataset, net: nn.Module, batch: tuple[Tensor, Tensor]
) -> Observation:
    defense, mechanism = planned_defense(settings)
    local = settings.get("local")
    return observe(
        net,
        cross_entropy,
        batch,
        defense,
        threat=ThreatModel(mechanism=settings["mechanism"]),
        num_classes=data.num_classes,
        input_range=data.range,
        local=LocalSteps(**local) if local else None,
        public_mechanism=mechanism,
        generator=named_stream("studies", settings["seed"], "defense", settings["start"]),
    )


def _scores(scores: Scores) -> dict[str, Value]:
    names = ("mse", "psnr", "ssim", "unmatched_mse", "unmatched_psnr", "unmatched_ssim")
    tensors = {name: getattr(scores, name) for name in (*names, "assignment")}
    return {name: value.tolist() for name, value in tensors.items() if value is not None}


def _outcome(reconstruction: Reconstruction) -> dict[str, Value]:
    return {
        "loss": reconstruction.loss,
        "status": reconstruction.status,
        "history": [[*row] for row in reconstruction.history],
    }
