"""`(cut.mean × lanes)` as normaliser: a segment's sum over the mean length is the stream's gradient per step.

The stationary linear system s = a s + θ, loss ½ Σ_lanes (s_b - y_b)² per step, in its fixed point s* = θ/(1-a): every
step of an endless stream adds Σ_b (s* - y_b)/(1-a) to dL/dθ. Per lane that is the number below.
"""

import math

import pytest
import torch

import artbp

DECAY, THETA, TARGETS = 0.9, 0.7, (2.0, 8.5)
FIXED_POINT = THETA / (1 - DECAY)
EXACT = sum(FIXED_POINT - target for target in TARGETS) / len(TARGETS) / (1 - DECAY)


def step_of(theta):
    targets = torch.tensor(TARGETS, dtype=torch.float64)

    def cell(_, state):
        state = DECAY * state + theta
        return 0.5 * (state - targets).square().sum(), state

    return artbp.unroll(cell)


def start():
    return torch.full((len(TARGETS),), FIXED_POINT, dtype=torch.float64)


def gradient_of(links, window=None):
    theta = torch.tensor(THETA, dtype=torch.float64, requires_grad=True)
    artbp.backprop(step_of(theta), None, start(), links, window=window)
    return theta.grad.item()


def table(law, longest):
    """The gradient of a segment of each length, per lane: e Σ_k Σ_{t≥k} a^{t-k} Π links, term by term.

    Adding a step t adds influence_t = 1 + a·link_t·influence_{t-1}: the sum runs forward as well as backward.
    """
    links, influence, total, sums = law.links(longest), 0.0, 0.0, [0.0]
    for link in links.tolist():
        influence = 1.0 + DECAY * link * influence
        total += influence
        sums.append(total)
    return torch.tensor(sums, dtype=torch.float64) * (EXACT * (1 - DECAY))


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 17])
def test_the_table_is_what_backprop_gives(length, window):
    law = artbp.PowerLaw(mean=16, alpha=6)
    found = gradient_of(law.links(length), window) / len(TARGETS)
    assert found == pytest.approx(table(law, length)[length].item(), rel=1e-12)


@pytest.mark.parametrize(
    "law", [artbp.PowerLaw(mean=16, alpha=6), artbp.PowerLaw(mean=5, alpha=9), artbp.Geometric(mean=9)]
)
def test_exactly_in_expectation(law):
    """Σ_L P(L) g(L) / mean over all lengths up to 40,000; what is beyond weighs less than 1e-9."""
    longest = 40_000
    if isinstance(law, artbp.Geometric):
        longest = 2000  # 0.9 / (1 - 1/9) > 1: the single terms grow, their sum does not
    sums = table(law, longest)
    weights = law.pmf(torch.arange(longest + 1))
    expected = float((weights * sums).sum())
    assert expected / law.mean == pytest.approx(EXACT, rel=1e-6)


def test_blocks_have_their_own_mean():
    """Rounded to multiples of 4, the lengths' mean is cut.mean, and that is the normaliser: law.mean is 10% off."""
    law, block, longest = artbp.PowerLaw(mean=16, alpha=6), 4, 20_000
    cut = artbp.Truncation(law, seed=0, block=block)
    rounded = torch.ones(longest, dtype=torch.float64)
    survival = law.survival(torch.arange(0, longest + 1, block)).tolist()
    for m in range(1, longest // block):
        rounded[m * block] = survival[m - 1] / survival[m]
    influence, total, expected = 0.0, 0.0, 0.0
    for t, link in enumerate(rounded.tolist()):
        influence = 1.0 + DECAY * (link if t else 0.0) * influence
        total += influence
        if (t + 1) % block == 0:
            expected += (survival[t // block] - survival[t // block + 1]) * total
    expected *= EXACT * (1 - DECAY)
    assert expected / cut.mean == pytest.approx(EXACT, rel=1e-6)
    assert abs(expected / law.mean / EXACT - 1) > 0.05


def test_over_many_segments_of_a_long_stream():
    """n = 20,000 segments, fixed seed, 5 sigma (6e-7) by the sample's own deviation: some 7% of the gradient.

    The mean over a segment's own length instead is off by far more: this is what must never be averaged.
    """
    law, n = artbp.PowerLaw(mean=16, alpha=6), 20_000
    cut = artbp.Truncation(law, seed=1)
    lengths = torch.tensor([len(cut.segment()) for _ in range(n)])
    gradients = table(law, int(lengths.max()))[lengths]
    error = 5 * gradients.std().item() / math.sqrt(n) / cut.mean
    assert error < 0.08 * abs(EXACT)
    assert abs(gradients.mean().item() / cut.mean - EXACT) < error
    per_length = gradients / lengths
    assert abs(per_length.mean().item() - EXACT) > 10 * per_length.std().item() / math.sqrt(n)


def test_the_loop_of_the_design_notes():
    """The same through `segments`, `backprop` and `scale`, on a stream of 6,000 steps: 5 sigma are some 30%."""
    theta = torch.tensor(THETA, dtype=torch.float64, requires_grad=True)
    cut = artbp.Truncation(artbp.PowerLaw(mean=16, alpha=6), seed=2)
    state, gradients = start(), []
    for inputs, links in cut.segments(torch.zeros(6000, len(TARGETS), dtype=torch.float64)):
        scale = 1 / (cut.mean * len(TARGETS))
        _, state = artbp.backprop(step_of(theta), inputs, state, links, window=16, scale=scale)
        gradients.append(theta.grad.item())
        theta.grad = None
    found = torch.tensor(gradients, dtype=torch.float64)
    error = 5 * found.std().item() / math.sqrt(len(found))
    assert error < 0.4 * abs(EXACT)
    assert abs(found.mean().item() - EXACT) < error
