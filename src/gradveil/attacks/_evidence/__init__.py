"""What attackers know: what the message says of each entry, and what they believe beforehand."""

from ._batch_norm import BatchNormDistance
from ._channel import Channel, open_channel
from ._denoised import Denoised, Near
from ._label_counts import fit_counts, fit_counts_and_scale, fit_counts_of_trained
from ._linear_layers import Call, input_layer, last_layer, linear_calls, random_inputs
from ._matching import DISTANCES, Evidence, cosine_distance, euclidean_evidence, relative_distance
from ._planning import depends_on_inputs, plan_channel
from ._regularisers import Energy, GaussianEnergy, TotalVariation, energy_of, total_variation

__all__ = [
    "DISTANCES",
    "BatchNormDistance",
    "Call",
    "Channel",
    "Denoised",
    "Energy",
    "Evidence",
    "GaussianEnergy",
    "Near",
    "TotalVariation",
    "cosine_distance",
    "depends_on_inputs",
    "energy_of",
    "euclidean_evidence",
    "fit_counts",
    "fit_counts_and_scale",
    "fit_counts_of_trained",
    "input_layer",
    "last_layer",
    "linear_calls",
    "open_channel",
    "plan_channel",
    "random_inputs",
    "relative_distance",
    "total_variation",
]
