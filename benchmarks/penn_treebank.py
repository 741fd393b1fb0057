"""The paper's second experiment as a plan of many runs, which share one accelerator and outlive its interruptions.

    python benchmarks/penn_treebank.py run --ptb DIR --out runs/ptb --stages arms rates --jobs 9 --seconds 540
    python benchmarks/penn_treebank.py run --ptb DIR --out runs/small --hidden 128 --rates 2e-3 4e-3 --seeds 0 1
    python benchmarks/penn_treebank.py collect --out runs/ptb --results results/penn-treebank

`run` starts the runs of the stages in their order, `--jobs` at a time, each an `artbp train` of its own, and ends them
by SIGTERM when the seconds are over; called again, it goes on with those that were stopped. `collect` copies what is to
be kept, which is all but the checkpoints. The stages, in the order of what they are worth:

    arms      truncated BPTT (50), random cuts and ARTBP (50, alpha 4) at Adam 1e-3, six seeds each, or at what
              --methods, --rates and --seeds name
    rates     each arm at rates beside it, so that none wins by a badly set neighbour
    baseline  what one layer reaches with the means of a competent baseline, truncated and ARTBP
    slow      the arms at the paper's own rate, 1e-4
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ARMS = ("tbptt", "random", "artbp")
WINDOW = 50  # the memory of truncated BPTT


@dataclass(frozen=True)
class Run:
    """One `artbp train`: where it goes, below --out, and its options."""

    name: str
    options: dict[str, str | int | float]

    def command(self, ptb: Path, out: Path) -> list[str]:
        """A new run, or the one that lies there already."""
        folder, train = out / self.name, [sys.executable, "-m", "artbp", "train"]
        if (folder / "config.json").exists():
            return [*train, "--resume", str(folder)]
        options = [text for name, value in self.options.items() for text in (f"--{name}", str(value))]
        return [*train, "--ptb", str(ptb), "--out", str(folder), *options]


def plan(stage: str, arguments: argparse.Namespace) -> list[Run]:
    """The runs of a stage; seeds outermost, so that whatever is finished has all arms in it."""
    hidden, epochs = arguments.hidden, arguments.epochs

    def run(method: str, rate: float, seed: int, passes: int, folder: str = stage, **more: str | float) -> Run:
        lengths: dict[str, str | float] = (
            {"length": 50} if method == "tbptt" else {"mean": 50, "alpha": 4, "window": WINDOW}
        )
        options = {"method": method, **lengths, "hidden": hidden, "lr": rate, "seed": seed, "epochs": passes, **more}
        return Run(f"{folder}/{method}-{rate:g}-seed-{seed}", options)

    if stage == "arms":
        asked = itertools.product(arguments.seeds, arguments.rates, arguments.methods)
        return [run(method, rate, seed, epochs) for seed, rate, method in asked]
    if stage == "rates":
        return [run(method, rate, 0, epochs) for rate in (2e-3, 5e-4, 4e-3) for method in ARMS]
    if stage == "baseline":
        means = {"dropout": 0.3, "weight-dropout": 0.3, "weight-decay": 1e-6, "schedule": "cosine"}
        return [run(method, 2e-3, seed, 2 * epochs, **means) for seed in range(2) for method in ("tbptt", "artbp")]
    return [run(method, 1e-4, seed, 5 * epochs) for seed in range(2) for method in ARMS]


STAGES = ("arms", "rates", "baseline", "slow")


def run_all(arguments: argparse.Namespace) -> int:
    """Keeps `--jobs` runs going until all are finished or the time is over; prints what became of each."""
    runs = [run for stage in arguments.stages for run in plan(stage, arguments)]
    waiting = [run for run in runs if not _finished(arguments.out / run.name)]
    going: dict[str, subprocess.Popen[bytes]] = {}
    failed: dict[str, int] = {}
    end = time.monotonic() + arguments.seconds
    while (waiting or going) and time.monotonic() < end:
        while waiting and len(going) < arguments.jobs:
            run = waiting.pop(0)
            log = arguments.out / f"{run.name}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output:
                command = run.command(arguments.ptb, arguments.out)
                going[run.name] = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        time.sleep(0.2)
        for name in [name for name, process in going.items() if process.poll() is not None]:
            if status := going.pop(name).returncode:
                failed[name] = status
    for process in going.values():
        process.send_signal(signal.SIGTERM)
    for process in going.values():
        process.wait()
    for run in runs:
        folder = arguments.out / run.name
        state = "finished" if _finished(folder) else f"failed ({failed[run.name]})" if run.name in failed else "begun"
        print(f"{state if folder.exists() else 'waiting':<12} {run.name}")
    return 1 if failed else 0


def collect(arguments: argparse.Namespace) -> int:
    """Copies everything but the checkpoints, which are large, and the logs."""
    for config in sorted(arguments.out.rglob("config.json")):
        folder = config.parent
        target = arguments.results / folder.relative_to(arguments.out)
        target.mkdir(parents=True, exist_ok=True)
        for file in (*folder.glob("*.json"), *folder.glob("*.jsonl")):
            shutil.copy2(file, target / file.name)
        options = json.loads(config.read_text(encoding="utf-8"))
        options["ptb"] = Path(options["ptb"]).name  # where the text lay on that machine is of no use on another
        (target / config.name).write_text(json.dumps(options, indent=2) + "\n", encoding="utf-8")
        print(target)
    return 0


def _finished(folder: Path) -> bool:
    """Whether the run came to its end; one that was stopped has a summary too, which says so."""
    summary = folder / "summary.json"
    return summary.exists() and bool(json.loads(summary.read_text(encoding="utf-8"))["complete"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run")
    run.add_argument("--ptb", type=Path, required=True, help="the folder with the Penn Treebank's files")
    run.add_argument("--out", type=Path, required=True, help="where the runs lie, checkpoints and all")
    run.add_argument("--stages", nargs="+", choices=STAGES, default=["arms"])
    run.add_argument("--jobs", type=int, default=9, help="runs at a time; on a GPU, under MPS")
    run.add_argument("--seconds", type=float, default=540, help="when to stop what is still going")
    run.add_argument("--hidden", type=int, default=1000)
    run.add_argument("--epochs", type=int, default=25, help="passes of the arms; the other stages in proportion")
    run.add_argument("--methods", nargs="+", choices=ARMS, default=list(ARMS), help="of the stage arms")
    run.add_argument("--rates", nargs="+", type=float, default=[1e-3], help="of the stage arms")
    run.add_argument("--seeds", nargs="+", type=int, default=list(range(6)), help="of the stage arms")
    run.set_defaults(main=run_all)
    gather = commands.add_parser("collect")
    gather.add_argument("--out", type=Path, required=True)
    gather.add_argument("--results", type=Path, required=True)
    gather.set_defaults(main=collect)
    arguments = parser.parse_args()
    return int(arguments.main(arguments))


if __name__ == "__main__":
    sys.exit(main())
