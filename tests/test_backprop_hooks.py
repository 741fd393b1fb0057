"""backprop and what stands on the parameters: hooks fire once, gradients add up, the loss comes back unscaled."""

import weakref

import pytest
import torch
from recurrent import LINKS, STEPS, Recurrent, close, gradients, random

import artbp

# ---- hooks, accumulation, scale --------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 1, 2, 5])
def test_parameter_hooks_fire_once_with_the_whole_gradient(window):
    module, inputs, start = Recurrent(), random(STEPS, 2, 2), torch.zeros(2, 3, dtype=torch.float64)
    artbp.backprop(module, inputs, start, LINKS)
    expected, before, after = gradients(module), {}, {}
    for name, parameter in module.named_parameters():
        parameter.register_hook(lambda gradient, name=name: before.setdefault(name, []).append(gradient.clone()))
        parameter.register_post_accumulate_grad_hook(
            lambda parameter, name=name: after.setdefault(name, []).append(parameter.grad.clone())
        )
    artbp.backprop(module, inputs, start, LINKS, window=window)
    for calls in (before, after):
        assert {name: len(found) for name, found in calls.items()} == dict.fromkeys(expected, 1)
        close({name: found[0] for name, found in calls.items()}, expected)


@pytest.mark.parametrize("window", [None, 1, 3])
def test_a_hook_that_changes_the_gradient_is_obeyed_once(window):
    module, inputs, start = Recurrent(), random(STEPS, 2, 2), torch.zeros(2, 3, dtype=torch.float64)
    artbp.backprop(module, inputs, start, LINKS)
    expected = {name: gradient * 3.0 + 1.0 for name, gradient in gradients(module).items()}
    for parameter in module.parameters():
        parameter.register_hook(lambda gradient: gradient * 3.0 + 1.0)
    artbp.backprop(module, inputs, start, LINKS, window=window)
    close(gradients(module), expected)


@pytest.mark.parametrize("window", [None, 2])
def test_gradients_add_to_what_is_there(window):
    module, inputs, start = Recurrent(), random(STEPS, 2, 2), torch.zeros(2, 3, dtype=torch.float64)
    artbp.backprop(module, inputs, start, LINKS)
    expected = {name: gradient + 7.0 for name, gradient in gradients(module).items()}
    slots = {}
    for name, parameter in module.named_parameters():
        parameter.grad = slots[name] = torch.full_like(parameter, 7.0)
    artbp.backprop(module, inputs, start, LINKS, window=window)
    assert all(
        parameter.grad is slots[name] for name, parameter in module.named_parameters()
    )  # in place, as torch does
    close(gradients(module), expected)


@pytest.mark.parametrize("scale", [0.125, 65536.0, torch.tensor(0.125), torch.tensor(65536.0, dtype=torch.float64)])
@pytest.mark.parametrize("window", [None, 2])
def test_scale_is_on_the_gradient_and_not_on_the_loss(window, scale):
    module, inputs, start = Recurrent(), random(STEPS, 2, 2), torch.zeros(2, 3, dtype=torch.float64)
    loss, _ = artbp.backprop(module, inputs, start, LINKS)
    expected = {name: gradient * float(scale) for name, gradient in gradients(module).items()}
    scaled, _ = artbp.backprop(module, inputs, start, LINKS, window=window, scale=scale)
    torch.testing.assert_close(scaled, loss, rtol=1e-14, atol=0)
    close(gradients(module), expected)


def test_nothing_of_the_graph_is_left_behind():
    module, inputs = Recurrent(), random(STEPS, 2, 2)
    for window in (None, 2):
        loss, state = artbp.backprop(module, inputs, torch.zeros(2, 3, dtype=torch.float64), LINKS, window=window)
        assert loss.grad_fn is None
        assert state.grad_fn is None
        reference = weakref.ref(state)
        del state
        assert reference() is None
