"""Many clients: the server plans once a round, whatever their number."""

import time
from pathlib import Path

import pytest
import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn
from torch.nn.functional import cross_entropy

from gradveil import FromServer, OptimalNoise
from gradveil.federated import PackedShape, Planner
from gradveil.flower import FedSGD, train_function

from . import small

CLIENTS = 1000


class Timed(Planner):
    """A planner that notes how much of the processor's time each plan took."""

    def plan(self, number: int, model: nn.Module) -> PackedShape:
        start = time.process_time()
        packed = super().plan(number, model)
        self._seconds = [*getattr(self, "_seconds", []), time.process_time() - start]
        return packed


def client_app() -> ClientApp:
    app = ClientApp()
    served = OptimalNoise(0.01, source=FromServer())
    app.train()(
        train_function(
            lambda _: small.model(),
            cross_entropy,
            lambda context: small.examples(8, int(context.node_config["partition-id"])),
            served,
            batch_size=4,
        )
    )
    return app


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # ray leaves files open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("asked", [10, 100, 1000])
def test_one_plan_serves_all(asked: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from flwr.simulation import run_simulation

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # Flower changes it
    monkeypatch.setenv("RAY_worker_niceness", "0")
    model = small.model()
    planner = Timed(small.examples(32, seed=1), cross_entropy, 1, batch_size=4)
    strategy = FedSGD(
        model,
        torch.optim.Adam(model.parameters()),
        planner=planner,
        fraction_train=asked / CLIENTS,
        min_available_nodes=CLIENTS,
    )
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < CLIENTS:
            time.sleep(0.1)
        strategy.start(grid=grid, num_rounds=2)

    run_simulation(
        server_app=server,
        client_app=client_app(),
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    assert [len(replies.clients) for replies in strategy.rounds] == [asked, asked]
    assert len(planner._seconds) == 2
    assert max(planner._seconds) < 5  # of a small model, with 10 clients as with 1,000
