"""The claims of the paper's text, each as differences that are positive where it holds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gradveil.studies.runner import StoreResults
from gradveil.studies.shared import Units

from ._measures import (
    best_attack_above_bound,
    beyond_blank,
    curve_gain,
    error_gain,
    fixed_error,
    fixed_loss,
    growing_loss_gain,
    large_error_gain,
    large_loss_gain,
    largest_difference,
    layer_contrast,
    run_gain,
)

Measure = Callable[[StoreResults], Units]

PAPER, MATCHED, CONTROL, TUNED, AWARE = (
    "as in the paper",
    "matched images",
    "the paper's attack on small batches, matched",
    "tuned attack, matched",
    "attack that knows the defense, matched",
)
ERROR, DECIBEL, LOSS = "MSE, normalised units", "PSNR, dB", "loss, nats"

SIMILAR_ERROR = 0.1
"""Single runs of one cell differ by about as much (unmatched MSE of 16 MNIST images)."""
SIMILAR_LOSS = 0.03
"""A tenth of what training with little noise gains in the five steps."""


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper, and how its differences are taken in each variant."""

    name: str
    text: str
    source: str
    unit: str
    variants: Mapping[str, Measure]
    margin: float | None = None
    """For claims of similarity: how much counts as similar."""


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "mnist-pruning-mse",
        "At equal high ratios optimal pruning leaves a higher MSE than gradient pruning.",
        "5.1, Figure 2",
        ERROR,
        {
            PAPER: error_gain("mnist-pruning", "pruning", "unmatched_mse"),
            MATCHED: error_gain("mnist-pruning", "pruning", "mse"),
            CONTROL: error_gain("adaptive-pruning", "pruning", "mse", "paper"),
            TUNED: error_gain("adaptive-pruning", "pruning", "mse", "strong"),
            AWARE: error_gain("adaptive-pruning", "pruning", "mse", "aware"),
        },
    ),
    Claim(
        "mnist-pruning-psnr",
        "At equal high ratios optimal pruning leaves a lower PSNR than gradient pruning.",
        "5.1, Figure 2",
        DECIBEL,
        {
            PAPER: error_gain("mnist-pruning", "pruning", "unmatched_psnr"),
            MATCHED: error_gain("mnist-pruning", "pruning", "psnr"),
            CONTROL: error_gain("adaptive-pruning", "pruning", "psnr", "paper"),
            TUNED: error_gain("adaptive-pruning", "pruning", "psnr", "strong"),
            AWARE: error_gain("adaptive-pruning", "pruning", "psnr", "aware"),
        },
    ),
    Claim(
        "mnist-pruning-similar",
        "80% optimal pruning and 90% gradient pruning protect similarly.",
        "5.1, Figures 2 and 3",
        ERROR,
        {
            PAPER: fixed_error("mnist-pruning", "unmatched_mse", "optimal-pruning", 0.8, 0.9),
            MATCHED: fixed_error("mnist-pruning", "mse", "optimal-pruning", 0.8, 0.9),
            CONTROL: fixed_error("adaptive-pruning", "mse", "optimal-pruning", 0.8, 0.9, "paper"),
            AWARE: fixed_error("adaptive-pruning", "mse", "optimal-pruning", 0.8, 0.9, "aware"),
        },
        SIMILAR_ERROR,
    ),
    Claim(
        "mnist-pruning-training",
        "80% optimal pruning trains faster than 90% gradient pruning.",
        "5.1, Figure 3",
        f"{LOSS}, mean over rounds",
        {PAPER: run_gain("mnist-pruning-training", "optimal-pruning", 0.8, 0.9)},
    ),
    Claim(
        "mnist-pruning-tradeoff",
        "At equal training loss optimal pruning leaves a higher error than gradient pruning.",
        "5.1, Figure 4",
        ERROR,
        {
            PAPER: curve_gain("mnist-pruning-tradeoff", "pruning", "unmatched_mse"),
            MATCHED: curve_gain("mnist-pruning-tradeoff", "pruning", "mse"),
            CONTROL: curve_gain(
                "mnist-pruning-tradeoff", "pruning", "mse", "adaptive-pruning", "paper"
            ),
            TUNED: curve_gain(
                "mnist-pruning-tradeoff", "pruning", "mse", "adaptive-pruning", "strong"
            ),
            AWARE: curve_gain(
                "mnist-pruning-tradeoff", "pruning", "mse", "adaptive-pruning", "aware"
            ),
        },
    ),
    Claim(
        "mnist-noise-similar",
        "At equal scale optimal noise with clamping and noise with clamping protect similarly (the"
        " scale where they differ most).",
        "5.1, Figure 5",
        ERROR,
        {
            PAPER: largest_difference("mnist-noise", "noise", "unmatched_mse"),
            MATCHED: largest_difference("mnist-noise", "noise", "mse"),
            CONTROL: largest_difference("adaptive-noise", "noise", "mse", "paper"),
            TUNED: largest_difference("adaptive-noise", "noise", "mse", "strong"),
            AWARE: largest_difference("adaptive-noise", "noise", "mse", "aware"),
        },
        SIMILAR_ERROR,
    ),
    Claim(
        "mnist-noise-training",
        "Of noise with clamping of scale 0.1, the optimal form trains faster.",
        "5.1, Figure 6",
        f"{LOSS}, mean over rounds",
        {PAPER: run_gain("mnist-noise-training", "optimal-dpsgd", 0.1, 0.1)},
    ),
    Claim(
        "mnist-noise-tradeoff",
        "At equal training loss optimal noise with clamping leaves a higher error than noise with"
        " clamping.",
        "5.1, Figure 7",
        ERROR,
        {
            PAPER: curve_gain("mnist-noise-tradeoff", "noise", "unmatched_mse"),
            MATCHED: curve_gain("mnist-noise-tradeoff", "noise", "mse"),
            CONTROL: curve_gain("mnist-noise-tradeoff", "noise", "mse", "adaptive-noise", "paper"),
            TUNED: curve_gain("mnist-noise-tradeoff", "noise", "mse", "adaptive-noise", "strong"),
            AWARE: curve_gain("mnist-noise-tradeoff", "noise", "mse", "adaptive-noise", "aware"),
        },
    ),
    Claim(
        "mnist-noise-images-error",
        "Optimal noise with clamping of scale 0.1 protects better than noise with clamping of"
        " scale 0.05 ...",
        "5.1, Figure 8",
        ERROR,
        {
            PAPER: fixed_error("mnist-noise", "unmatched_mse", "optimal-dpsgd", 0.1, 0.05),
            MATCHED: fixed_error("mnist-noise", "mse", "optimal-dpsgd", 0.1, 0.05),
        },
    ),
    Claim(
        "mnist-noise-images-utility",
        "... while they train similarly.",
        "5.1, Figure 8",
        LOSS,
        {PAPER: fixed_loss("mnist-noise-tradeoff", "optimal-dpsgd", 0.1, 0.05)},
        SIMILAR_LOSS,
    ),
    Claim(
        "cifar-pruning-tradeoff",
        "At equal training loss optimal pruning leaves a higher error than gradient pruning.",
        "5.2, Figure 9",
        ERROR,
        {
            PAPER: curve_gain("cifar-pruning-tradeoff", "pruning", "unmatched_mse"),
            MATCHED: curve_gain("cifar-pruning-tradeoff", "pruning", "mse"),
        },
    ),
    *(
        claim
        for ratio, source in ((0.7, "5.2, Figure 9"), (0.8, "5.2, Figure 10"))
        for claim in (
            Claim(
                f"cifar-pruning-{ratio * 100:g}-error",
                f"{ratio * 100:g}% optimal pruning leaves a higher error than 90% pruning ...",
                source,
                ERROR,
                {
                    PAPER: fixed_error(
                        "cifar-pruning-tradeoff", "unmatched_mse", "optimal-pruning", ratio, 0.9
                    ),
                    MATCHED: fixed_error(
                        "cifar-pruning-tradeoff", "mse", "optimal-pruning", ratio, 0.9
                    ),
                },
            ),
            Claim(
                f"cifar-pruning-{ratio * 100:g}-utility",
                "... and trains better.",
                source,
                LOSS,
                {PAPER: fixed_loss("cifar-pruning-tradeoff", "optimal-pruning", ratio, 0.9)},
            ),
        )
    ),
    Claim(
        "cifar-noise-failure",
        "Above a scale of 0.001 reconstructions of CIFAR-10 fail (worse than a grey image).",
        "5.2",
        ERROR,
        {PAPER: beyond_blank("cifar-noise-error", 1e-3, "unmatched_mse")},
    ),
    Claim(
        "cifar-noise-tradeoff",
        "At equal training loss optimal noise with clamping leaves a higher error than noise with"
        " clamping.",
        "5.2, Figure 11",
        ERROR,
        {
            PAPER: curve_gain("cifar-noise-tradeoff", "noise", "unmatched_mse"),
            MATCHED: curve_gain("cifar-noise-tradeoff", "noise", "mse"),
        },
    ),
    Claim(
        "cifar-noise-growth",
        "The advantage of optimal noise with clamping in training grows with the scale.",
        "5.2, Figure 12",
        LOSS,
        {PAPER: growing_loss_gain("cifar-noise-utility")},
    ),
    Claim(
        "cifar-noise-utility",
        "At scales above 0.001 optimal noise with clamping trains better than noise with"
        " clamping ...",
        "appendix, Figure 12",
        LOSS,
        {PAPER: large_loss_gain("cifar-noise-utility", 1e-3)},
    ),
    Claim(
        "cifar-noise-error",
        "... and leaves a (slightly) higher error.",
        "appendix, Figure 13",
        ERROR,
        {
            PAPER: large_error_gain("cifar-noise-error", 1e-3, "unmatched_mse"),
            MATCHED: large_error_gain("cifar-noise-error", 1e-3, "mse"),
        },
    ),
    *(
        Claim(
            f"mnist-layer-noise-{kind}",
            f"The {plural} of some layers get significantly more noise than those of others (at"
            " least twice as much).",
            "appendix, Figure 14",
            "log₂ of the ratio of the most to the least noisy layer, beyond 1",
            {PAPER: layer_contrast("mnist-layer-noise", kind)},
        )
        for kind, plural in (("weight", "weights"), ("bias", "biases"))
    ),
    Claim(
        "theorem-1",
        "The mean error of every attack is above the lower bound (corrected, Gaussian prior).",
        "Theorem 1",
        f"{ERROR}, the attack and noise that come nearest",
        {PAPER: best_attack_above_bound("bound-against-attacks")},
    ),
)
