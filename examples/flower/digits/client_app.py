"""A client that sends its defended gradient and the number of examples, nothing else."""

from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from digits.task import load_defense, load_model, load_part
from gradveil.flower import train_function

app = ClientApp()
app.train()(
    train_function(lambda _: load_model(), cross_entropy, load_part, load_defense, batch_size=16)
)
