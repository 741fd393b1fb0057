r"""A law of your own: one method, `hazard(age)`. And one that looks at the state.

A law says with which probability the edge is cut behind a segment that has lasted `age` steps. All else is derived: the
lengths, their mean and variance, the links, and that the estimate is unbiased, which is checked here by enumerating all
512 patterns of cuts over ten steps, each with its probability, in float64.

`Ripening` is harmless at first and then cuts more and more. `AtClosedGates` looks at the state. The cell below has a
gate, which each step sets for the next one; where it is nearly closed, hardly any of the state goes on, and hardly any
gradient comes back. By the variance identity,

    Var(g) = Σ_u E[ c_u / (1 - c_u) · |G_u|² ],        G_u the gradient that would cross edge u,

a cut is paid for by what flows there, so that a cut at a closed gate is nearly free. The last two laws of the second
table cut equally often on these data; that which looks at the gate pays less. A law that looks at the state can be
stepped, `cut.step(state)`, and has no lengths of its own.

Expected output:

    Ripening                mean  variance
    derived                8.543     18.47
    of 100,000 draws       8.553     18.55

                         patterns      bias  deviation
    Ripening                  512     1e-16      0.083
    AtClosedGates             512     5e-17      0.117
    as often, anywhere        512     4e-17      0.173
    Fixed(4)                    1     8e-02      0.000
    All but Fixed are unbiased. Looking at the gate divides the variance by 2.2 here.
"""

import torch

import artbp
from artbp import diagnostics


class Ripening(artbp.Law):
    """c(age) = 0.02 · age, up to one half."""

    def hazard(self, age):
        return min(0.5, 0.02 * age)


class AtClosedGates(artbp.Law):
    """Cut nearly always where the gate is closed for the next step, and seldom elsewhere."""

    needs_state = True

    def hazard(self, age, state):
        return 0.9 if state["gate"] < 0.5 else 0.05


class Evenly(artbp.Law):
    """The same cuts a sequence on average, wherever they fall."""

    def __init__(self, probability: float) -> None:
        self.probability = probability

    def hazard(self, age):
        return self.probability


decay = torch.tensor(0.95, dtype=torch.float64, requires_grad=True)
weight = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)


def cell(inputs, state):
    """s = gate · decay · s + tanh(weight · x), and the gate for the next step."""
    x, gate = inputs
    s = state["gate"] * decay * state["s"] + torch.tanh(weight * x)
    return s.square() / 2, {"s": s, "gate": gate}


def main() -> None:
    law = Ripening()
    lengths = law.sample(100_000, generator=torch.Generator().manual_seed(0)).double()
    print(f"{'Ripening':20}{'mean':>8}{'variance':>10}")
    print(f"{'derived':20}{law.mean:8.3f}{law.variance:10.2f}")
    print(f"{'of 100,000 draws':20}{lengths.mean():8.3f}{lengths.var():10.2f}\n")

    x = 1 + torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gate = torch.tensor([1, 1, 1, 0.05, 1, 1, 0.05, 1, 1, 1], dtype=torch.float64)  # gate[t] is for step t + 1
    begin = {"s": torch.zeros((), dtype=torch.float64), "gate": torch.ones((), dtype=torch.float64)}
    step, inputs = artbp.unroll(cell), (x, gate)

    edges = gate[:-1]  # on each of the nine edges
    cuts = float(torch.where(edges < 0.5, 0.9, 0.05).sum())
    laws = {
        "Ripening": law,
        "AtClosedGates": AtClosedGates(),
        "as often, anywhere": Evenly(cuts / len(edges)),
        "Fixed(4)": artbp.Fixed(4),
    }
    found = {}
    print(f"{'':20}{'patterns':>9}{'bias':>10}{'deviation':>11}")
    for name, law in laws.items():
        found[name] = diagnostics.expectation(law, step, inputs, begin)
        print(f"{name:20}{found[name].patterns:9}{found[name].bias:10.0e}{found[name].relative_deviation:11.3f}")
    ratio = found["as often, anywhere"].variance / found["AtClosedGates"].variance
    print(f"All but Fixed are unbiased. Looking at the gate divides the variance by {ratio:.1f} here.")


if __name__ == "__main__":
    main()
