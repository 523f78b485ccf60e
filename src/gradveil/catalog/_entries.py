"""The registry of names, each with a one-line description and its reference."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

PAPER = "Optimal Defenses Against Gradient Reconstruction Attacks"


@dataclass(frozen=True)
class Entry:
    """A name that specifications can use."""

    place: str
    """Its package of gradveil and its name there, as "defenses:OptimalNoise": only what is built is
    imported."""
    summary: str = ""
    reference: str = "gradveil"

    @property
    def name(self) -> str:
        """That of the class, or of its class method, in lower case and with hyphens."""
        own = re.split("[:.]", self.place)[-1]
        return re.sub("(?<=[a-z])(?=[A-Z])", "-", own).lower()

    @property
    def build(self) -> Callable[..., Any]:
        """The class, or the function that makes it."""
        package, _, path = self.place.partition(":")
        made: Callable[..., Any] = attrgetter(path)(import_module(f"gradveil.{package}"))
        return made


def _of(room: str, table: str) -> dict[str, Entry]:
    """Entries by name, from rows `name | summary | reference`; indented lines go on with one."""
    rows = [re.split(r"\s*\|\s*", row) for row in re.split(r"\n(?=\w)", table.strip())]
    entries = [Entry(f"{room}:{own}", *said) for own, *said in rows]
    return {entry.name: entry for entry in entries}


DEFENSES = _of(
    "defenses",
    f"""
NoDefense | Sends the message as it is. |
GradientNoise | The same Gaussian noise on every parameter. | Zhu et al. 2019, arXiv:1906.08935
OptimalNoise | More noise where an entry reveals much and is worth little.
    | {PAPER}, Theorem 2, Eq. 10
ClampedNoise | Clamps each entry of the batch's gradient, then isotropic noise: no (ε, δ) guarantee.
    | {PAPER}, section 4; not Abadi et al. 2016
OptimalClampedNoise | Clamps each entry, then optimal noise on those that were not clamped.
    | {PAPER}, Theorem 3, Eq. 16
PrivateNoise | Clips each example in the norm of the noise, then noise: (ε, δ) differential privacy.
    | Abadi et al. 2016, arXiv:1607.00133; other shapes: gradveil
GradientPruning | Sends only the largest entries.
    | Aji and Heafield 2017, arXiv:1704.05021; Lin et al. 2018, arXiv:1712.01887
OptimalPruning | Prunes the entries that reveal most for what they are worth.
    | {PAPER}, Theorem 4, Eq. 19
Rounding | Rounds every entry to a grid. | {PAPER}, released code
OptimalRounding | Rounds to a grid that is coarser where optimal noise would be larger.
    | {PAPER}, released code
LaplaceNoise | The same Laplace noise on every parameter. | Zhu et al. 2019, arXiv:1906.08935
SignCompression | Sends the sign of every entry. | Bernstein et al. 2018, arXiv:1802.04434
QSGD | Rounds each tensor at random to a few levels of its norm, right in the mean.
    | Alistarh et al. 2017, arXiv:1610.02132
ErrorFeedback | Sends the largest entries and keeps the rest for the next step.
    | Stich et al. 2018, arXiv:1809.07599; Lin et al. 2018, arXiv:1712.01887
Soteria | Cuts features of the representation out of one linear layer's gradient.
    | Sun et al. 2021, arXiv:2012.06043
Pixelization | Replaces blocks of pixels by their means before the gradient is taken.
    | Fan 2018, doi:10.1007/978-3-319-95729-6_10
MixUp | Mixes each example and its label with the next one of the batch.
    | Zhang et al. 2018, arXiv:1710.09412
InstaHide | Mixes several examples and flips signs of pixels; both from a known seed.
    | Huang et al. 2020, arXiv:2010.02772; broken by Carlini et al. 2021, arXiv:2011.05315
Outpost | Prunes, and noise by layer from the spread of its weights, less often with time.
    | Wang, Hugh and Li 2023, INFOCOM
""",
)

ATTACKS = _of(
    "attacks",
    f"""
InvertingGradients | Matches the gradient's direction, with total variation.
    | Geiping et al. 2020, arXiv:2003.14053
InvertingGradients.paper | Inverting Gradients with the paper's settings. | {PAPER}, section 5
InvertingGradients.strong
    | Inverting Gradients, tuned: annealing, restarts, second-order steps at the end.
Adaptive | Knows the defense: maximises the likelihood of what was sent.
PlanReader | Reads noise levels that were planned from the private batch.
DLG | Matches the gradient with L-BFGS, labels optimised jointly.
    | Zhu et al. 2019, arXiv:1906.08935
IDLG | Label from the last layer's sign, then DLG; one example. | Zhao et al. 2020, arXiv:2001.02610
GradInversion | Batch labels, fidelity and group consistency over several seeds.
    | Yin et al. 2021, arXiv:2104.07586
Analytic | Closed form for a fully connected first layer.
    | Phong et al. 2018, doi:10.1109/TIFS.2017.2787987
ExactInversion
    | All inputs of a fully connected ReLU layer, exactly, from the zeros of its gradient.
    | Dimitrov et al. 2024, arXiv:2403.03945; search: gradveil
TokenRows | Text: which tokens were used, by the rows of the table's gradient.
    | Melis et al. 2019; Gupta et al. 2022, arXiv:2205.08514
SpanCheck | Text: tokens whose inputs lie in the span of a transformer's gradients.
    | Petrov et al. 2024, arXiv:2405.15586; later layers and likelihood: gradveil
TabLeak | Tables with categories: softmax in their place, the median over many starts.
    | Vero et al. 2023, arXiv:2210.01785; second stage: gradveil
""",
)

ESTIMATORS = _of(
    "sensitivity",
    f"""
Exact | The dense Jacobian: the oracle. | gradveil
Sketch | Random directions through the whole batch. | {PAPER}, Lemma 1, Algorithm 1
PerExample | One random direction for each example, squares summed.
Structured | Per example, with each layer's structure: the price of a few gradients.
""",
)

MODELS = _of(
    "models",
    f"""
ConvNet | | Geiping et al. 2020, arXiv:2003.14053
MLP
PatchTransformer | | Dosovitskiy et al. 2021, arXiv:2010.11929
ResNet | | He et al. 2016, arXiv:1512.03385
SimpleConvNet | | {PAPER}
""",
)

PARTS = _of("shapes", "FromServer\nModelSource") | _of(
    "attacks", "TotalVariation\nFinish\nPeel\nRegress\nUnpool"
)
"""What occurs only inside other specifications."""

EVERYTHING = {**DEFENSES, **ATTACKS, **ESTIMATORS, **PARTS}
