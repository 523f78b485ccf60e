"""Federated training under a defense: the loss of every round, the noise of every layer."""

from collections.abc import Mapping

from gradveil.studies.runner import Settings, Value, cell_function

from ._federation import federation
from ._recording import Recording, mean_levels


@cell_function("training")
def training(settings: Settings) -> Mapping[str, Value]:
    """Train and keep the clients' mean loss before each step, and the end on held-out examples.

    `levels` holds the standard deviation of the noise, averaged over each tensor's entries and
    over clients, in every round. Settings: `data`, `start`, `examples`, `model`, `defense`,
    `clients`, `batch_size`, `rounds`, `optimizer`, `lr`, `seed`; optional `held_out`,
    `held_out_start`, `public` (see `federation`) and FedAvg's `local_steps`, `local_lr`,
    `local_batch_size`.
    """
    run = federation(settings)
    recordings = [Recording(client.defense) for client in run.clients.values()]
    for client, recording in zip(run.clients.values(), recordings, strict=True):
        client.defense = recording
    history = run.run(settings["rounds"])
    last = history.rounds[-1]
    return {
        "losses": [row.loss for row in history.rounds],
        "levels": mean_levels(recordings),
        "held_out_loss": last.held_out_loss,
        "accuracy": last.accuracy,
        "bytes_sent": sum(row.bytes_sent for row in history.rounds),
        "skipped": history.skipped,
    }
