"""A server that counts ε, ends before the budget is spent, and writes what it found."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from torch.nn.functional import cross_entropy

from gradveil.federated import evaluate
from gradveil.flower import FedSGD
from private_digits.task import load_account, load_held_out, load_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train within the budget, then write the results file."""
    settings, held_out = context.run_config, load_held_out()
    model, account = load_model(), load_account()
    optimizer = torch.optim.Adam(model.parameters(), lr=float(settings["lr"]))
    nodes = int(settings["min-nodes"])
    strategy = FedSGD(model, optimizer, account=account, min_available_nodes=nodes)

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
    results = {
        "privacy": strategy.history.privacy,
        "rounds": [{"round": r, **clients[r], **evaluations[r]} for r in sorted(clients)],
        "stopped": strategy.history.stopped,
    }
    Path(str(settings["results"])).write_text(json.dumps(results, indent=1))
