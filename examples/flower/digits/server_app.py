"""A server that steps Adam on the mean of what clients send, and writes what it found."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from torch.nn.functional import cross_entropy

from digits.task import load_held_out, load_model, load_planner
from gradveil.federated import evaluate
from gradveil.flower import FedSGD

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, then write the results file."""
    settings, held_out = context.run_config, load_held_out()
    model = load_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=float(settings["lr"]))
    strategy = FedSGD(
        model,
        optimizer,
        planner=load_planner(int(settings["public-examples"])),
        min_available_nodes=int(settings["min-nodes"]),
    )

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        loss, accuracy = evaluate(model, cross_entropy, *held_out)
        return MetricRecord({"loss": loss, "accuracy": accuracy or 0.0})

    result = strategy.start(
        grid=grid,
        num_rounds=int(settings["num-rounds"]),
        timeout=float(settings["round-timeout"]),
        evaluate_fn=evaluate_fn,
    )
    clients, evaluations = result.train_metrics_clientapp, result.evaluate_metrics_serverapp
    rounds = [{"round": r, **clients[r], **evaluations[r]} for r in sorted(clients)]
    results = {
        "initial": dict(evaluations[0]),
        "rounds": rounds,
        "skipped": strategy.history.skipped,
    }
    Path(str(settings["results"])).write_text(json.dumps(results, indent=1))
