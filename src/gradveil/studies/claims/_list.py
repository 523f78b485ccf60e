"""The claims of the paper's text, each as differences that are positive where it holds."""

from ._cifar import CIFAR_CLAIMS
from ._claim import Claim
from ._mnist import MNIST_CLAIMS
from ._theory import THEORY_CLAIMS

CLAIMS: tuple[Claim, ...] = (*MNIST_CLAIMS, *CIFAR_CLAIMS, *THEORY_CLAIMS)
