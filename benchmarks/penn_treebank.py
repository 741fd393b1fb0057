"""The paper's second experiment as a plan of many runs, which share one accelerator and outlive its interruptions.

    python benchmarks/penn_treebank.py run --ptb DIR --out runs/ptb --stages arms rates --jobs 18 --mps --seconds 540
    python benchmarks/penn_treebank.py run --ptb DIR --out runs/small --hidden 128 --rates 2e-3 4e-3 --seeds 0 1
    python benchmarks/penn_treebank.py evaluate --out runs/ptb
    python benchmarks/penn_treebank.py collect --out runs/ptb --results results/penn-treebank
    python benchmarks/penn_treebank.py models --out runs/ptb --to models

`run` starts the runs of the stages in their order, `--jobs` at a time, each an `artbp train` of its own, and ends them
by SIGTERM when the seconds are over, or when it gets one itself; called again, on this machine or another, it goes on
with those that were stopped. `evaluate` writes beside each run what its best parameters cost on the validation and the
test text, lane by lane, and where a lane derails how that came, stretch by stretch and in other ways too. `collect`
copies what is to be kept, which is all but the checkpoints. `models` copies the runs that are named, or else those in
which a lane derailed, with their best parameters alone: a third of a checkpoint's size, for `artbp evaluate`, `sample`
and `export`.
The stages, in the order of what they are worth:

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
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARMS = ("tbptt", "random", "artbp")
WINDOW = 50  # the memory of truncated BPTT
# How the best parameters are evaluated: as in training, and where a lane derails in other ways too. Is it the state
# that is carried there, the state that it comes with, or the rounding?
VARIANTS: dict[str, dict[str, Any]] = {
    "carried": {},
    "reset-1000": {"reset": 1000},
    "lanes-32": {"lanes": 32},
    "float32": {"precision": "float32"},
}
_STORY = ("stretch_bpc", "norms", "largest", "units")  # of no use where nothing happened
GRACE = 60.0  # seconds that a run has to write its checkpoint


@dataclass(frozen=True)
class Run:
    """One `artbp train`: where it goes, below --out, and its options."""

    name: str
    options: dict[str, str | int | float]

    def command(self, ptb: Path, out: Path) -> list[str]:
        """A new run, or the one that lies there already, perhaps from a machine where the text lay elsewhere."""
        folder, train = out / self.name, [sys.executable, "-m", "artbp", "train", "--ptb", str(ptb)]
        if (folder / "config.json").exists():
            return [*train, "--resume", str(folder)]
        options = [text for name, value in self.options.items() for text in (f"--{name}", str(value))]
        return [*train, "--out", str(folder), *options]


def plan(stage: str, arguments: argparse.Namespace) -> list[Run]:
    """The runs of a stage; seeds outermost, so that whatever is finished has all arms in it."""
    hidden, epochs = arguments.hidden, arguments.epochs

    def run(method: str, rate: float, seed: int, passes: int, folder: str = stage, **more: str | float) -> Run:
        lengths: dict[str, str | float] = (
            {"length": 50} if method == "tbptt" else {"mean": 50, "alpha": 4, "window": WINDOW}
        )
        options = {"method": method, **lengths, "hidden": hidden, "lr": rate, "seed": seed, "epochs": passes, **more}
        return Run(f"{folder}/{method}-{rate:g}-seed-{seed}", options)

    if stage == "baseline":
        means = {"dropout": 0.3, "weight-dropout": 0.3, "weight-decay": 1e-6, "schedule": "cosine"}
        return [run(method, 2e-3, seed, 2 * epochs, **means) for seed in range(2) for method in ("tbptt", "artbp")]
    patience = {"patience": arguments.patience} if arguments.patience else {}
    if stage == "arms":
        asked = itertools.product(arguments.seeds, arguments.rates, arguments.methods)
        return [run(method, rate, seed, epochs, **patience) for seed, rate, method in asked]
    if stage == "rates":
        return [run(method, rate, 0, epochs, **patience) for rate in (2e-3, 5e-4, 4e-3) for method in ARMS]
    return [run(method, 1e-4, seed, 5 * epochs, **patience) for seed in range(2) for method in ARMS]


STAGES = ("arms", "rates", "baseline", "slow")


def run_all(arguments: argparse.Namespace) -> int:
    """Keeps `--jobs` runs going until all are finished or the time is over; prints what became of each."""
    runs = [run for stage in arguments.stages for run in plan(stage, arguments)]
    waiting = [run for run in runs if not _finished(arguments.out / run.name)]
    going: dict[str, subprocess.Popen[bytes]] = {}
    failed: dict[str, int] = {}
    start = said = time.monotonic()
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    with _shared_device() if arguments.mps else _environment() as environment:
        # Each run is to have its own cores, not all of them.
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // arguments.jobs)))
        while (waiting or going) and not stop and time.monotonic() - start < arguments.seconds:
            while waiting and len(going) < arguments.jobs:
                run = waiting.pop(0)
                log = arguments.out / f"{run.name}.log"
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("ab") as output:
                    command = run.command(arguments.ptb, arguments.out)
                    going[run.name] = subprocess.Popen(
                        command, stdout=output, stderr=subprocess.STDOUT, env=environment
                    )
            time.sleep(0.2)
            for name in [name for name, process in going.items() if process.poll() is not None]:
                if status := going.pop(name).returncode:
                    failed[name] = status
            if time.monotonic() - said > arguments.say_every:
                said = time.monotonic()
                print(f"{said - start:,.0f} s: {_progress(arguments.out, list(going), len(waiting))}", flush=True)
        _end(list(going.values()))
    for run in runs:
        folder = arguments.out / run.name
        state = "finished" if _finished(folder) else f"failed ({failed[run.name]})" if run.name in failed else "begun"
        print(f"{state if folder.exists() or run.name in failed else 'waiting':<12} {run.name:<32} {_standing(folder)}")
        if run.name in failed:
            log = (arguments.out / f"{run.name}.log").read_text(encoding="utf-8", errors="replace")
            print(*(f"    {line}" for line in log.splitlines()[-4:]), sep="\n")
    return 1 if failed else 0


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Lets all write their checkpoints at once; one that does not answer is killed, its last checkpoint being kept."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    end = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _environment() -> Iterator[dict[str, str]]:
    yield dict(os.environ)


@contextmanager
def _shared_device() -> Iterator[dict[str, str]]:
    """An environment in which processes compute on one GPU at the same time, by NVIDIA's MPS, instead of in turns."""
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = {**os.environ, **places}
        control = shutil.which("nvidia-cuda-mps-control")
        started = control is not None and not subprocess.run([control, "-d"], env=environment, check=False).returncode
        if started and _has_a_context(environment):
            print("The runs share the GPU under MPS.", flush=True)
        else:
            print("There is no MPS here that works: the runs take turns on the GPU.", flush=True)
            for name in places:
                del environment[name]
        try:
            yield environment
        finally:
            if started and control is not None:
                with suppress(subprocess.TimeoutExpired):
                    environment = {**os.environ, **places}
                    subprocess.run([control], input=b"quit\n", env=environment, timeout=30, check=False)


