"""An accountant for Flower's own private strategies, without its optional package."""

from typing import Any

from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

from gradveil._checks import check_kind
from gradveil.privacy import PrivacyAccount, delta_after, epsilon_after


class ClientAccountant:
    """Flower's `PrivacyAccountant`, with the numbers of a `PrivacyAccount` for clients.

    Give it as ``accountant=`` to a strategy such as Flower's
    `DifferentialPrivacyServerSideFixedClipping`. Flower's own `RdpAccountant` needs the package
    dp-accounting, which wants an older attrs; this one needs ``gradveil[privacy]``, and is tighter:
    exact without amplification, numerical composition for Poisson sampling. All releases have to
    be alike. Sampling without replacement is refused: its account is another.

    >>> config = PrivacyConfig(1e-5, 100, NeighboringRelation.ADD_OR_REMOVE_ONE,
    ...                        SamplingMethod.NO_AMPLIFICATION)
    >>> accountant = ClientAccountant(config)
    >>> accountant.compose(GaussianPrivacyEvent(4.0, 10, 100), count=16)
    >>> round(accountant.get_privacy_spent().epsilon, 3)
    4.377
    """

    def __init__(self, config: PrivacyConfig) -> None:
        check_kind(config, "config", PrivacyConfig, "Make one of flwr.serverapp's.")
        known = (SamplingMethod.POISSON, SamplingMethod.NO_AMPLIFICATION)
        if (
            config.sampling_method not in known
            or config.neighboring_relation is not NeighboringRelation.ADD_OR_REMOVE_ONE
        ):
            raise ValueError(
                "Parameter `config` should have Poisson sampling or no amplification, and"
                " neighbours that add or remove one client. Found"
                f" {config.sampling_method.value} and {config.neighboring_relation.value}."
                " For clients drawn without replacement use `PrivacyAccount` with a rate of 1 and"
                " neighbours='replace-one'."
            )
        self._config = config
        self._account: PrivacyAccount | None = None

    @property
    def config(self) -> PrivacyConfig:
        """What the numbers are about."""
        return self._config

    @property
    def num_releases(self) -> int:
        """How many were counted."""
        return 0 if self._account is None else self._account.steps

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Count releases; all have to be like the first."""
        account = self._account_of(event)
        account.step(count)
        self._account = account

    def get_epsilon(self, delta: float) -> float:
        """ε of the releases so far."""
        a = self._account
        return (
            0.0 if a is None else epsilon_after(a.noise_multiplier, a.sample_rate, a.steps, delta)
        )

    def get_delta(self, epsilon: float) -> float:
        """δ of the releases so far."""
        a = self._account
        return (
            0.0 if a is None else delta_after(a.noise_multiplier, a.sample_rate, a.steps, epsilon)
        )

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """What was spent so far, in Flower's words."""
        chosen = self.config.target_delta if delta is None else delta
        return PrivacySpent(self.get_epsilon(chosen), chosen, self.num_releases, "gradveil")

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Whether more releases would exceed the limit; nothing is counted."""
        limit = self.config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise ValueError(
                "Parameter `max_epsilon` should be given here or in the config. Found None."
            )
        return self._account_of(event).epsilon(count) > limit

    def state_dict(self) -> dict[str, object]:
        """The state to continue from, as plain values."""
        return {"account": None if self._account is None else self._account.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from a state that `state_dict` returned."""
        stored: Any = state["account"]
        self._account = None
        if stored is not None:
            account = self._new(stored["noise_multiplier"], stored["sample_rate"])
            account.load_state_dict(stored)
            self._account = account

    def _account_of(self, event: GaussianPrivacyEvent) -> PrivacyAccount:
        """The account that counts such releases."""
        if event.population_size != self.config.population_size:
            raise ValueError(
                f"Parameter `event` should be of {self.config.population_size} clients, as in the"
                f" config. Found {event.population_size}. Keep the population as it is."
            )
        sampled = self.config.sampling_method is SamplingMethod.POISSON
        rate = event.sample_size / event.population_size if sampled else 1.0
        fresh = self._new(event.noise_multiplier, rate)
        if self._account is None:
            return fresh
        if fresh.describe() != self._account.describe():
            raise ValueError(
                "Parameter `event` should be like the releases before it. Found noise multiplier"
                f" {event.noise_multiplier} and {event.sample_size} clients. Start a new accountant"
                " only for data that was never used."
            )
        return self._account

    def _new(self, noise_multiplier: float, rate: float) -> PrivacyAccount:
        """Flower's own noise is continuous."""
        delta = self.config.target_delta
        return PrivacyAccount(noise_multiplier, rate, delta, unit="client", grid=False)
