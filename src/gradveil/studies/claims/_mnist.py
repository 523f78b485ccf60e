"""The paper's claims about MNIST."""

from ._claim import DECIBEL, ERROR, LOSS, SIMILAR_ERROR, SIMILAR_LOSS, Claim
from ._measures import curve_gain, error_gain, fixed_error, fixed_loss, largest_difference, run_gain
from ._pairs import CAPPED_ERROR, final_losses_of
from ._settings import AWARE, CAPPED, CONTROL, MATCHED, NO_ATTACKER, PAPER, SAFE, TUNED
from ._views import PRIVATE_PLANS, PUBLIC_PLANS

MNIST_CLAIMS: tuple[Claim, ...] = (
    Claim(
        "mnist-pruning-mse",
        "At equal high ratios optimal pruning leaves a higher MSE than gradient pruning.",
        "5.1, Figure 2",
        ERROR,
        {
            PAPER: error_gain("mnist-pruning", "pruning", "unmatched_mse"),
            MATCHED: error_gain("mnist-pruning", "pruning", "mse"),
            CAPPED: error_gain("mnist-pruning", "pruning", CAPPED_ERROR),
            CONTROL: error_gain("adaptive-pruning", "pruning", "mse", "paper"),
            TUNED: error_gain("adaptive-pruning", "pruning", "mse", "strong"),
            AWARE: error_gain("adaptive-pruning", "pruning", "mse", "aware"),
            SAFE: error_gain(PUBLIC_PLANS, "pruning", "mse", "aware"),
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
            SAFE: error_gain(PUBLIC_PLANS, "pruning", "psnr", "aware"),
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
            SAFE: fixed_error(PUBLIC_PLANS, "mse", "optimal-pruning", 0.8, 0.9, "aware"),
        },
        SIMILAR_ERROR,
    ),
    Claim(
        "mnist-pruning-training",
        "80% optimal pruning trains faster than 90% gradient pruning.",
        "5.1, Figure 3",
        f"{LOSS}, mean over rounds",
        {
            PAPER: run_gain("mnist-pruning-training", "optimal-pruning", 0.8, 0.9),
            AWARE: NO_ATTACKER,
            SAFE: run_gain(PUBLIC_PLANS, "optimal-pruning", 0.8, 0.9),
        },
    ),
    Claim(
        "mnist-pruning-tradeoff",
        "At equal training loss optimal pruning leaves a higher error than gradient pruning.",
        "5.1, Figure 4",
        ERROR,
        {
            PAPER: curve_gain("mnist-pruning-tradeoff", "pruning", "unmatched_mse"),
            MATCHED: curve_gain("mnist-pruning-tradeoff", "pruning", "mse"),
            CAPPED: curve_gain("mnist-pruning-tradeoff", "pruning", CAPPED_ERROR),
            CONTROL: curve_gain(
                "mnist-pruning-tradeoff", "pruning", "mse", "adaptive-pruning", "paper"
            ),
            TUNED: curve_gain(
                "mnist-pruning-tradeoff", "pruning", "mse", "adaptive-pruning", "strong"
            ),
            AWARE: curve_gain(
                "mnist-pruning-tradeoff", "pruning", "mse", "adaptive-pruning", "aware"
            ),
            SAFE: curve_gain(PUBLIC_PLANS, "pruning", "mse", attacker="aware", trained=True),
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
            SAFE: largest_difference(PUBLIC_PLANS, "noise", "mse", "aware"),
        },
        SIMILAR_ERROR,
    ),
    Claim(
        "mnist-noise-training",
        "Of noise with clamping of scale 0.1, the optimal form trains faster.",
        "5.1, Figure 6",
        f"{LOSS}, mean over rounds",
        {
            PAPER: run_gain("mnist-noise-training", "optimal-dpsgd", 0.1, 0.1),
            AWARE: NO_ATTACKER,
            SAFE: run_gain(PUBLIC_PLANS, "optimal-dpsgd", 0.1, 0.1),
        },
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
            CAPPED: curve_gain("mnist-noise-tradeoff", "noise", CAPPED_ERROR),
            CONTROL: curve_gain("mnist-noise-tradeoff", "noise", "mse", "adaptive-noise", "paper"),
            TUNED: curve_gain("mnist-noise-tradeoff", "noise", "mse", "adaptive-noise", "strong"),
            AWARE: curve_gain("mnist-noise-tradeoff", "noise", "mse", "adaptive-noise", "aware"),
            SAFE: curve_gain(PUBLIC_PLANS, "noise", "mse", attacker="aware", trained=True),
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
            CAPPED: fixed_error("mnist-noise", CAPPED_ERROR, "optimal-dpsgd", 0.1, 0.05),
            AWARE: fixed_error(PRIVATE_PLANS, "mse", "optimal-dpsgd", 0.1, 0.05, "aware"),
            SAFE: fixed_error(PUBLIC_PLANS, "mse", "optimal-dpsgd", 0.1, 0.05, "aware"),
        },
    ),
    Claim(
        "mnist-noise-images-utility",
        "... while they train similarly.",
        "5.1, Figure 8",
        LOSS,
        {
            PAPER: fixed_loss("mnist-noise-tradeoff", "optimal-dpsgd", 0.1, 0.05),
            AWARE: NO_ATTACKER,
            SAFE: fixed_loss(PUBLIC_PLANS, "optimal-dpsgd", 0.1, 0.05, final_losses_of),
        },
        SIMILAR_LOSS,
    ),
)
