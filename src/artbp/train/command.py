"""`artbp train`: trains a character model, or goes on with one, and leaves a folder of metrics and checkpoints."""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from artbp._folder import FolderError, read_json, write_json
from artbp.train.options import OptionError, Options, check, check_resume, flag, from_config
from artbp.train.run_folder import alone, is_run, prepare, read_config

if TYPE_CHECKING:
    from artbp.train.corpus import Corpus
    from artbp.train.group import Group

# What a shell reports for a program that the signal ended.
STOPPED: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143}
# Memory that is full, in the words of what has no error of its own: torch on a CPU; CUDA and its libraries, where
# another process has filled the GPU.
_FULL = ("can't allocate memory", "out of memory", "_ALLOC_FAILED")


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)
    options = tyro.cli(Options, args=arguments, prog="artbp train", config=config)
    with ExitStack() as held:
        try:
            # Several processes check together, so that none waits for one that ended, and one says what is wrong.
            return _command(options if _launched() else _checked(options), held)
        except (OptionError, FolderError) as error:
            return _fail(str(error), 2)


def _checked(options: Options) -> Options:
    """The options, or those that a run to go on with was begun with; refused where they cannot work."""
    if options.resume is None:
        check(options)
    else:
        check_resume(options)
        config = read_config(options.resume)
        try:
            config = {"seed": config["seeds"][0], **config} if "seeds" in config else config
            options = dataclasses.replace(from_config(config, options), out=options.resume)
            check(options)
        except (OptionError, IndexError, KeyError, TypeError, ValueError) as error:
            raise FolderError(
                f"{options.out / 'config.json'} was changed to what cannot run: {str(error).splitlines()[0]}",
                "Restore it as `artbp train` wrote it, or start a new run with --out.",
            ) from None
    if options.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise OptionError('--tensorboard: tensorboard is not installed.\nInstall it with `pip install "artbp[log]"`.')
    return options


def _command(options: Options, held: ExitStack) -> int:
    import torch  # what is slow begins here

    from artbp.train._heap import keep_freed_memory
    from artbp.train._signals import signals
    from artbp.train.corpus import CorpusError
    from artbp.train.group import Group, GroupError, Launched, ToldError

    keep_freed_memory()
    group: Group = Group()
    try:
        if _launched():
            group = Launched(options.timeout if 0 < options.timeout < math.inf else Options.timeout)
        with signals() as came:
            options, device = _agreed(options, group)
            return _runs(options, group, device, came, held)
    except ToldError:
        return 2
    except (OptionError, FolderError, CorpusError) as error:
        return _fail(str(error), 2)
    except GroupError as error:
        return _fail(str(error), 1)
    except (torch.OutOfMemoryError, MemoryError) as error:
        return _fail(_out_of_memory(options, error), 1)
    except RuntimeError as error:
        if not any(words in str(error) for words in _FULL):
            raise
        return _fail(_out_of_memory(options, error), 1)
    except BrokenPipeError:
        raise  # nobody reads what is printed any more: no fault of the disk
    except OSError as error:
        return _fail(_disk(options.out, error), 1)
    finally:
        group.leave()