def _has_a_context(environment: dict[str, str]) -> bool:
    """Whether a process with this environment gets to compute on the GPU."""
    look = (
        "import ctypes, sys; cuda, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p(); "
        "sys.exit(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))"
    )
    try:
        return not subprocess.run([sys.executable, "-c", look], env=environment, timeout=30, check=False).returncode
    except subprocess.TimeoutExpired:
        return False


def _progress(out: Path, going: list[str], waiting: int) -> str:
    passes = [_summary(out / name).get("epochs") or 0 for name in going]
    between = f", {min(passes)} to {max(passes)} passes done" if passes else ""
    return f"{len(going)} going{between}, {waiting} waiting"


def _standing(folder: Path) -> str:
    """How far a run has come, and how well it did."""
    summary = _summary(folder)
    numbers = ("valid_bpc", "test_bpc", "test_median_lane_bpc", "test_worst_lane_bpc")
    found = [f"{name.removesuffix('_bpc')} {summary[name]:.4f}" for name in numbers if summary.get(name) is not None]
    passes = [f"{summary['epochs']} passes", f"{summary['seconds']:.0f} s"] if summary.get("epochs") else []
    return "  ".join([*passes, *found])


def evaluate(arguments: argparse.Namespace) -> int:
    """The best parameters of every run that has some, on the validation and the test text, lane by lane."""
    from artbp._folder import write_json
    from artbp.train.evaluation import fitting_lanes
    from artbp.train.loading import load_corpus, load_model

    corpora: dict[str, Any] = {}
    for best in sorted(arguments.out.rglob("checkpoints/best.pt")):
        folder = best.parent.parent
        run, target = folder.relative_to(arguments.out), folder / "evaluations"
        target.mkdir(exist_ok=True)
        trained = load_model(folder, "best", arguments.device)
        digest = trained.config["digest"]
        if digest not in corpora:
            corpora[digest] = load_corpus(trained, ptb=arguments.ptb)
        for split in ("valid", "test"):
            symbols = corpora[digest].splits[split]
            lanes = fitting_lanes(symbols, trained.config["evaluation_lanes"])
            for name, changes in VARIANTS.items():
                found = traced(trained, symbols, **{"lanes": lanes, **changes})
                derailed = [(one.lane, one.first, one.end) for one in found.derailments()]
                lane = found.lane_bpc.tolist()
                print(
                    f"{run!s:<32} {split:<5} {name:<10} {found.bpc:.4f}  median {statistics.median(lane):.4f}"
                    f"  worst {max(lane):.4f}  derailed {derailed or 'none'}",
                    flush=True,
                )
                sound = name == "carried" and not derailed
                kept = {key: value for key, value in found.to_json().items() if not sound or key not in _STORY}
                about = {"epoch": trained.epoch, "split": split, "variant": name, "derailed": derailed}
                write_json(target / f"{split}-{name}.json", {**about, **_rounded(kept)})
                if sound:
                    break
    return 0


