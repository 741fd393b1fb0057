"""Whole sequences in memory: cuts of its own for every lane, and documents that begin anew.

Where sequences are in memory as a whole, links come as a whole: `cut.links(T, lanes=B, resets=...)`, (T, B). Every lane
is cut by itself. `resets` marks where a lane's next document begins and its state is made anew: nothing flows over that
edge, so a cut there costs nothing; it is made for certain, nothing before it is compensated for it, and the age starts
anew.

The table is of 150 draws of the gradient at fixed parameters: their deviation, which is the noise that truncation adds;
the error of their mean, which is the deviation / √150 = 0.08 deviations where there is no bias; and how many steps an
open segment has, on average. All lanes have one and the same task here, so that their flows agree, and to cut them
independently divides the variance. Resets make the graphs shorter. Noise they do not lower with this law: a power law
cuts young segments most often, and with resets more segments are young.

Expected output:

    relative to the exact gradient     error  deviation  steps
    one cut for all lanes              0.025       0.25    6.9
    each lane its own                  0.005       0.13    7.4
    ... told of resets                 0.007       0.13    5.1
    truncated, 8                       0.234       0.00    4.5
    Cuts of its own for each lane divide the variance by 3.5; being told of resets multiplies it by 1.0.
"""

import argparse

import torch
from torch import nn

import artbp

STEPS, LANES, UNITS, DRAWS = 48, 16, 8, 150


class Counter(nn.Module):
    """Says how many steps its document has lasted, for which it has to remember."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.read = nn.GRUCell(1, UNITS), nn.Linear(UNITS, 1)
        self.first = nn.Parameter(torch.zeros(UNITS))  # the state that a document begins with

    def forward(self, resets, targets, links):
        """The summed loss of whole sequences (T, B); links are (T,) or (T, B)."""
        state = self.first.expand(LANES, UNITS)
        loss = torch.zeros(())
        for new, target, factor in zip(resets, targets, links, strict=True):
            state = artbp.link(state, factor)  # one factor for each lane, along dimension 0
            state = torch.where(new.unsqueeze(1), self.first, state)
            state = self.cell(torch.ones(LANES, 1), state)
            loss = loss + (self.read(state).squeeze(1) - target).square().sum()
        return loss / (STEPS * LANES)


def documents(seed: int):
    """Where documents begin (T, B), and how far in each one is (T, B)."""
    resets = torch.rand(STEPS, LANES, generator=torch.Generator().manual_seed(seed)) < 1 / 15
    resets[0] = True
    age, ages = torch.zeros(LANES), []
    for new in resets:
        age = torch.where(new, 0.0, age + 1)
        ages.append(age / 15)
    return resets, torch.stack(ages)


def gradient(model: nn.Module, resets, targets, links):
    parts = torch.autograd.grad(model(resets, targets, links), list(model.parameters()))
    return torch.cat([part.reshape(-1) for part in parts]).double()


def steps_open(links) -> float:
    """How many steps the open segment has, on average over the steps and lanes."""
    lanes = links.reshape(STEPS, -1)
    steps = torch.arange(STEPS).unsqueeze(1)
    begun = torch.where(lanes == 0, steps, 0).cummax(0).values
    return (steps - begun + 1).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Links for whole sequences: per lane, with resets.")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    model = Counter()
    resets, targets = documents(arguments.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    cut = artbp.Truncation(artbp.PowerLaw(mean=8, alpha=6), seed=arguments.seed)
    for _ in range(40):  # some training first: it is trained models whose memory matters
        model(resets, targets, cut.links(STEPS, lanes=LANES, resets=resets)).backward()
        optimizer.step()
        optimizer.zero_grad()

    exact = gradient(model, resets, targets, torch.ones(STEPS))
    truncated = artbp.Truncation(artbp.Fixed(8)).links(STEPS)
    ways = {
        "one cut for all lanes": lambda: cut.links(STEPS),
        "each lane its own": lambda: cut.links(STEPS, lanes=LANES),
        "... told of resets": lambda: cut.links(STEPS, lanes=LANES, resets=resets),
    }
    print(f"{'relative to the exact gradient':32}{'error':>8}{'deviation':>11}{'steps':>7}")
    deviations = []
    for name, links in ways.items():
        drawn = [links() for _ in range(DRAWS)]
        draws = torch.stack([gradient(model, resets, targets, each) for each in drawn])
        held = sum(steps_open(each) for each in drawn) / DRAWS
        deviations.append(((draws - draws.mean(0)).square().sum(1).mean().sqrt() / exact.norm()).item())
        bias = ((draws.mean(0) - exact).norm() / exact.norm()).item()
        print(f"{name:32}{bias:8.3f}{deviations[-1]:11.2f}{held:7.1f}", flush=True)
    bias = ((gradient(model, resets, targets, truncated) - exact).norm() / exact.norm()).item()
    print(f"{'truncated, 8':32}{bias:8.3f}{0:11.2f}{steps_open(truncated):7.1f}")
    shared, own, told = deviations
    print(
        f"Cuts of its own for each lane divide the variance by {(shared / own) ** 2:.1f}; "
        f"being told of resets multiplies it by {(told / own) ** 2:.1f}."
    )


if __name__ == "__main__":
    main()
