"""Other people's defenses, to compare with: each with the attack that knows it."""

from ._error_feedback import ErrorFeedback
from ._insta_hide import InstaHide
from ._laplace_noise import LaplaceNoise
from ._mix_up import MixUp
from ._outpost import Outpost
from ._pixelization import Pixelization
from ._qsgd import QSGD
from ._sign_compression import SignCompression
from ._soteria import Soteria

__all__ = [
    "QSGD",
    "ErrorFeedback",
    "InstaHide",
    "LaplaceNoise",
    "MixUp",
    "Outpost",
    "Pixelization",
    "SignCompression",
    "Soteria",
]
