"""`artbp influence-balancing`: runs the experiment, or the rest of it, and leaves table, data and figures."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from tqdm import tqdm

from artbp._folder import FolderError, environment, make, read_json, refuse_foreign, refuse_other, write_json
from artbp.experiments import _processes
from artbp.experiments._options import OptionError
from artbp.experiments.influence_options import DATA, FIGURES, NAME, Options, check

if TYPE_CHECKING:
    from artbp.experiments.influence_results import Results

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended
_RUNS = "artbp.experiments.influence_runs"
_SAVE_EVERY = 10.0  # seconds


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    options = tyro.cli(Options, args=arguments, prog=f"artbp {NAME}", config=(tyro.conf.FlagCreatePairsOff,))
    try:
        check(options)
        return _command(options)
    except (OptionError, FolderError, _processes.JobError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _command(options: Options) -> int:
    folder, config = options.out, options.config()
    if _is_finished(folder, config, options.overwrite):
        print(f"{folder} holds this run, finished: nothing was done.")
        print(f"`artbp plot {folder}` draws its figures again; --overwrite runs it again.")
        return 0
    start = time.perf_counter()
    with _processes.interrupts_as_flag() as interrupted:
        _processes.prepare([_RUNS])
        from artbp.experiments.influence_results import Results, table
        from artbp.experiments.influence_runs import plan

        results = Results(options, plan(options))
        _begin(results, config)
        try:
            _perform(results, interrupted)
        finally:
            results.save()
    print(table(results.summary(), config))
    if not results.complete:
        print(f"\nStopped; what there is, is in {folder}. The same command goes on from there.")
        return INTERRUPTED
    print(f"\n{len(results.runs)} runs of {options.steps:,} steps, in {time.perf_counter() - start:.1f} s.")
    _draw(folder)
    return 0


def _is_finished(folder: Path, config: dict[str, Any], overwrite: bool) -> bool:
    """Whether there is nothing to do; refuses a folder that holds something else."""
    refuse_foreign(folder)
    if not (folder / "config.json").exists():
        return False
    if overwrite:
        refuse_other(folder, {"experiment": NAME})
        _clear(folder)
        return False
    refuse_other(folder, config)
    return (folder / "summary.json").exists() and bool(read_json(folder / "summary.json")["complete"])


def _begin(results: Results, config: dict[str, Any]) -> None:
    """Makes the folder, or takes up what it holds."""
    from artbp.experiments.gradient_flow import flows

    folder = results.folder
    if (folder / "summary.json").exists():
        results.load()
    if any(progress.step for progress in results.progress):
        finished = sum(progress.finished for progress in results.progress)
        print(f"Going on in {folder}, where {finished} of {len(results.runs)} runs are finished.", flush=True)
    make(folder)
    write_json(folder / "config.json", config)
    write_json(folder / "env.json", environment())
    write_json(folder / "gradient-flow.json", flows())


def _perform(results: Results, interrupted: Callable[[], bool]) -> None:
    from artbp.experiments.influence_runs import Report, Task, perform

    options = results.options
    # Those that draw short segments take longest, and are begun first.
    order = sorted(
        (number for number, progress in enumerate(results.progress) if not progress.finished),
        key=lambda number: results.runs[number].length or 0,
    )
    tasks = [Task(results.runs[number], options, results.progress[number].saved) for number in order]
    saved = time.monotonic()
    total = options.steps * len(results.runs)
    done = sum(options.steps if progress.finished else progress.step for progress in results.progress)
    with (
        _processes.Jobs(perform, tasks, options.jobs, [_RUNS]) as jobs,
        tqdm(total=total, initial=done, unit=" steps", unit_scale=True, disable=None, dynamic_ncols=True) as bar,
    ):
        report: Report
        for number, report in jobs.reports(interrupted):
            progress = results.progress[order[number]]
            bar.update((options.steps if report.finished else report.step) - progress.step)
            progress.add(report)
            if report.finished:
                finished = sum(progress.finished for progress in results.progress)
                bar.set_postfix_str(f"{finished} of {len(results.runs)} runs finished")
            if time.monotonic() - saved > _SAVE_EVERY:
                results.save()
                saved = time.monotonic()


def _draw(folder: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        print(f"Data: {folder}. The figures need matplotlib, which is not installed:")
        print(f'`pip install "artbp[plot]"`, then `artbp plot {folder}`.')
        return
    from artbp.experiments.influence_figures import draw

    print(f"Data and figures: {folder}")
    for figure in draw(folder):
        print(f"  {figure.name}")


def _clear(folder: Path) -> None:
    """Removes what a run of this experiment has written, and nothing else."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    for name in [*DATA, *(f"{figure}.{kind}" for figure in FIGURES for kind in ("png", "svg"))]:
        (folder / name).unlink(missing_ok=True)
