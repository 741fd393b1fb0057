"""`artbp lengths`: how long the segments of a power law are, drawn and in closed form."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from artbp._folder import FolderError, begin, environment, write_json
from artbp.experiments._options import OptionError, as_json, check_given, check_whole

NAME = "lengths"
FILES = ("config.json", "env.json", "lengths.json", "lengths.png", "lengths.svg")


@dataclass(frozen=True)
class Options:
    """Draws lengths of segments, and holds them against the law's closed forms."""

    mean: float = 50
    """L0, the mean length"""
    alphas: tuple[float, ...] = (4, 6, 10)
    """the exponents"""
    draws: int = 100_000
    """lengths of each law"""
    seed: int = 0
    """of the draws"""
    out: Path = Path("runs/lengths")
    """where data and figures go"""
    overwrite: bool = False
    """lose what other lengths have left there"""

    def config(self) -> dict[str, Any]:
        """All that the results depend on, as it stands in config.json."""
        values = {name: value for name, value in vars(self).items() if name not in ("out", "overwrite")}
        return {"experiment": NAME, **{name: as_json(value) for name, value in values.items()}}


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    options = tyro.cli(Options, args=arguments, prog=f"artbp {NAME}", config=(tyro.conf.FlagCreatePairsOff,))
    try:
        check_whole(options, {"draws": 2, "seed": 0})
        check_given(options, "alphas")
        return _command(options, arguments)
    except (OptionError, FolderError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _command(options: Options, arguments: list[str]) -> int:
    folder = options.out
    begin(folder, options.config(), options.overwrite, FILES)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _measure(options)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"note: {message}", file=sys.stderr)
    write_json(folder / "config.json", {**options.config(), "command": " ".join(["artbp", NAME, *arguments])})
    write_json(folder / "env.json", environment())
    write_json(folder / "lengths.json", found)
    _print(found)
    print(f"\nData: {folder}")
    if importlib.util.find_spec("matplotlib") is None:
        print(f'The figure needs matplotlib: `pip install "artbp[plot]"`, then `artbp plot {folder}`.')
        return 0
    from artbp.experiments.lengths_figures import draw

    for figure in draw(folder):
        print(f"  {figure.name}")
    return 0


def _measure(options: Options) -> list[dict[str, Any]]:
    """For each law its moments, quantiles and a histogram on a logarithmic grid, drawn beside exact."""
    import numpy as np
    import torch

    from artbp import PowerLaw

    found = []
    for alpha in options.alphas:
        law = PowerLaw(options.mean, alpha)
        drawn = law.sample(options.draws, generator=torch.Generator().manual_seed(options.seed)).numpy()
        edges = np.unique(np.geomspace(1, max(drawn.max(), 2) + 1, 40).astype(np.int64))
        exact = law.survival(edges - 1)  # P(length >= edge)
        counts, _ = np.histogram(drawn, edges)
        gap = float(np.abs(np.cumsum(counts) / len(drawn) - (1 - exact[1:])).max())
        found.append(
            {
                "alpha": alpha,
                "mean": law.mean,
                "mean_drawn": float(drawn.mean()),
                "deviation": law.variance**0.5 if np.isfinite(law.variance) else None,
                "deviation_drawn": float(drawn.std()),
                "quantiles": {str(q): float(np.quantile(drawn, q)) for q in (0.5, 0.9, 0.99, 0.999)},
                "longest": int(drawn.max()),
                "gap": gap,
                "edges": edges.tolist(),
                "density": (counts / len(drawn) / np.diff(edges)).tolist(),
                "density_exact": ((exact[:-1] - exact[1:]) / np.diff(edges)).tolist(),
            }
        )
    return found


def _print(found: list[dict[str, Any]]) -> None:
    print("alpha  mean (exact)  deviation (exact) median   90%   99% 99.9%  longest CDF gap")
    for law in found:
        q = law["quantiles"]
        deviation = "inf" if law["deviation"] is None else f"{law['deviation']:.1f}"
        mean, spread = f"{law['mean_drawn']:.2f} ({law['mean']:g})", f"{law['deviation_drawn']:.1f} ({deviation})"
        quantiles = "".join(f"{q[level]:{width}.0f}" for level, width in zip(q, (7, 6, 6, 6), strict=True))
        print(f"{law['alpha']:5g} {mean:>13} {spread:>18}{quantiles}{law['longest']:9,}{law['gap']:8.5f}")
