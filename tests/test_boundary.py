"""Where the graph of a window ends: edges behind edges, and nodes that other threads have counted."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from recurrent import STEPS, random

import artbp

OUTSIDE = {
    "plus one": lambda W, E: (W + 1, W),
    "negated": lambda W, E: (-W, W),
    "transposed": lambda W, E: (W.t(), W),
    "concatenated": lambda W, E: (torch.cat([W, W])[:3], W),
    "scaled": lambda W, E: (W * 0.3, W),
    "exponential, which saves itself": lambda W, E: (W.exp(), W),
    "two of them": lambda W, E: ((W * 0.3).sin(), W),
    "an edge behind an edge": lambda W, E: ((e := E.sin()) + 1, e),
}


def gradient(cell, leaves, window, links=None):
    for leaf in leaves:
        leaf.grad = None
    artbp.backprop(
        artbp.unroll(cell), random(STEPS, 2, 3), torch.zeros(2, 3, dtype=torch.float64), links, window=window
    )
    return torch.cat([leaf.grad.flatten() for leaf in leaves if leaf.grad is not None])


@pytest.mark.parametrize("made", OUTSIDE.values(), ids=OUTSIDE)
@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_weight_and_what_was_made_of_it_outside(made, window):
    """Both are used in the step: what flows to the one must not flow through the other as well."""
    links = torch.linspace(0.5, 1.5, STEPS, dtype=torch.float64)

    def found(window):
        W, E = random(3, 3, grad=True), random(3, 3, grad=True)
        one, other = made(W, E)

        def cell(x, state):
            state = torch.tanh(state @ other + x @ one)
            return state.sum(), state

        return gradient(cell, (W, E), window, links)

    torch.testing.assert_close(found(window), found(None), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_step_whose_graph_is_made_in_another_thread(window):
    """Autograd counts nodes in each thread anew, so that these seem older than anything."""
    W = random(3, 3, grad=True)
    for _ in range(1000):
        W.sin()  # this thread's count is ahead of the other's
    with ThreadPoolExecutor(1) as other:

        def cell(x, state):
            def compute():
                with torch.enable_grad() if grad else torch.no_grad():
                    return torch.tanh(state @ W + x)

            grad = torch.is_grad_enabled()
            state = other.submit(compute).result()
            return state.sum(), state

        torch.testing.assert_close(gradient(cell, [W], window), gradient(cell, [W], None), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_step_that_differentiates_within(window):
    """Meta-learning: an inner gradient with create_graph; the first run saves nothing, so grad is enabled for it."""
    W = random(3, 3, grad=True)

    def cell(x, state):
        with torch.enable_grad():
            fast = state @ W + x
            (inner,) = torch.autograd.grad(fast.pow(4).sum(), fast, create_graph=True)
        state = torch.tanh(fast - 0.1 * inner)
        return state.sum(), state

    torch.testing.assert_close(gradient(cell, [W], window), gradient(cell, [W], None), rtol=1e-12, atol=1e-13)
