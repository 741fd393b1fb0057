"""What the runs of influence balancing have found so far: as files, and as a table."""

from __future__ import annotations

import io
import math
import pickle
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from artbp._folder import FolderError, read_json, read_rows, write_bytes, write_json, write_rows
from artbp.experiments.influence_options import Options
from artbp.experiments.influence_runs import Report, Run, build, finite
from artbp.experiments.influence_theory import expected_gradient, optimum, shortest_right_length

NEAR = 0.25  # a run has converged where the first agent would come to rest this close to its target of 1


@dataclass
class Progress:
    """One run so far."""

    step: int = 0
    average_loss: float | None = None
    theta: float | None = None
    seconds: float = 0.0
    finished: bool = False
    saved: bytes | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, report: Report) -> None:
        """Takes in what a run reports."""
        self.step, self.finished = report.step, report.finished
        self.average_loss, self.theta = finite(report.average_loss), finite(report.theta)
        self.seconds += report.seconds
        self.rows += report.rows
        self.saved = report.saved if report.saved is not None else self.saved
        if report.finished:
            self.saved = None

    def go_on_from(self, saved: bytes) -> None:
        """Stands where a run was saved."""
        descent = torch.load(io.BytesIO(saved), weights_only=True)
        self.saved, self.step = saved, descent["targets"]["position"]
        self.average_loss, self.theta = descent["total_loss"] / self.step, descent["theta"].item()


class Results:
    """All runs, in a folder."""

    def __init__(self, options: Options, runs: list[Run]) -> None:
        self.options, self.runs, self.folder = options, runs, options.out
        self.progress = [Progress() for _ in runs]

    @property
    def complete(self) -> bool:
        """Whether every run has finished."""
        return all(progress.finished for progress in self.progress)

    def load(self) -> None:
        """Takes up what the folder holds: finished runs as they are, others where they were last saved."""
        summary = {(run["method"], run["seed"]): run for run in read_json(self.folder / "summary.json")["runs"]}
        rows = read_rows(self.folder / "runs.jsonl")
        for number, (run, progress) in enumerate(zip(self.runs, self.progress, strict=True)):
            if (run.method, run.seed) not in summary:
                continue
            found = summary[run.method, run.seed]
            if found["finished"]:
                progress.step, progress.finished = found["steps"], True
                progress.average_loss, progress.theta = found["average_loss"], found["theta"]
            elif self._checkpoint(number).is_file():
                self._go_on(progress, self._checkpoint(number))
            progress.seconds = found["seconds"] if progress.step else 0.0
            progress.rows = [
                row
                for row in rows
                if (row["method"], row["seed"]) == (run.method, run.seed) and row["step"] <= progress.step
            ]

    def _go_on(self, progress: Progress, checkpoint: Path) -> None:
        try:
            progress.go_on_from(checkpoint.read_bytes())
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, LookupError, TypeError, ValueError):
            raise FolderError(
                f"{checkpoint} does not hold what a run has saved there.",
                "Remove it, and that run begins anew with the same command; or start all anew with --overwrite.",
            ) from None

    def save(self) -> None:
        """Writes the files, each as a whole, such that they agree with each other."""
        write_rows(self.folder / "runs.jsonl", (row for progress in self.progress for row in progress.rows))
        write_json(self.folder / "summary.json", self.summary())
        checkpoints = self.folder / "checkpoints"
        if self.complete:
            shutil.rmtree(checkpoints, ignore_errors=True)
            return
        for number, progress in enumerate(self.progress):
            if progress.saved is not None:
                checkpoints.mkdir(exist_ok=True)
                write_bytes(self._checkpoint(number), progress.saved)
            else:
                self._checkpoint(number).unlink(missing_ok=True)

    def _checkpoint(self, number: int) -> Path:
        return self.folder / "checkpoints" / f"{number}.pt"

    def summary(self) -> dict[str, Any]:
        """summary.json: each run in a line, and what theory says about the methods."""
        p, n = self.options.p, self.options.n
        return {
            "complete": self.complete,
            "steps": self.options.steps,
            "optimum": optimum(p, n),
            "runs": [
                {
                    "method": run.method,
                    "seed": run.seed,
                    "steps": progress.step,
                    "average_loss": progress.average_loss,
                    "theta": progress.theta,
                    "outcome": outcome(self.options, progress),
                    "diverged_at": progress.step if _overflowed(progress) else None,
                    "finished": progress.finished,
                    "seconds": round(progress.seconds, 3),
                }
                for run, progress in zip(self.runs, self.progress, strict=True)
                if progress.step
            ],
            "expected_gradient": self.expected_gradients(),
            "shortest_length_with_the_right_sign": shortest_right_length(p, n),
        }

    def expected_gradients(self) -> list[dict[str, Any]]:
        """For every method: its expected gradient at rest as a multiple of the exact one, and the sign of that."""
        expected = []
        for run in {run.method: run for run in self.runs}.values():
            cut = getattr(build(run, self.options), "cut", None)
            multiple = 1.0 if cut is None else expected_gradient(self.options.p, self.options.n, cut.law)
            sign = int(math.copysign(1, multiple)) if multiple else 0
            expected.append({"method": run.method, "length": run.length, "multiple_of_exact": multiple, "sign": sign})
        return expected