def _launched() -> bool:
    """Whether torchrun started this process, and others."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def _agreed(options: Options, group: Group) -> tuple[Options, Any]:
    """The options as they are in all processes, and the device; refused where processes were told different things."""
    from artbp.train.devices import choose

    if group.size > 1:
        given = options
        options = group.agree(lambda: _checked(given))
    device, options = group.agree(lambda: choose(options))
    everywhere = group.gather({**options.config(), "dry_run": options.dry_run, "device": device.type})

    def compare() -> None:
        for rank, other in enumerate(everywhere):
            for name, value in other.items():
                if value != everywhere[0][name] and name not in ("corpus", "ptb"):  # places, and compared by digest
                    raise OptionError(
                        f"{flag(name)} is {everywhere[0][name]} in process 0 and {value} in process {rank}.\n"
                        "Start all processes with the same options."
                    )
        if options.lanes % group.size:
            raise OptionError(
                f"--lanes {options.lanes} with {group.size} processes: each takes the same number of lanes.\n"
                f"Start a number of processes that divides {options.lanes}, or a new run with --lanes "
                f"{-(-options.lanes // group.size) * group.size}."
            )

    group.agree(compare)
    group.use(device)
    return options, device


def _runs(options: Options, group: Group, device: Any, came: list[int], held: ExitStack) -> int:
    from artbp.train.dry_run import dry_run

    if options.dry_run:
        said = dry_run(options, _corpus(options, group), group, device)
        if group.rank == 0:
            print(said)
        return 0
    folders = group.share(lambda: _folders(options, held))
    seeds = [seed for seed, _, finished in folders if not finished]
    for _, folder, finished in folders:
        if finished and group.rank == 0:
            print(f"{folder} holds this run, finished: nothing was done.", flush=True)
    if not seeds:
        return 0
    corpus = _corpus(options, group)
    status = 0
    for seed, folder, finished in folders:
        if not finished:
            status = max(status, _run(dataclasses.replace(options, seed=seed), folder, corpus, group, device, came))
        if len(folders) > 1 and group.rank == 0:
            _summarise_all(options.out, folders)
        if status in STOPPED.values():
            break
    if len(folders) > 1 and group.rank == 0 and not status:
        print(f"All of them: `artbp compare-runs {options.out}`, `artbp plot {options.out}`.")
    return status


def _folders(options: Options, held: ExitStack) -> list[tuple[int, Path, bool]]:
    """(seed, folder, whether it is finished) of every run, each with its config.json written, and locked."""
    resume, overwrite = options.resume is not None, options.overwrite
    held.enter_context(alone(options.out))
    several = not is_run(options.out) if resume else options.runs > 1
    if not several:
        config = _config(options)
        return [(options.seed, options.out, prepare(options.out, config, resume=resume, overwrite=overwrite))]
    for there in options.out.glob("seed-*"):
        held.enter_context(alone(there))  # before the first of them is overwritten
    config = {name: value for name, value in _config(options).items() if name != "seed"}
    seeds = read_config(options.out)["seeds"] if resume else [options.seed + k for k in range(options.runs)]
    prepare(options.out, {**config, "seeds": seeds}, resume=resume, overwrite=overwrite)
    found = []
    for seed in seeds:
        folder, each = options.out / f"seed-{seed}", dataclasses.replace(options, seed=seed)
        begun = resume and (folder / "config.json").exists()
        if not folder.exists():
            held.enter_context(alone(folder))
        found.append((seed, folder, prepare(folder, _config(each), resume=begun, overwrite=False)))
    return found


def _config(options: Options) -> dict[str, Any]:
    from artbp.train.method import estimator

    return {**options.config(), "estimator": repr(estimator(options))}


def _corpus(options: Options, group: Group) -> Corpus:
    """The text, long enough and the same everywhere; process 0 reads it first, and the others find it in the cache."""
    from artbp.train.corpus import CorpusError, embedded, from_file, penn_treebank

    def read() -> Corpus:
        if options.ptb is not None:
            return penn_treebank(options.ptb)
        return embedded() if options.corpus is None else from_file(options.corpus, cache=options.cache)

    first: list[Corpus] = []
    group.share(lambda: first.append(read()))
    corpus = group.agree(lambda: first[0] if first else read())
    digests = group.gather(corpus.digest)

    def compare() -> None:
        if corpus.digest != digests[0]:
            raise CorpusError(
                f"{corpus.name} is another text in process {group.rank} than in process 0: their SHA-256 differ.",
                "Put the same text on all machines.",
            )
        characters = len(corpus.splits["train"])
        if characters <= options.lanes:
            raise CorpusError(
                f"--lanes {options.lanes}: {corpus.name} has {characters:,} characters to train on, and each lane "
                "takes one, and one to follow.",
                f"Pass at most {characters - 1:,} with --lanes, or a longer text.",
            )

    group.agree(compare)
    return corpus


def _run(options: Options, folder: Path, corpus: Corpus, group: Group, device: Any, came: list[int]) -> int:
    from artbp.train.progress import Progress
    from artbp.train.session import DivergedError, Session, StoppedError

    leads = group.rank == 0

    def say(*lines: str) -> None:
        if leads and lines:
            print(*lines, sep="\n", flush=True)

    group.share(lambda: _vocabulary(folder, corpus))
    config = {**_config(options), "digest": corpus.digest}
    session = group.agree(lambda: Session(options, folder, corpus, group, device, config, lambda: bool(came)))
    stream, training = session.training.stream, session.training
    parameters = sum(parameter.numel() for parameter in training.model.parameters())
    say(
        f"{corpus.name}: {len(corpus.splits['train']):,} characters to train on, {len(corpus.vocabulary)} symbols, "
        f"in {options.lanes} lanes of {stream.steps:,} steps ({stream.remainder} left over)",
        *corpus.notes,
        f"{config['estimator']}, {options.cell} of {options.hidden} units x {options.layers}, {parameters:,} "
        f"parameters, seed {options.seed}, on {device}" + (f" x {group.size}" if group.size > 1 else ""),
    )
    if options.resume is not None:
        say(*session.resume())
    total = training.total_steps * options.lanes
    try:
        with Progress(total, training.steps * options.lanes, options.epochs, silent=not leads) as progress:
            summary = session.run(progress)
    except StoppedError:
        say(f"Stopped at update {training.update:,}. `artbp train --resume {options.out}` goes on from there.")
        asked = next(numbers[0] for numbers in group.gather(came) if numbers)
        return STOPPED[asked]
    except DivergedError as error:
        if leads:
            _fail(
                f"{error}.\n{_kept(folder)} Lower --lr, or bound the gradient with --clip (which biases it).",
                1,
            )
        group.gather(None)  # torchrun ends all processes as soon as one has failed: not before this is said
        return 1
    if leads:
        _conclude(folder, summary)
    return 0


def _vocabulary(folder: Path, corpus: Corpus) -> None:
    """Writes the vocabulary; refuses a text that is not the one that the run was begun with."""
    path = folder / "vocabulary.json"
    if path.exists() and read_json(path).get("digest") != corpus.digest:
        raise FolderError(
            f"{folder} was begun with another text than {corpus.name} is now (its SHA-256 differs).",
            "Restore that text, or start a new run with --out.",
        )
    write_json(path, {**corpus.vocabulary.to_json(), "digest": corpus.digest})


def _kept(folder: Path) -> str:
    last = folder / "checkpoints" / "last.pt"
    return f"{last} is from before it." if last.exists() else "That was before the first checkpoint."


def _conclude(folder: Path, summary: dict[str, Any]) -> None:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    valid = [row["bpc"] for row in rows if row["kind"] == "evaluation"]
    if len(valid) > 1:
        print(f"validation  {_curve(valid)}  {valid[0]:.3f} to {min(valid):.3f} bpc, pass by pass")
    numbers = [("train", "train_bpc"), ("validation", "valid_bpc"), ("test", "test_bpc")]
    found = [f"{name} {summary[key]:.3f}" for name, key in numbers if summary[key] is not None]
    print(
        f"{', '.join(found)} bits per character; {summary['characters_per_second']:,} characters per second, "
        f"{summary['seconds']:,.0f} s of training"
    )
    if summary["clipped"] is not None:
        print(f"{summary['clipped']:.1%} of the gradients were shortened by --clip, which biases them")
    figures = ""
    if importlib.util.find_spec("matplotlib") is not None:
        from artbp.train.figures import draw

        figures = _figures(folder, draw)
    print(f"Metrics, checkpoints{figures}: {folder}")
    print(f"Try `artbp sample {folder}`.")


def _figures(folder: Path, draw: Callable[[list[Path]], list[Path]]) -> str:
    try:
        return " and figures (" + ", ".join(path.name for path in draw([folder]) if path.suffix == ".png") + ")"
    except OSError as error:  # the run itself is finished, and they can be drawn again
        return f", but no figures ({error.strerror}; `artbp plot {folder}` draws them)"


def _curve(values: list[float]) -> str:
    """A line of blocks, the highest for the largest value."""
    blocks, low, high = "▁▂▃▄▅▆▇█", min(values), max(values)
    width = 40
    if len(values) > width:
        values = [values[round(k * (len(values) - 1) / (width - 1))] for k in range(width)]
    return "".join(blocks[round((value - low) / ((high - low) or 1) * (len(blocks) - 1))] for value in values)


def _summarise_all(out: Path, folders: list[tuple[int, Path, bool]]) -> None:
    summaries = [folder / "summary.json" for _, folder, _ in folders]
    found = [read_json(path) for path in summaries if path.exists()]
    complete = len(found) == len(folders) and all(summary["complete"] for summary in found)
    write_json(out / "summary.json", {"complete": complete, "runs": found})


def _out_of_memory(options: Options, error: Exception) -> str:
    longest = [options.length] if options.method == "tbptt" else []
    bounds = [*longest, *([options.window] if options.window else [])]
    window = max(min(bounds) // 2, 1) if bounds else 64
    what = (str(error).splitlines() or ["a MemoryError"])[0]
    return (
        f"memory does not hold this run ({what})\n"
        f"Pass --window {window}, which bounds memory and leaves the gradient as it is, or fewer --lanes, or a smaller "
        "--hidden."
    )


def _disk(folder: Path, error: OSError) -> str:
    what = error.strerror or str(error)
    instead = "Free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "Make it writable"
    return (
        f"{error.filename or folder} cannot be written: {what}.\n"
        f"What was written before is kept. {instead}, then go on with `artbp train --resume {folder}`."
    )


def _fail(message: str, status: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return status
