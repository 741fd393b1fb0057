"""torch.nn's own GRU, untouched, with cuts between blocks of steps.

A stock kernel goes through many steps in one call and has no place to scale a gradient in between. It need not, where
cuts fall between blocks only: `Truncation(law, block=k)` rounds each length up to a multiple of k, and its links are
those of the rounded law, one inside a block. The kernel runs on blocks, and `artbp.link` stands between them:

    for block, factor in zip(x.split(k), links[::k].tolist()):
        out, state = gru(block, artbp.link(state, factor, dim=1))

That is unbiased like any other law; the first table shows it, by enumerating all patterns of cuts of a short sequence.
The price is that the shortest segment has k steps. (`artbp.nn.GRU` takes links inside a block too, with kernels of its
own.) Then the GRU is trained on a stream, to say what it heard six steps ago, a sign.

Expected output:

                         patterns     bias  deviation
    blocks of 3, mean 6         8    1e-17      0.033
    truncated, 6                1    7e-03      0.000

       steps   error
        3200   0.773
        6400   0.431
        9600   0.081
       12800   0.001
       16000   0.001
    19.9 steps between updates on average, 2000 calls of the kernel for 16000 steps.
"""

import argparse

import torch
from torch import nn

import artbp
from artbp import diagnostics

LANES, UNITS, LAG = 16, 32, 6


class Echo(nn.Module):
    def __init__(self, units: int, block: int) -> None:
        super().__init__()
        self.block = block
        self.gru, self.read = nn.GRU(1, units), nn.Linear(units, 1)

    def step(self, inputs, state, links):
        """As many time steps as there are inputs: (the summed loss, the state)."""
        x, y = inputs  # (T, B, 1) each
        factors = [1.0] * len(x) if links is None else links.tolist()
        loss = torch.zeros((), dtype=x.dtype)
        for heard, said, factor in zip(x.split(self.block), y.split(self.block), factors[:: self.block], strict=True):
            out, state = self.gru(heard, artbp.link(state, factor, dim=1))
            loss = loss + (self.read(out) - said).square().sum()
        return loss, state


def stream(steps: int, lanes: int, lag: int, seed: int, dtype: torch.dtype = torch.float32):
    x = torch.randn(steps + lag, lanes, 1, dtype=dtype, generator=torch.Generator().manual_seed(seed)).sign()
    return x[lag:], x[:-lag]


def check(seed: int) -> None:
    model = Echo(4, block=3).double()
    inputs, begin = stream(12, 2, 4, seed, torch.float64), torch.zeros(1, 2, 4, dtype=torch.float64)
    cuts = {
        "blocks of 3, mean 6": artbp.Truncation(artbp.PowerLaw(mean=5, alpha=4), block=3, seed=0),
        "truncated, 6": artbp.Truncation(artbp.Fixed(6), seed=0),
    }
    print(f"{'':20}{'patterns':>9}{'bias':>9}{'deviation':>11}")
    for name, cut in cuts.items():
        found = diagnostics.expectation(cut, model.step, inputs, begin)
        print(f"{name:20}{found.patterns:9}{found.bias:9.0e}{found.relative_deviation:11.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="A stock GRU, cut between blocks.")
    parser.add_argument("--steps", type=int, default=16_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    check(arguments.seed)

    model, state = Echo(UNITS, block=8), torch.zeros(1, LANES, UNITS)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    cut = artbp.Truncation(artbp.PowerLaw(mean=16, alpha=6), block=8, seed=arguments.seed)
    data = stream(arguments.steps - arguments.steps % 8, LANES, LAG, arguments.seed)
    seen, shown, total, count, calls = 0, 0, 0.0, 0, 0
    print(f"\n{'steps':>8}{'error':>8}")
    for inputs, links in cut.segments(data):
        loss, state = artbp.backprop(model.step, inputs, state, links, scale=1 / (cut.mean * LANES))
        optimizer.step()
        optimizer.zero_grad()
        seen, total, count, calls = seen + len(links), total + loss.item(), count + len(links), calls + len(links) // 8
        if seen >= shown + arguments.steps // 5:
            shown += arguments.steps // 5
            print(f"{shown:8}{total / (count * LANES):8.3f}", flush=True)
            total, count = 0.0, 0
    print(f"{cut.mean:.1f} steps between updates on average, {calls} calls of the kernel for {seen} steps.")


if __name__ == "__main__":
    main()
