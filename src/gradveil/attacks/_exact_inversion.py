"""Exact inversion of a fully connected ReLU layer that reads the inputs."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from gradveil._checks import WrongValue
from gradveil._random import generator_or_fresh, seed_from
from gradveil._tensors import Tensors
from gradveil.messages import in_double

from ._attack import FINISHED, INTERRUPTED, TIME_BUDGET, Progress, Reconstruction, Search
from ._descent import Watch, clamp, sent_row
from ._exact_search import Batch, Factors, Hunt, factors_of
from ._model_layers import Call, input_layer, loss_of, random_inputs
from ._observation import Observation, check_observation
from ._targets import Run, labels_of, message_misfit

_ROUNDING = 1e-9
"""The relative squared misfit of a message that counts as rounding in single precision."""

Explained = tuple[Tensor, Tensor]
"""The inputs of a whole batch in rows, and their labels."""


@dataclass(frozen=True)
class Problem:
    """An observation whose first layer shows the rank of the batch."""

    observation: Observation
    call: Call
    factors: Factors

    @property
    def noise_share(self) -> float:
        """Of the message's power."""
        sent = sent_row(self.observation).double()
        return self.factors.noise**2 * sent.numel() / float(sent.square().sum())

    def explained(self, batch: Batch) -> Reconstruction | None:
        """The whole batch with its labels, if it makes the message that was sent."""
        is_update = self.observation.local is not None
        explained = self._in_order(batch) if is_update else self._with_labels(batch)
        if explained is None:
            return None
        found = self._as_found(explained)
        if found.loss <= _ROUNDING:
            return found
        if is_update or self.noise_share < _ROUNDING / 10:
            return None
        found = self._as_found(self._polished(explained))
        # units whose sign noise turns add to the misfit: most others must be met
        own = self.observation.message(found.targets)(found.inputs)[self.call.weight]
        error = (own - self.observation.sent[self.call.weight]).double().square().mean(dim=1)
        met = float((error < 1.5 * self.factors.noise**2).double().mean())
        return found if found.loss < 1.5 * self.noise_share + 0.1 and met > 0.8 else None

    def output_gradients(
        self, inputs: Tensor, labels: Tensor, parameters: Tensors | None = None
    ) -> Tensor:
        """∂L/∂u of each example in float64, as in a whole batch; shape (examples, units).

        The batch is filled up with the first example, so that means are right.
        """
        observation, layer, count = self.observation, self.call.layer, len(inputs)
        missing = max(0, observation.batch_size - count)
        places = torch.cat([torch.arange(count), torch.zeros(missing, dtype=torch.long)])
        shaped = inputs[places].double().reshape(-1, *observation.input_shape)
        shift = shaped.new_zeros(len(places), layer.out_features, requires_grad=True)
        loss = loss_of(observation).double()
        with torch.enable_grad(), layer.register_forward_hook(lambda _, __, u: u + shift):
            value = loss(parameters or loss.parameters, shaped, labels[places])
        return torch.autograd.grad(value, shift)[0][:count, self.factors.units]

    def _of_each_label(self, inputs: Tensor, parameters: Tensors | None = None) -> Tensor:
        """The same for each label it could have; shape (examples, classes, units)."""
        blank = torch.empty(len(inputs), dtype=torch.long, device=inputs.device)
        labels = range(self.observation.num_classes)
        each = [self.output_gradients(inputs, blank.fill_(n), parameters) for n in labels]
        return torch.stack(each, dim=1)

    def _with_labels(self, batch: Batch) -> Explained | None:
        """The labels of the inputs, and how often each occurs; `None` if that does not add up.

        An input that occurs with labels c_1, c_2, ... has the gradient Σ_i δ(c_i) at its outputs,
        each of which the attacker can compute.
        """
        every, size = self._of_each_label(batch.inputs), self.observation.batch_size
        missing = size - len(batch.inputs)
        if missing == 0:
            cosines = cosine_similarity(batch.deltas[:, None], every, dim=2)
            return batch.inputs, cosines.argmax(dim=1)
        pairs = zip(batch.deltas, every, strict=True)
        counts = torch.stack([_counts(own, each, missing) for own, each in pairs])
        if int(counts.sum()) != size:
            return None
        image, label = counts.nonzero().unbind(1)
        repeats = counts[image, label]
        inputs = batch.inputs[image.repeat_interleave(repeats)]
        return inputs, label.repeat_interleave(repeats)

    def _in_order(self, batch: Batch) -> Explained | None:
        """The inputs in the order of the local steps, by playing these again.

        The gradient at an input's outputs, as the weight change shows it, has the direction of the
        one that its own label makes at the parameters of its own step. So each step takes those of
        the inputs left that fit best, and goes on from the parameters that they lead to.
        Repetitions are read from gradients only.
        """
        observation, inputs = self.observation, batch.inputs
        local = observation.local
        if local is None or len(inputs) < observation.batch_size:
            return None
        blank = torch.zeros(len(inputs), dtype=torch.long, device=inputs.device)
        message = in_double(local.message(observation.model, observation.loss_fn, blank))
        now = message.parameters
        velocity = {name: torch.zeros_like(value) for name, value in now.items()}
        left, labels, order = torch.arange(len(inputs)), blank.clone(), torch.empty_like(blank[:0])
        while len(left) > 0:
            every = self._of_each_label(inputs[left], now)
            fits, own = cosine_similarity(-batch.deltas[left][:, None], every, dim=2).max(dim=1)
            best = fits.argsort(descending=True)[: local.batch_size or len(left)]
            labels[left[best]] = own[best]
            taken, order = left[best], torch.cat([order, left[best]])
            shaped = inputs[taken].reshape(-1, *observation.input_shape)
            gradient = message.gradient_at(now, labels[taken])(shaped)
            now, velocity = message.advance(now, velocity, gradient)
            left = left[~torch.isin(left, taken)]
        return inputs[order], labels[order]

    def _polished(self, explained: Explained) -> Explained:
        """Inputs that fit the layer's gradient in all units, X ← Δ(X)⁺ ∂L/∂W, in a few rounds.

        What was found from zeros uses each example's inactive units; Δ(X), the gradients at the
        outputs that the inputs themselves make, uses all units and averages over more noise.
        """
        seen, gradient = self.observation, self.factors.rows @ self.factors.basis
        inputs, labels = explained
        for _ in range(3):
            shaped = clamp(inputs.reshape(-1, *seen.input_shape), seen.low, seen.high)
            deltas = self.output_gradients(shaped, labels)
            inputs = (torch.linalg.pinv(deltas.T) @ gradient)[:, :-1]
        return inputs, labels

    def _as_found(self, explained: Explained) -> Reconstruction:
        """In the shape, dtype, range and order of the batch, with the misfit of the message."""
        observation, like = self.observation, next(iter(self.observation.sent.values()))
        inputs, labels = explained
        shape = (observation.batch_size, *observation.input_shape)
        inputs = clamp(inputs.to(like).reshape(shape), observation.low, observation.high)
        ordered = observation.local is not None and observation.local.batch_size is not None
        order = _order(labels, None if ordered else observation.labels)
        inputs, labels = inputs[order], labels[order].to(like.device)
        misfit = message_misfit(observation, inputs, labels)
        return Reconstruction(inputs, labels, misfit, is_certain=True)


