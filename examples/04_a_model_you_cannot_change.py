"""A model you cannot change: `artbp.nn.convert` puts links into it, `artbp.nn.linked` feeds them.

Somebody else's model has torch.nn's recurrent layers somewhere inside, and a forward that knows nothing of links.
`convert(model)` replaces these layers in place by artbp.nn's, with the very same parameters: the optimizer stays valid,
and a checkpoint of the one loads into the other. Then

    with artbp.nn.linked(links):
        prediction, state = model(inputs, artbp.detach(state))

feeds the links to every such layer that is called inside. The first table says what stays as it was, and that the
gradient is that of a loop over time with `artbp.link`, written by hand. Then the model is trained on a stream, to add
up what it hears until it is told to begin anew.

Expected output:

    the layer inside           artbp.nn.GRU
    the same parameters        True
    the same names in a file   True
    outputs differ by          0e+00
    gradients under links by   1e-06

      steps   wrong
       3000   0.401
       6000   0.117
       9000   0.002
      12000   0.001
    Of the last quarter's parities 99.9% are right, by a model whose code was not touched.
"""

import argparse
import copy

import torch
from torch import nn

import artbp

LANES, UNITS = 16, 24


class SomebodyElses(nn.Module):
    """As it came: an encoder, two recurrent layers with a residual around them, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(2, UNITS)
        self.core = nn.ModuleDict({"memory": nn.GRU(UNITS, UNITS, num_layers=2)})
        self.head = nn.Sequential(nn.LayerNorm(UNITS), nn.Linear(UNITS, 1))

    def forward(self, inputs, state=None):
        x = self.encoder(inputs)
        out, state = self.core["memory"](x, state)
        return self.head(x + out), state


def counting(steps: int, seed: int):
    """Steps of 0 and 1 with a signal to begin anew (T, B, 2), and the count since then, modulo 2 (T, B, 1)."""
    generator = torch.Generator().manual_seed(seed)
    ones = (torch.rand(steps, LANES, generator=generator) < 0.1).float()
    anew = (torch.rand(steps, LANES, generator=generator) < 0.05).float()
    anew[0] = 1.0
    total, parity = torch.zeros(LANES), []
    for one, begin in zip(ones, anew, strict=True):
        total = (1 - begin) * total + one
        parity.append(total % 2)
    return torch.stack([ones, anew], -1), torch.stack(parity).unsqueeze(-1)


def difference(model: nn.Module, converted: nn.Module) -> tuple[float, float]:
    """Of the outputs; and of the gradients under links, to the original in a loop over single steps."""
    inputs, targets = counting(30, seed=1)
    links = artbp.Truncation(artbp.PowerLaw(mean=8, alpha=4), seed=1).links(30)
    outputs = (model(inputs)[0] - converted(inputs)[0]).abs().max().item()
    state, loss = torch.zeros(2, LANES, UNITS), torch.zeros(())
    for x, y, factor in zip(inputs, targets, links, strict=True):
        out, state = model(x.unsqueeze(0), artbp.link(state, factor))
        loss = loss + (out - y).square().sum()
    expected = torch.autograd.grad(loss, list(model.parameters()))
    with artbp.nn.linked(links):
        out, _ = converted(inputs)
    found = torch.autograd.grad((out - targets).square().sum(), list(converted.parameters()))
    size = max(one.abs().max() for one in expected)
    return outputs, (max((a - b).abs().max() for a, b in zip(expected, found, strict=True)) / size).item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Links for a model whose forward one cannot change.")
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    model = SomebodyElses()
    original, parameters = copy.deepcopy(model), list(model.parameters())

    model = artbp.nn.convert(model)
    same = all(old is new for old, new in zip(parameters, model.parameters(), strict=True))
    outputs, gradients = difference(original, model)
    print(f"the layer inside           {type(model.core['memory']).__module__}.{type(model.core['memory']).__name__}")
    print(f"the same parameters        {same}")
    print(f"the same names in a file   {original.state_dict().keys() == model.state_dict().keys()}")
    print(f"outputs differ by          {outputs:.0e}")
    print(f"gradients under links by   {gradients:.0e}\n")

    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    cut = artbp.Truncation(artbp.PowerLaw(mean=20, alpha=6), seed=arguments.seed)
    state, seen, shown, wrong, count = None, 0, 0, 0, 0
    print(f"{'steps':>7}{'wrong':>8}")
    for (inputs, targets), links in cut.segments(counting(arguments.steps, arguments.seed)):
        with artbp.nn.linked(links):
            out, state = model(inputs, artbp.detach(state))
        loss = nn.functional.binary_cross_entropy_with_logits(out, targets, reduction="sum")
        (loss / (cut.mean * LANES)).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen, count = seen + len(links), count + targets.numel()
        wrong += int(((out > 0) != (targets > 0.5)).sum())
        if seen >= shown + arguments.steps // 4:
            shown += arguments.steps // 4
            share, wrong, count = wrong / count, 0, 0
            print(f"{shown:7}{share:8.3f}", flush=True)
    print(f"Of the last quarter's parities {1 - share:.1%} are right, by a model whose code was not touched.")


if __name__ == "__main__":
    main()
