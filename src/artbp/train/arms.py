"""Runs side by side: an arm is the runs whose options differ in the seed alone."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from artbp._folder import FolderError, read_json
from artbp.train.run_folder import read_config, runs

# What the estimator's own words say, or what has no part in what a run computes.
_SAID_OTHERWISE = ("method", "mean", "alpha", "length", "window", "estimator")
_NO_PART = ("experiment", "seed", "seeds", "corpus", "ptb", "log_every")


@dataclass(frozen=True)
class Run:
    """A run as its folder has it, finished or not."""

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    digest: str

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.config["seed"])

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return bool(self.summary.get("complete"))

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Its metrics so far; a last line that is still being written is left out."""
        path = self.folder / "metrics.jsonl"
        content = path.read_bytes() if path.exists() else b""
        found = []
        for number, line in enumerate(content.splitlines(keepends=True), 1):
            try:
                if line.endswith(b"\n"):
                    found.append(json.loads(line))
            except ValueError as error:
                raise FolderError(
                    f"{path} is no valid JSON at line {number}: {error}.",
                    "It was changed after the run. Restore it from a copy, or run again with --overwrite.",
                ) from None
        return found

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """The rows of one kind: "train" or "evaluation"."""
        return [row for row in self.rows if row["kind"] == kind]

    @cached_property
    def characters_per_pass(self) -> float | None:
        """Known once a pass is over."""
        ends = self.of_kind("evaluation")
        return ends[-1]["characters"] / (ends[-1]["epoch"] + 1) if ends else None


@dataclass(frozen=True)
class Arm:
    """Runs with the same options, by seed, and what to call them beside the other arms."""

    label: str
    runs: list[Run]

    @property
    def config(self) -> dict[str, Any]:
        """The options, of which only the seed differs."""
        return self.runs[0].config


def arms(folders: list[Path]) -> list[Arm]:
    """All runs in the folders, grouped, in the order in which they are named; refused where two are the same."""
    found: dict[Path, Run] = {}
    for folder in folders:
        for run in runs(folder):
            found.setdefault(run.resolve(), _read(run))
    groups: dict[str, list[Run]] = {}
    for each in found.values():
        groups.setdefault(_key(each), []).append(each)
    for group in groups.values():
        group.sort(key=lambda run: run.seed)
        for one, other in itertools.pairwise(group):
            if one.seed == other.seed:
                raise FolderError(
                    f"{one.folder} and {other.folder} are the same run: their options and their seed, {one.seed}, are.",
                    "Pass one of them.",
                )
    labels = _labels([group[0] for group in groups.values()])
    return [Arm(label, group) for label, group in zip(labels, groups.values(), strict=True)]


def method_name(config: dict[str, Any]) -> str:
    """The estimator in few words."""
    law = f"({config['mean']:g}, α={config['alpha']:g})"
    return {
        "artbp": f"ARTBP {law}",
        "random": f"random cuts {law}",
        "tbptt": f"truncated BPTT ({config['length']})",
        "bptt": "BPTT",
    }[config["method"]]


def window_name(config: dict[str, Any]) -> str:
    """The window in few words; a segment that is never longer than it has none."""
    window = config["window"]
    shorter = config["method"] == "tbptt" and window >= config["length"]
    return "no window" if not window or shorter else f"window={window}"


def _read(folder: Path) -> Run:
    config, summary = read_config(folder), folder / "summary.json"
    return Run(
        folder,
        config,
        read_json(summary) if summary.exists() else {},
        read_json(folder / "vocabulary.json").get("digest", ""),
    )


def _key(run: Run) -> str:
    options = {name: value for name, value in run.config.items() if name not in (*_SAID_OTHERWISE, *_NO_PART)}
    return json.dumps([run.digest, run.config.get("estimator"), options], sort_keys=True)


def _labels(firsts: list[Run]) -> list[str]:
    """What differs between the arms, written shortly."""
    names = [method_name(run.config) for run in firsts]
    differing = _differing([run.config for run in firsts])
    windows = _windows_tell(firsts, names)
    labels = []
    for run, name in zip(firsts, names, strict=True):
        parts = [name] if len(set(names)) > 1 else []
        if windows:
            parts.append(window_name(run.config))
        parts += [_written(option, run.config.get(option)) for option in differing]
        if len({other.digest for other in firsts}) > 1:
            parts.append(_text(run))
        labels.append(", ".join(parts) or name)
    return labels


def _differing(configs: list[dict[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for config in configs for name in config))
    known = (*_SAID_OTHERWISE, *_NO_PART)
    return [name for name in names if name not in known and len({str(config.get(name)) for config in configs}) > 1]


def _windows_tell(firsts: list[Run], names: list[str]) -> bool:
    """Whether arms of one name are told apart by their windows."""
    seen: dict[str, set[Any]] = {}
    for run, name in zip(firsts, names, strict=True):
        seen.setdefault(name, set()).add(window_name(run.config))
    return any(len(windows) > 1 for windows in seen.values())


def _written(option: str, value: Any) -> str:
    if value is None:
        return f"no {option}"
    return f"{option}={value:g}" if isinstance(value, float) else f"{option}={value}"


def _text(run: Run) -> str:
    place = run.config.get("ptb") or run.config.get("corpus")
    return f"on {Path(place).name if place else 'the embedded text'} ({run.digest[:6]})"