def problem_of(observation: Observation, generator: torch.Generator) -> Problem | None:
    """The problem; `None` where the method does not apply."""
    if observation.task != "classification":  # labels are found by trying every class
        return None
    call = input_layer(observation, generator)
    if call is None or call.inputs.dim() != 2:
        return None
    if min(call.layer.weight.shape) <= observation.batch_size:
        return None
    factors = factors_of(observation.sent, call, observation.batch_size)
    if factors is None:
        return None
    problem, probe = Problem(observation, call, factors), random_inputs(observation, 16, generator)
    labels = torch.zeros(16, dtype=torch.long, device=probe.device)
    zeros = float((problem.output_gradients(probe, labels) == 0).double().mean())
    # units must be inactive for some inputs, and not for all; and where noise explains much of a
    # message, a small misfit says too little
    return problem if 0.02 < zeros < 1 and problem.noise_share <= 0.2 else None


def _counts(own: Tensor, each: Tensor, missing: int) -> Tensor:
    """How often one input occurs with each label: the whole numbers that fit best."""
    size = each.norm(dim=1).mean()
    best, least = torch.zeros(len(each), dtype=torch.long), torch.inf
    system = torch.cat([each.T, size.expand(1, len(each))])
    for total in range(1, missing + 2):
        target = torch.cat([own, (size * total)[None]])
        solved = torch.linalg.lstsq(system, target[:, None], driver="gelsd").solution[:, 0]
        counts = solved.round().clamp_min(0)
        misfit = float((own - counts @ each).norm())
        if misfit < least and int(counts.sum()) == total:
            best, least = counts.long(), misfit
    return best


