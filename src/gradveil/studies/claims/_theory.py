"""The paper's claims about noise levels and the bound."""

from ._claim import Claim
from ._measures import best_attack_above_bound, best_attack_above_candidates, layer_contrast
from ._settings import AWARE, NO_ATTACKER_OF_LAYERS, PAPER, SAFE
from ._views import AWARE_BOUND, PUBLIC_PLANS

THEORY_CLAIMS: tuple[Claim, ...] = (
    *(
        Claim(
            f"mnist-layer-noise-{kind}",
            f"The {plural} of some layers get significantly more noise than those of others (at"
            " least twice as much).",
            "appendix, Figure 14",
            "log₂ of the ratio of the most to the least noisy layer, beyond 1",
            {
                PAPER: layer_contrast("mnist-layer-noise", kind),
                AWARE: NO_ATTACKER_OF_LAYERS,
                SAFE: layer_contrast(PUBLIC_PLANS, kind, ("optimal-dpsgd", 0.1)),
            },
        )
        for kind, plural in (("weight", "weights"), ("bias", "biases"))
    ),
    Claim(
        "theorem-1",
        "The mean error of every attack is above the lower bound (corrected, Gaussian prior).",
        "Theorem 1",
        "error / bound - 1, the attack and noise that come nearest",
        {
            PAPER: best_attack_above_bound("bound-against-attacks"),
            AWARE: best_attack_above_bound(AWARE_BOUND),
            SAFE: best_attack_above_candidates("bound-against-attacks"),
        },
    ),
)
