"""`artbp compare`: estimators side by side on one model, as a table, as data, and as figures."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from artbp._folder import FolderError, begin, environment, write_json
from artbp.experiments._options import OptionError, as_json, check_given, check_lengths, check_whole

NAME = "compare"
PICTURES = tuple(f"{figure}.{kind}" for figure in ("trade-off", "retention") for kind in ("png", "svg"))
FILES = ("config.json", "env.json", "comparison.json", "curves.json", *PICTURES)


@dataclass(frozen=True)
class Options:
    """Bias, noise, time and memory of all estimators of one sequence's gradient."""

    subject: Annotated[str, tyro.conf.Positional] = "influence-balancing"
    """influence-balancing; lstm, gru or rnn, forecasting a chaotic series; or module:function, for a function that
    returns (step, inputs, state)"""
    steps: int = 300
    """length of the sequence"""
    units: int = 16
    """of the cell"""
    training: int = 100
    """updates before the gradient is looked at, of 50 steps each"""
    lengths: tuple[int, ...] = (5, 10, 20, 50, 100, 150)
    """of truncated BPTT"""
    mean: float = 16
    """mean length of ARTBP's segments in the table"""
    alphas: tuple[float, ...] = (4, 6, 10)
    """exponents of ARTBP's law"""
    draws: int = 30
    """gradients of each random estimator, two or more"""
    samples: int = 100
    """pairs of an edge and a beginning for each variance in the figure, two or more"""
    equal_memory: bool = False
    """give truncated BPTT and ARTBP the memory that UORO takes, and measure online"""
    seed: int = 0
    """of the model and of all draws"""
    out: Path = Path("runs/compare")
    """where data and figures go"""
    overwrite: bool = False
    """lose what another comparison has left there"""

    def config(self) -> dict[str, Any]:
        """All that the results depend on, as it stands in config.json."""
        values = {name: value for name, value in vars(self).items() if name not in ("out", "overwrite")}
        return {"experiment": NAME, **{name: as_json(value) for name, value in values.items()}}


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    options = tyro.cli(Options, args=arguments, prog=f"artbp {NAME}", config=(tyro.conf.FlagCreatePairsOff,))
    try:
        check_whole(options, {"steps": 2, "units": 1, "training": 0, "draws": 2, "samples": 2, "seed": 0})
        check_given(options, "lengths", "alphas")
        check_lengths(options.lengths)
        return _command(options, arguments)
    except (OptionError, FolderError, ValueError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _command(options: Options, arguments: list[str]) -> int:
    from artbp.experiments.compare_runs import curves, equal_memory, side_by_side
    from artbp.experiments.compare_subjects import find

    folder = options.out
    begin(folder, options.config(), options.overwrite, FILES)
    subject = find(options.subject, options.steps, options.units, options.training, options.seed)
    write_json(folder / "config.json", {**options.config(), "command": " ".join(["artbp", NAME, *arguments])})
    write_json(folder / "env.json", environment())
    found = (equal_memory if options.equal_memory else side_by_side)(options, subject)
    write_json(folder / "comparison.json", found.to_dict())
    print(found)
    write_json(folder / "curves.json", curves(options, subject))
    print(f"\nData: {folder}")
    if importlib.util.find_spec("matplotlib") is None:
        print(f'The figures need matplotlib: `pip install "artbp[plot]"`, then `artbp plot {folder}`.')
        return 0
    from artbp.experiments.compare_figures import draw

    for figure in draw(folder):
        print(f"  {figure.name}")
    return 0