def _order(labels: Tensor, wanted: Tensor | None) -> Tensor:
    """The places that bring these labels into the wanted order, where that is known and fits."""
    if wanted is None or not torch.equal(labels.sort()[0], wanted.cpu().sort()[0]):
        return torch.arange(len(labels))
    order = torch.empty_like(labels)
    order[wanted.cpu().argsort(stable=True)] = labels.argsort(stable=True)
    return order


@dataclass(frozen=True)
class ExactInversion(Search):
    """All inputs of a batch, exactly, from the gradient of a fully connected ReLU layer.

    For u = W x + b the gradients are [∂L/∂W, ∂L/∂b] = Δ [X, 1] with Δ the gradients at the outputs,
    one column for each example: a matrix whose rank is the batch size. Its factors are known up to
    one invertible matrix Q, and ReLU tells which: where a unit is inactive, Δ is 0, so each column
    of Δ is a vector with many zeros in a known subspace.

    1. Low-rank factors; the rank and the noise are read from the singular values (`Factors`).
    2. Sparse vectors of the column space by reweighted least squares from many starts, guided by
       what outputs are possible (`search`). The published method samples units and takes null
       directions, which needs about 2^(batch size) samples.
    3. The inputs by Q⁻¹, their lengths from the bias (`assemble`).
    4. Labels and repetitions from the gradients that each label would make (`Problem`). Labels that
       the threat model grants are used for the order only.
    5. The batch counts as found if it makes the message that was sent, up to rounding or up to the
       noise that the singular values show.

    FedAvg's weight change is Δ [X, 1], too, with Δ summed over the local steps; zeros are units
    that stay inactive all along.

    Reference: Dimitrov et al., "SPEAR: Exact Gradient Inversion of Batches in Federated Learning",
    NeurIPS 2024, for the factors, the sparsity and the exactness; the search is this project's.

    Args:
        rounds: How often the search starts again for what is still missing.

    >>> from torch.nn.functional import cross_entropy
    >>> from gradveil import NoDefense
    >>> from gradveil.attacks import observe
    >>> from gradveil.models import build_model
    >>> model = build_model("mlp", sizes=[3, 8, 2], activation="relu")
    >>> private = torch.tensor([[0.2, 0.7, 0.4]]), torch.tensor([1])
    >>> seen = observe(model, cross_entropy, private, NoDefense(), num_classes=2)
    >>> ExactInversion()(seen).inputs.round(decimals=2)
    tensor([[0.2000, 0.7000, 0.4000]])
    """

    rounds: int = 30

    def __call__(
        self, observation: Observation, generator: torch.Generator | None = None
    ) -> Reconstruction:
        """Attack; noise where nothing was found. `loss` is the relative misfit of the message.

        A message that the method does not apply to is an error.
        """
        check_observation(observation)
        generator, watch = generator_or_fresh(generator), Watch(self.time_budget)
        problem = problem_of(observation, _own(generator))
        if problem is None:
            raise WrongValue(
                "observation",
                "be of a model that starts with a trainable `nn.Linear` with a bias and ReLU, of a"
                " batch smaller than that layer, and of a message whose rank noise and pruning do"
                " not hide",
                "one that the method does not apply to",
                "Use `InvertingGradients`.",
            )
        found = self._search(problem, _own(generator), watch, self.progress)
        if isinstance(found, Reconstruction):
            return found
        return Run(observation, labels_of(observation, generator), generator, watch).blank(found)

    def solve(self, run: Run) -> Reconstruction | None:
        """The batch; `None` where it is not found. The generator keeps its state."""
        own = _own(run.generator)
        problem = problem_of(run.observation, own)
        found = None if problem is None else self._search(problem, own, run.watch, run.progress)
        if found == INTERRUPTED:
            return replace(run, generator=own).blank(INTERRUPTED)
        return found if isinstance(found, Reconstruction) else None

    def _search(
        self, problem: Problem, generator: torch.Generator, watch: Watch, progress: Progress | None
    ) -> Reconstruction | str:
        """The batch, or the status with which the search for it ended."""
        hunt = Hunt(problem.factors)
        try:
            for number in range(self.rounds):
                if progress is not None:
                    progress(number, self.rounds, hunt.missing / problem.factors.rank)
                if watch.is_over():
                    return TIME_BUDGET
                batch = hunt.run(generator)
                found = None if batch is None else problem.explained(batch)
                if found is not None:
                    return found
                if hunt.is_hopeless:
                    break
        except KeyboardInterrupt:
            return INTERRUPTED
        return FINISHED


def _own(generator: torch.Generator) -> torch.Generator:
    """A generator of the same state's seed: the given one draws nothing here."""
    return torch.Generator().manual_seed(seed_from(generator))
