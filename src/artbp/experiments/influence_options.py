"""What `artbp influence-balancing` can be told. Torch is imported only where it is needed: `--help` answers at once."""

from __future__ import annotations

import ast
import math
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from artbp._folder import cores
from artbp.experiments._options import OptionError, as_json, check_lengths, check_whole

if TYPE_CHECKING:
    from artbp import Law

EstimatorName = Literal["TruncatedBPTT", "ARTBP", "RTRL", "UORO", "NoBackTrack", "BPTT", "CheckpointedBPTT"]
NAME = "influence-balancing"
DATA = ("config.json", "env.json", "runs.jsonl", "summary.json", "gradient-flow.json")
FIGURES = (NAME, "dynamics", "gradient-flow")


@dataclass(frozen=True)
class Options:
    """Tallec & Ollivier 2017, first experiment: where truncated BPTT diverges.

    - Agents 1..p are pushed up and agents p+1..p+n down by one parameter.
    - Influences travel one agent a step, and the first agent should stand at 1.
    - Truncated BPTT sees the near influences only, and goes the wrong way.

    Data and figures go to a folder. Ctrl-C stops it; the same command goes on.
    """

    steps: int = 100_000
    """time steps of each run"""
    seeds: int = 5
    """runs of each method that draws random numbers: seeds 0, 1, ..."""
    p: int = 10
    """agents that the parameter pushes up, those nearest to the first"""
    n: int = 13
    """agents that it pushes down, behind them"""
    lengths: tuple[int, ...] = (10, 100, 200)
    """segment lengths of truncated BPTT"""
    mean: float = 16
    """mean segment length of ARTBP's law"""
    alpha: float = 6
    """exponent of ARTBP's law, PowerLaw"""
    law: str = "PowerLaw"
    """ARTBP's law: PowerLaw or Geometric (with --mean, --alpha), or as written in Python: 'Tabulated([0.0, 0.1])'"""
    theta0: float = 0.5
    """the parameter at the start"""
    s0: float = 0.0
    """every agent at the start"""
    lr: float = 3e-4
    """the rate is lr / sqrt(1 + t)"""
    noise: float = 0.0
    """standard deviation of noise on the target; with it every method has --seeds runs"""
    estimators: tuple[EstimatorName, ...] = ("TruncatedBPTT", "ARTBP")
    """which methods to run; the forward ones (RTRL, UORO, NoBackTrack) update at every step, and take longer"""
    window: int = 1000
    """steps that BPTT holds in memory at once; it has one update, at the end"""
    out: Path = Path("runs") / NAME
    """the folder to write"""
    jobs: int = cores()
    """processes, of one thread each"""
    overwrite: bool = False
    """start anew in a folder that holds a run"""

    def config(self) -> dict[str, Any]:
        """All that the results depend on, as it stands in config.json."""
        names = [name for name in vars(self) if name not in ("out", "jobs", "overwrite")]
        values = {name: getattr(self, name) for name in names}
        return {
            "experiment": NAME,
            **{name: as_json(value) for name, value in values.items()},
        }


def check(options: Options) -> None:
    """Refuses what cannot run, before anything is written."""
    check_whole(options, {"steps": 1, "seeds": 1, "p": 0, "n": 0, "window": 1, "jobs": 1})
    if options.p == options.n:
        raise OptionError(
            f"--p {options.p} --n {options.n}: as many agents are pushed up as down, so that the first one comes to "
            "rest at 0 whatever the parameter is, and no parameter takes it to 1.\nPass a p and an n that differ."
        )
    for name in ("theta0", "s0", "lr", "noise", "mean", "alpha"):
        value = getattr(options, name)
        if not math.isfinite(value) or (value < 0 and name in ("lr", "noise")):
            kind = "finite, and not negative" if name in ("lr", "noise") else "finite"
            raise OptionError(f"--{name} {value}: it must be {kind}.\nPass a number such as {getattr(Options, name)}.")
    if not options.estimators:
        raise OptionError("--estimators names none: there is nothing to run.\nPass some, or leave the option out.")
    check_lengths(options.lengths)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _law(options)
    for warning in caught:
        print(f"note: {warning.message}", file=sys.stderr)


def law(options: Options) -> Law:
    """ARTBP's law; what there is to warn of, `check` has said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _law(options)


def _law(options: Options) -> Law:
    """A name, with --mean and --alpha as it takes them, or a call as it is written in Python."""
    from artbp import laws

    mean, alpha = _plain(options.mean), _plain(options.alpha)
    shown = options.law if len(options.law) < 80 else f"{options.law[:76]} …"
    by_name = {
        "PowerLaw": lambda: laws.PowerLaw(mean=mean, alpha=alpha),
        "Geometric": lambda: laws.Geometric(mean=mean),
        "Fixed": lambda: laws.Fixed(mean),  # type: ignore[arg-type]  # it refuses what is no whole number, in words
        "Never": laws.Never,
    }
    try:
        if options.law in by_name:
            return by_name[options.law]()
        name, arguments, keywords = _call(options.law)
        made = getattr(laws, name)(*arguments, **keywords)
        if isinstance(made, laws.Fixed) and made.length >= 2**63:
            raise ValueError(f"no segment has {made.length} steps, 2^63 or more.\nPass a length below, or Never().")
    except ValueError as error:
        raise OptionError(f"--law {shown}: {error}") from None
    except TypeError as error:
        raise OptionError(
            f"--law {shown}: the law does not take these arguments, {error}.\n"
            "Pass it as it is written in Python: 'PowerLaw(mean=16, alpha=6)', 'Tabulated([0.0, 0.1])'."
        ) from None
    return made  # type: ignore[no-any-return]


def _call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Reads `Name(1, key=2)` with nothing but literals in it; nothing is evaluated."""
    laws = ("Fixed", "Geometric", "Never", "PowerLaw", "Tabulated")
    try:
        tree = ast.parse(text, mode="eval").body
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id in laws:
            keywords = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords}
            return tree.func.id, [ast.literal_eval(argument) for argument in tree.args], keywords
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two: brackets in brackets in …
        pass
    raise ValueError(
        f"it is no law of this library, whose laws are {', '.join(laws)}.\n"
        "Pass a name, such as Geometric, or a call as it is written in Python, such as 'PowerLaw(mean=16, alpha=6)'."
    )


def _plain(number: float) -> float:
    """A whole number without its `.0`, for names that read as they are written."""
    return int(number) if number == int(number) else number