def outcome(options: Options, progress: Progress) -> str:
    """`diverged`: it overflew, or θ would bring the first agent to rest farther from its target than both the θ of the
    start and θ = 0 would. `converged`: within 1/4 of the target. `undecided`: neither, yet; `stopped`: not at its end.
    """
    if _overflowed(progress):
        return "diverged"
    if not progress.finished or progress.theta is None:
        return "stopped"
    error = _error_at_rest(options, progress.theta)
    if error > max(_error_at_rest(options, options.theta0), 1.0):
        return "diverged"
    return "converged" if error <= NEAR else "undecided"


def _overflowed(progress: Progress) -> bool:
    return progress.finished and (progress.theta is None or progress.average_loss is None)


def _error_at_rest(options: Options, theta: float) -> float:
    return abs(theta / optimum(options.p, options.n) - 1)


def table(summary: dict[str, Any], config: dict[str, Any]) -> str:
    """The summary for the terminal, at most 80 columns where names allow it."""
    runs = summary["runs"]
    width = max([len(run["method"]) for run in runs] + [6])
    lines = [f"{'method':<{width}}  {'seed':>4}  {'average loss':>12}  {'final θ':>9}  outcome"]
    lines.append("─" * (width + 41))
    for run in runs:
        seed = "–" if run["seed"] is None else run["seed"]
        loss, theta = _number(run["average_loss"]), _number(run["theta"])
        end = run["outcome"] if run["finished"] else f"{run['steps']:,} steps"
        lines.append(f"{run['method']:<{width}}  {seed:>4}  {loss:>12}  {theta:>9}  {end}")
    for run in runs:
        if run["diverged_at"] is not None:
            seed = "" if run["seed"] is None else f", seed {run['seed']},"
            lines.append(f"{run['method']}{seed} overflew at step {run['diverged_at']:,}.")
    p, n = config["p"], config["n"]
    lines += [
        "",
        f"The average is over all steps; the optimum is θ = 1/{2 * (p - n)} = {summary['optimum']:.4f}.".replace(
            "1/-", "-1/"
        ),
        "",
        "Expected gradient at rest, as a multiple of the exact one:",
    ]
    for expected in summary["expected_gradient"]:
        wrong = "   wrong sign" if expected["sign"] < 0 else ""
        lines.append(f"{expected['method']:<{width}}  {expected['multiple_of_exact']:>+7.3f}{wrong}")
    length = summary["shortest_length_with_the_right_sign"]
    if length > 1:
        lines.append(f"Truncated BPTT has the right sign from L = {length} on.")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return "overflow"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e5 or value == 0 else f"{value:.2g}"
