"""The user's module is read, never written; the same for the global state of torch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gradveil import GradientMessage, ModelError, measure
from gradveil.messages._functional import trainable_parameters
from gradveil.messages._mixing import couples_examples
from gradveil.sensitivity import Exact, PerExample, Sketch
from tests.messages.compare import assert_same_bytes, assert_untouched
from tests.zoo import ZOO, Case, batch_norm_net, named

pytestmark = pytest.mark.usefixtures("global_rng_watch")

ACTIONS: dict[str, Callable[..., object]] = {
    "message": lambda message, inputs: message(inputs),
    "exact": lambda message, inputs: measure(message, inputs, Exact()),
    "sketch": lambda message, inputs: measure(message, inputs, Sketch(probes=2)),
    "auto": lambda message, inputs: measure(message, inputs),
}


def with_gradients(model: nn.Module) -> nn.Module:
    """A model in the middle of its training: `.grad` holds something."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("case", ZOO, ids=str)
def test_gradient_message_leaves_the_module_alone(case: Case, action: str) -> None:
    model = with_gradients(case.model())
    message = GradientMessage(model, case.loss(), case.targets())
    with assert_untouched(model):
        ACTIONS[action](message, case.inputs())


@pytest.mark.parametrize("action", ["message", "sketch"])
@pytest.mark.parametrize("name", ["batch_norm_train", "dropout_train", "frozen", "tied"])
def test_local_update_leaves_the_module_alone(name: str, action: str) -> None:
    message = named(name).local_update()
    with assert_untouched(with_gradients(message.loss.model)):
        ACTIONS[action](message, named(name).inputs())


def test_a_mixture_of_modes_is_respected() -> None:
    """BatchNorm frozen in eval mode inside a model that trains."""
    case, model = named("batch_norm_eval"), named("batch_norm_eval").model().train()
    model[1].eval()
    message = GradientMessage(model, case.loss(), case.targets())
    with assert_untouched(model):
        assert_same_bytes(message(case.inputs()), case.message()(case.inputs()))


def test_running_statistics_stay_in_training_mode() -> None:
    case = named("batch_norm_train")
    model = case.model()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    message = GradientMessage(model, case.loss(), case.targets())
    measure(message, case.inputs(), Sketch(probes=3))
    assert len(before) == 3
    assert_same_bytes(dict(model.named_buffers()), before)


def test_an_error_in_the_model_leaves_it_alone() -> None:
    case, model = named("dropout_train"), named("dropout_train").model()
    message = GradientMessage(model, case.loss(), case.targets())
    with assert_untouched(model), pytest.raises(ModelError, match="shapes cannot be multiplied"):
        message(case.inputs()[:, :2])


@pytest.mark.parametrize("estimator", [Exact(), Sketch(probes=2), PerExample(probes=2)], ids=repr)
def test_the_users_hooks_run(estimator: Callable[..., object]) -> None:
    case, model, seen = named("mlp"), named("mlp").model(), []
    model[0].register_forward_hook(lambda *_: seen.append("after"))
    model[0].register_forward_pre_hook(lambda *_: seen.append("before"))
    measure(GradientMessage(model, case.loss(), case.targets()), case.inputs(), estimator)
    assert seen.count("before") == seen.count("after") > 0


def test_a_hook_that_changes_outputs_changes_the_message() -> None:
    case, model = named("mlp"), named("mlp").model()
    message = GradientMessage(model, case.loss(), case.targets())
    plain = message(case.inputs())
    hook = model.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    assert not torch.equal(message(case.inputs())["0.weight"], plain["0.weight"])
    hook.remove()
    assert_same_bytes(message(case.inputs()), plain)


class TestGlobalRandomState:
    @pytest.mark.parametrize("action", ACTIONS)
    @pytest.mark.parametrize(
        "name", ["dropout_train", "functional_dropout_train", "functional_dropout_always"]
    )
    def test_a_random_model_leaves_it_alone(self, name: str, action: str) -> None:
        message, inputs = named(name).message(), named(name).inputs()
        before = torch.default_generator.get_state()
        ACTIONS[action](message, inputs)
        assert torch.equal(torch.default_generator.get_state(), before)

    def test_a_random_loss_leaves_it_alone_and_is_one_function(self) -> None:
        case = named("mlp")

        def noisy(outputs: Tensor, targets: Tensor) -> Tensor:
            return case.loss()(outputs + torch.randn_like(outputs), targets)

        message = GradientMessage(case.model(), noisy, case.targets())
        before = torch.default_generator.get_state()
        assert_same_bytes(message(case.inputs()), message(case.inputs()))
        assert torch.equal(torch.default_generator.get_state(), before)

    def test_generators_of_other_devices_are_not_seeded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`torch.manual_seed` seeds every GPU, too, also for a model on the CPU."""

        def refuse(seed: int) -> None:
            raise AssertionError(f"seeded with {seed}")

        monkeypatch.setattr(torch.cuda, "manual_seed_all", refuse)
        case = named("dropout_train")
        case.message()(case.inputs())

    def test_it_is_put_back_after_an_error(self) -> None:
        case = named("dropout_train")
        before = torch.default_generator.get_state()
        with pytest.raises(ModelError, match="shapes cannot be multiplied"):
            case.message()(case.inputs()[:, :2])
        assert torch.equal(torch.default_generator.get_state(), before)


def test_the_choice_of_attention_kernels_is_put_back() -> None:
    case = named("transformer")
    flags = (torch.backends.mha.get_fastpath_enabled, torch.backends.cuda.flash_sdp_enabled)
    before = [flag() for flag in flags]
    measure(case.message(), case.inputs(), Exact())
    assert [flag() for flag in flags] == before == [True, True]


def test_trainable_parameters_share_memory_with_the_model() -> None:
    model = named("frozen").model()
    parameters = trainable_parameters(model)
    assert parameters.keys() == {"0.bias", "2.weight"}
    assert parameters["2.weight"].data_ptr() == model[2].weight.data_ptr()
    assert not any(parameter.requires_grad for parameter in parameters.values())


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.BatchNorm1d(2).train(), True),
        (nn.BatchNorm1d(2).eval(), False),
        (nn.BatchNorm1d(2, track_running_stats=False).eval(), True),
        (nn.SyncBatchNorm(2).train(), True),
        (nn.Dropout(0.1).train(), True),
        (nn.Dropout(0.1).eval(), False),
        (nn.Dropout(0.0).train(), False),
        (nn.AlphaDropout(0.1).train(), True),
        (nn.LayerNorm(2).train(), False),
        (nn.InstanceNorm1d(2).train(), False),
        (nn.Sequential(nn.Linear(2, 2), batch_norm_net().train()).eval(), False),
        (nn.Sequential(nn.Linear(2, 2).eval(), nn.BatchNorm1d(2).train()), True),
    ],
    ids=repr,
)
def test_layers_that_mix_examples(model: nn.Module, expected: bool) -> None:
    assert couples_examples(model) is expected
