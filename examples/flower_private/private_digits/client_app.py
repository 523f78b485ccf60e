"""A client that sends a private gradient and a public number of examples, nothing else."""

from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from gradveil.flower import train_function
from private_digits.task import BATCH, SAMPLE_RATE, load_defense, load_model, load_part

app = ClientApp()
app.train()(
    train_function(
        lambda _: load_model(),
        cross_entropy,
        load_part,
        load_defense(),
        batch_size=BATCH,
        sample_rate=SAMPLE_RATE,
    )
)
