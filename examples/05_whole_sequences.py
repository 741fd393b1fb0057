"""Whole sequences in memory: cuts of its own for every lane, and documents that begin anew.

Where sequences are in memory as a whole, links come as a whole: `cut.links(T, lanes=B, resets=...)`, (T, B). Every lane
is cut by itself. `resets` marks where a lane's next document begins and its state is made anew: nothing flows over that
edge, so a cut there costs nothing; it is made for certain, nothing before it is compensated for it, and the age starts
anew. A truncation that is not told goes on counting across the border, and pays for cuts that came there too late.

The price of each is its exact variance, Σ_u E[ c_u / (1 - c_u) · |G_u|² ]: what truncation adds to the gradient's noise.
It is estimated here from DRAWS draws at fixed parameters, beside the bias of the mean of these draws, which would be
about the deviation / √DRAWS if there were none. All lanes must yield to one and the same parameter, so that their flows
agree, and cutting them independently is what divides the variance.

Expected output (10 seconds):

OUTPUT
"""

import argparse
import math

import torch
from torch import nn

import artbp

STEPS, LANES, UNITS, DRAWS = 60, 16, 8, 300


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


def main() -> None:
    parser = argparse.ArgumentParser(description="Links for whole sequences: per lane, with resets.")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    model = Counter()
    resets, targets = documents(arguments.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    cut = artbp.Truncation(artbp.PowerLaw(mean=8, alpha=6), seed=arguments.seed)
    for _ in range(60):  # some training first: it is trained models whose memory matters
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
    print(f"{'relative to the exact gradient':32}{'bias seen':>10}{'deviation':>11}")
    deviations = []
    for name, links in ways.items():
        draws = torch.stack([gradient(model, resets, targets, links()) for _ in range(DRAWS)])
        deviations.append(((draws - draws.mean(0)).square().sum(1).mean().sqrt() / exact.norm()).item())
        bias = ((draws.mean(0) - exact).norm() / exact.norm()).item()
        print(f"{name:32}{bias:10.3f}{deviations[-1]:11.2f}", flush=True)
    bias = ((gradient(model, resets, targets, truncated) - exact).norm() / exact.norm()).item()
    print(f"{'truncated, 8':32}{bias:10.3f}{0:11.2f}")
    shared, own, told = deviations
    print(
        f"The bias that is seen is that of a mean of {DRAWS} draws, {told / math.sqrt(DRAWS):.3f} for the last. Cuts of "
        f"its own for each lane divide the variance by {(shared / own) ** 2:.1f}, and resets by {(own / told) ** 2:.1f}."
    )


if __name__ == "__main__":
    main()
