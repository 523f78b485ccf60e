"""Partitions are partitions, and those of flwr-datasets."""

import pytest
import torch

from gradveil.federated import partition

TARGETS = torch.randint(10, (203,), generator=torch.Generator().manual_seed(0))


def flower_parts(kind: str, clients: int, alpha: float, seed: int) -> list[list[int]]:
    pytest.importorskip("flwr_datasets")
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner, ShardPartitioner

    data = Dataset.from_dict({"idx": list(range(len(TARGETS))), "label": TARGETS.tolist()})
    if kind == "iid":
        partitioner, data = IidPartitioner(clients), data.shuffle(seed=seed)
    elif kind == "dirichlet":
        partitioner = DirichletPartitioner(clients, "label", alpha, min_partition_size=1, seed=seed)
    else:
        partitioner = ShardPartitioner(clients, "label", num_shards_per_partition=2, seed=seed)
    partitioner.dataset = data
    return [list(partitioner.load_partition(i)["idx"]) for i in range(clients)]


@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")  # datasets' own
@pytest.mark.parametrize("seed", [0, 42])
@pytest.mark.parametrize("clients", [1, 4, 7])
@pytest.mark.parametrize("kind", ["iid", "dirichlet", "label"])
def test_the_same_as_flwr_datasets(kind: str, clients: int, seed: int) -> None:
    found = [part.tolist() for part in partition(TARGETS, clients, kind, alpha=0.7, seed=seed)]
    assert found == flower_parts(kind, clients, 0.7, seed)


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "label"])
def test_nobody_shares_an_example(kind: str) -> None:
    parts = partition(TARGETS, 5, kind)
    everything = torch.cat(parts)
    assert len(everything.unique()) == len(everything)
    left_out = len(TARGETS) % 10 if kind == "label" else 0
    assert len(everything) == len(TARGETS) - left_out


def test_iid_sizes_differ_by_one_at_most() -> None:
    sizes = [len(part) for part in partition(TARGETS, 6)]
    assert max(sizes) - min(sizes) <= 1


def test_labels_are_concentrated() -> None:
    """A client sees at most 2 × 2 labels where shards are smaller than classes."""
    targets = torch.arange(10).repeat_interleave(40)
    for part in partition(targets, 10, "label", seed=3):
        assert len(targets[part].unique()) <= 4
    few, many = (
        sum(len(TARGETS[p].unique()) for p in partition(TARGETS, 5, "dirichlet", alpha=a))
        for a in (0.1, 100.0)
    )
    assert few < many


def test_the_seed_decides() -> None:
    for kind in ("iid", "dirichlet", "label"):
        one, same, other = (partition(TARGETS, 3, kind, seed=s)[0].tolist() for s in (0, 0, 1))
        assert one == same != other


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="Parameter `kind` should be one of"):
        partition(TARGETS, 2, "random")
    with pytest.raises(ValueError, match=r"at least 8 examples for 4 clients\. Found 5"):
        partition(TARGETS[:5], 4, "label")
    with pytest.raises(ValueError, match="Parameter `alpha` should leave every client an example"):
        partition(TARGETS, 40, "dirichlet", alpha=1e-3)
    with pytest.raises(ValueError, match="Parameter `alpha` should be a finite number above 0"):
        partition(TARGETS, 6, "dirichlet", alpha=0.0)


def test_any_targets_can_be_dealt_evenly_and_only_labels_by_label():
    parts = partition(torch.rand(9, 2), 2)
    assert sorted(torch.cat(parts).tolist()) == list(range(9))
    with pytest.raises(ValueError, match=r"one label for each.*'iid'"):
        partition(torch.rand(9, 2), 2, "dirichlet")
