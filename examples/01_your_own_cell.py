"""Your own cell, with a state that is a dict: what the link asks of a model is one line.

A teacher keeps two traces of a noisy input, one that forgets fast and one that forgets slowly, and says a mix of them.
The cell below has the same form, and has to find the two decays, from a stream that never ends:

    fast = a · fast + (1 - a) · x,        slow = b · slow + (1 - b) · x,        prediction = u · fast + v · slow.

Its state is a dict of tensors. `artbp.link(state, factor)` takes any nesting of tuples, lists, dicts, namedtuples and
dataclasses: the identity going forward, and going backward `factor` times the gradient. The loop is the one you would
write for truncated backpropagation, with cuts at random places.

Expected output:

      steps   error   fast   slow      u      v
    teacher   0.010   0.30   0.96   0.50   3.00
       4000   0.120   0.71   0.71   0.74   0.64
       8000   0.102   0.75   0.87   0.93   0.92
      12000   0.050   0.46   0.95   0.66   2.10
      16000   0.014   0.34   0.96   0.53   2.77
      20000   0.010   0.31   0.96   0.51   2.95
    The slow decay is 0.96, the teacher's 0.96, with graphs of 20 steps on average.
"""

import argparse

import torch
from torch import nn

import artbp

LANES = 16


class TwoTraces(nn.Module):
    def __init__(self, fast: float = 0.5, slow: float = 0.5, u: float = 0.5, v: float = 0.4) -> None:
        super().__init__()
        self.decays = nn.Parameter(torch.tensor([fast, slow]).logit())
        self.mix = nn.Parameter(torch.tensor([u, v]))

    def forward(self, x, state):
        a, b = self.decays.sigmoid()
        state = {"fast": a * state["fast"] + (1 - a) * x, "slow": b * state["slow"] + (1 - b) * x}  # (B,) each
        return self.mix[0] * state["fast"] + self.mix[1] * state["slow"], state

    def begin(self):
        return {"fast": torch.zeros(LANES), "slow": torch.zeros(LANES)}


def teach(steps: int, seed: int):
    """What the teacher hears and says, with some noise: (T, B) each."""
    generator = torch.Generator().manual_seed(seed)
    inputs, teacher, said = torch.randn(steps, LANES, generator=generator), TwoTraces(0.3, 0.96, 0.5, 3.0), []
    state = teacher.begin()
    with torch.no_grad():
        for x in inputs:
            y, state = teacher(x, state)
            said.append(y)
    return inputs, torch.stack(said) + 0.1 * torch.randn(steps, LANES, generator=generator)


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn two decays online, with a dict for a state.")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    cell = TwoTraces()
    optimizer = torch.optim.Adam(cell.parameters(), lr=0.01)
    cut = artbp.Truncation(artbp.PowerLaw(mean=20, alpha=6), seed=arguments.seed)
    stream, state = teach(arguments.steps, arguments.seed), cell.begin()

    print(f"{'steps':>7}{'error':>8}{'fast':>7}{'slow':>7}{'u':>7}{'v':>7}")
    print(f"{'teacher':>7}{0.01:8.3f}{0.3:7.2f}{0.96:7.2f}{0.5:7.2f}{3.0:7.2f}")
    seen, shown, error, count = 0, 0, 0.0, 0
    for (inputs, targets), links in cut.segments(stream):  # (L, B), (L, B), (L,): L is drawn from the law
        loss = torch.zeros(())
        for x, y, factor in zip(inputs, targets, links, strict=True):
            prediction, state = cell(x, artbp.link(state, factor))  # the one line; links[0] is 0 and forgets
            loss = loss + (prediction - y).square().sum()
        (loss / (cut.mean * LANES)).backward()  # a constant, not the segment's own length
        optimizer.step()
        optimizer.zero_grad()
        seen, error, count = seen + len(links), error + loss.item(), count + links.numel() * LANES
        if seen >= shown + arguments.steps // 5:
            shown += arguments.steps // 5
            fast, slow, u, v = [*cell.decays.sigmoid().tolist(), *cell.mix.tolist()]
            print(f"{shown:7}{error / count:8.3f}{fast:7.2f}{slow:7.2f}{u:7.2f}{v:7.2f}", flush=True)
            error, count = 0.0, 0
    print(f"The slow decay is {slow:.2f}, the teacher's 0.96, with graphs of {cut.mean:.0f} steps on average.")


if __name__ == "__main__":
    main()
