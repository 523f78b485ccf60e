"""The paper's claims about CIFAR-10."""

from ._claim import ERROR, LOSS, Claim
from ._measures import (
    beyond_blank,
    curve_gain,
    fixed_error,
    fixed_loss,
    growing_loss_gain,
    large_error_gain,
    large_loss_gain,
    trained_losses_of,
)
from ._pairs import CAPPED_ERROR, final_losses_of
from ._settings import AWARE, CAPPED, MATCHED, NO_ATTACKER, PAPER, SAFE
from ._views import PHOTO_PLANS

CIFAR_CLAIMS: tuple[Claim, ...] = (
    Claim(
        "cifar-pruning-tradeoff",
        "At equal training loss optimal pruning leaves a higher error than gradient pruning.",
        "5.2, Figure 9",
        ERROR,
        {
            PAPER: curve_gain("cifar-pruning-tradeoff", "pruning", "unmatched_mse"),
            MATCHED: curve_gain("cifar-pruning-tradeoff", "pruning", "mse"),
            CAPPED: curve_gain("cifar-pruning-tradeoff", "pruning", CAPPED_ERROR),
            AWARE: curve_gain("cifar-adaptive-pruning", "pruning", "mse", attacker="aware"),
            SAFE: curve_gain(PHOTO_PLANS, "pruning", "mse", attacker="aware", trained=True),
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
                    CAPPED: fixed_error(
                        "cifar-pruning-tradeoff", CAPPED_ERROR, "optimal-pruning", ratio, 0.9
                    ),
                    AWARE: fixed_error(
                        "cifar-adaptive-pruning", "mse", "optimal-pruning", ratio, 0.9, "aware"
                    ),
                    SAFE: fixed_error(PHOTO_PLANS, "mse", "optimal-pruning", ratio, 0.9, "aware"),
                },
            ),
            Claim(
                f"cifar-pruning-{ratio * 100:g}-utility",
                "... and trains better.",
                source,
                LOSS,
                {
                    PAPER: fixed_loss("cifar-pruning-tradeoff", "optimal-pruning", ratio, 0.9),
                    AWARE: NO_ATTACKER,
                    SAFE: fixed_loss(PHOTO_PLANS, "optimal-pruning", ratio, 0.9, final_losses_of),
                },
            ),
        )
    ),
    Claim(
        "cifar-noise-failure",
        "Above a scale of 0.001 reconstructions of CIFAR-10 fail (worse than a grey image).",
        "5.2",
        ERROR,
        {
            PAPER: beyond_blank("cifar-noise-error", 1e-3, "unmatched_mse"),
            AWARE: beyond_blank("cifar-adaptive-noise", 1e-3, "mse", "aware"),
            SAFE: beyond_blank(PHOTO_PLANS, 1e-3, "mse", "aware"),
        },
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
            CAPPED: curve_gain("cifar-noise-tradeoff", "noise", CAPPED_ERROR),
            AWARE: curve_gain("cifar-adaptive-noise", "noise", "mse", attacker="aware"),
            SAFE: curve_gain(PHOTO_PLANS, "noise", "mse", attacker="aware", trained=True),
        },
    ),
    Claim(
        "cifar-noise-growth",
        "The advantage of optimal noise with clamping in training grows with the scale.",
        "5.2, Figure 12",
        LOSS,
        {
            PAPER: growing_loss_gain("cifar-noise-utility"),
            AWARE: NO_ATTACKER,
            SAFE: growing_loss_gain(PHOTO_PLANS, trained_losses_of),
        },
    ),
    Claim(
        "cifar-noise-utility",
        "At scales above 0.001 optimal noise with clamping trains better than noise with"
        " clamping ...",
        "appendix, Figure 12",
        LOSS,
        {
            PAPER: large_loss_gain("cifar-noise-utility", 1e-3),
            AWARE: NO_ATTACKER,
            SAFE: large_loss_gain(PHOTO_PLANS, 1e-3, trained_losses_of),
        },
    ),
    Claim(
        "cifar-noise-error",
        "... and leaves a (slightly) higher error.",
        "appendix, Figure 13",
        ERROR,
        {
            PAPER: large_error_gain("cifar-noise-error", 1e-3, "unmatched_mse"),
            MATCHED: large_error_gain("cifar-noise-error", 1e-3, "mse"),
            CAPPED: large_error_gain("cifar-noise-error", 1e-3, CAPPED_ERROR),
            AWARE: large_error_gain("cifar-adaptive-noise", 1e-3, "mse", "aware"),
            SAFE: large_error_gain(PHOTO_PLANS, 1e-3, "mse", "aware"),
        },
    ),
)