def traced(trained: Any, symbols: Any, *, lanes: int, reset: int | None = None, precision: str | None = None) -> Any:
    """A trace in the run's own precision, or in another one."""
    from artbp.train.devices import choose
    from artbp.train.lane_trace import trace
    from artbp.train.options import Options

    if trained.device.type == "cuda":
        choose(Options(device=str(trained.device), precision=precision or trained.config["precision"]))
    with trained.autocast() if precision is None else nullcontext():
        return trace(trained.model, symbols, lanes=min(lanes, len(symbols) - 1), device=trained.device, reset=reset)


def _rounded(value: Any) -> Any:
    """Numbers with five digits after the point: a third of the file, and no less of the story."""
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return round(value, 5) if isinstance(value, float) else value


def collect(arguments: argparse.Namespace) -> int:
    """Copies everything but the checkpoints, which are large, and the logs."""
    for config in sorted(arguments.out.rglob("config.json")):
        folder = config.parent
        target = arguments.results / folder.relative_to(arguments.out)
        for file in (*folder.glob("*.json"), *folder.glob("*.jsonl"), *folder.glob("evaluations/*.json")):
            place = target / file.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, place)
        options = json.loads(config.read_text(encoding="utf-8"))
        if options.get("ptb"):
            options["ptb"] = Path(options["ptb"]).name  # where it lay on that machine is of no use on another
        (target / config.name).write_text(json.dumps(options, indent=2) + "\n", encoding="utf-8")
        print(target)
    return 0


def models(arguments: argparse.Namespace) -> int:
    """Copies runs with the parameters of their best.pt and nothing of the optimizer's: they cannot be resumed."""
    from artbp.train.checkpoints import encode, read

    for name in arguments.runs or _derailed(arguments.out)[: arguments.most]:
        folder, target = arguments.out / name, arguments.to / name / "checkpoints"
        target.mkdir(parents=True, exist_ok=True)
        state = read(folder / "checkpoints" / "best.pt")
        kept = {key: state[key] for key in ("config", "vocabulary", "model", "epoch", "format", "artbp", "torch")}
        (target / "best.pt").write_bytes(encode(kept))
        for file in folder.glob("*.json"):
            shutil.copy2(file, arguments.to / name)
        print(arguments.to / name)
    return 0


def _derailed(out: Path) -> list[str]:
    """The runs in which `evaluate` found a lane that derails, the worst lane first."""
    found: dict[str, float] = {}
    for file in sorted(out.rglob("evaluations/*.json")):
        evaluation = json.loads(file.read_text(encoding="utf-8"))
        if evaluation["derailed"]:
            name = str(file.parent.parent.relative_to(out))
            found[name] = max(found.get(name, 0.0), *evaluation["lane_bpc"])
    return sorted(found, key=lambda name: -found[name])


def _finished(folder: Path) -> bool:
    """Whether the run came to its end; one that was stopped has a summary too, which says so."""
    return bool(_summary(folder).get("complete"))


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def main(typed: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run")
    run.add_argument("--ptb", type=Path, required=True, help="the folder with the Penn Treebank's files")
    run.add_argument("--out", type=Path, required=True, help="where the runs lie, checkpoints and all")
    run.add_argument("--stages", nargs="+", choices=STAGES, default=["arms"])
    run.add_argument("--jobs", type=int, default=9, help="runs at a time; on a GPU, with --mps")
    run.add_argument("--mps", action="store_true", help="let the runs compute on the GPU at the same time")
    run.add_argument("--seconds", type=float, default=540, help="when to stop what is still going")
    run.add_argument("--say-every", type=float, default=60, help="seconds from one line about all runs to the next")
    run.add_argument("--hidden", type=int, default=1000)
    run.add_argument("--epochs", type=int, default=25, help="passes of the arms; the other stages in proportion")
    run.add_argument("--patience", type=int, default=0, help="see `artbp train`; of all stages but the baseline")
    run.add_argument("--methods", nargs="+", choices=ARMS, default=list(ARMS), help="of the stage arms")
    run.add_argument("--rates", nargs="+", type=float, default=[1e-3], help="of the stage arms")
    run.add_argument("--seeds", nargs="+", type=int, default=list(range(6)), help="of the stage arms")
    run.set_defaults(main=run_all)
    look = commands.add_parser("evaluate")
    look.add_argument("--ptb", type=Path, help="where the text is, if not where it was for the runs")
    look.add_argument("--out", type=Path, required=True)
    look.add_argument("--device", default="auto")
    look.set_defaults(main=evaluate)
    gather = commands.add_parser("collect")
    gather.add_argument("--out", type=Path, required=True)
    gather.add_argument("--results", type=Path, required=True)
    gather.set_defaults(main=collect)
    keep = commands.add_parser("models")
    keep.add_argument("--out", type=Path, required=True)
    keep.add_argument("--to", type=Path, required=True)
    keep.add_argument("--most", type=int, default=3, help="at most so many, where none is named")
    keep.add_argument("runs", nargs="*", help="their names below --out")
    keep.set_defaults(main=models)
    arguments = parser.parse_args(typed)
    return int(arguments.main(arguments))


if __name__ == "__main__":
    sys.exit(main())
