"""The laws and options that the tests of Truncation share."""

import artbp

LAWS = {
    "power": lambda: artbp.PowerLaw(mean=6, alpha=4),
    "geometric": lambda: artbp.Geometric(mean=4),
    "tabulated": lambda: artbp.Tabulated([0.0, 0.3, 0.1, 0.5]),
    "fixed": lambda: artbp.Fixed(4),
    "custom": lambda: Custom(),  # noqa: PLW0108 - defined below
}
OPTIONS = {
    "plain": {},
    "block": {"block": 3},
    "cap": {"cap": 6},
    "bare": {"compensate": False},
    "both": {"block": 3, "cap": 9},
}


class Custom(artbp.Law):
    def hazard(self, age):
        return 0.1 + 0.4 / age


class AnyObject:
    def hazard(self, age):
        return 0.1 + 0.4 / age


class Looks(artbp.Law):
    """Cuts more readily where the state is large."""

    needs_state = True

    def hazard(self, age, state):
        return min(0.9, 0.1 * age * state["size"])


def make(law="power", option="plain", seed=0):
    return artbp.Truncation(LAWS[law](), seed=seed, **OPTIONS[option])


def steps(cut, count):
    return [cut.step() for _ in range(count)]
