"""A folder of results: plain files, each replaced as a whole, so that at any moment all of them are valid."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from artbp._version import __version__


class FolderError(Exception):
    """A folder that cannot serve: what is wrong with it, and what to do instead."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(f"{what}\n{instead}")


def write_bytes(path: Path, content: bytes) -> None:
    """The file as a whole or, if anything comes between, the one that was there."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # or a power cut might leave the new name with nothing behind it
        os.chmod(temporary, 0o644)  # mkstemp makes files that nobody else may read
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def sync(folder: Path) -> None:
    """Puts new names in the folder on the disk too, where a folder can be opened at all (not on Windows)."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    """One JSON value, indented."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """One JSON value a line."""
    lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    write_bytes(path, "".join(lines).encode())


def read_json(path: Path) -> Any:
    """What `write_json` wrote."""
    return _parse(path, _read(path))


def read_config(folder: Path) -> dict[str, Any]:
    """What a folder's config.json says."""
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise FolderError(
            f"{folder / 'config.json'} holds a {type(config).__name__}, where names and their values are needed.",
            "It was changed after the run. Restore it, or pass another folder.",
        )
    return config


def read_rows(path: Path) -> list[dict[str, Any]]:
    """What `write_rows` wrote."""
    return [_parse(path, line, number) for number, line in enumerate(_read(path).splitlines(), 1)]


def environment() -> dict[str, Any]:
    """What a result may depend on: versions and the kind of machine."""
    return {
        "artbp": __version__,
        "python": platform.python_version(),
        **{package: _version(package) for package in ("torch", "numpy", "matplotlib")},
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": cores(),
    }


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def make(folder: Path) -> None:
    """The folder, if it is not there, and a look at whether files can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        what = "made" if not folder.is_dir() else "written to"
        raise FolderError(f"{folder} cannot be {what}: {error.strerror}.", "Pass another folder with --out.") from None


def refuse_foreign(folder: Path) -> None:
    """Refuses a folder that holds files but no run."""
    if not (folder / "config.json").exists() and folder.is_dir() and any(folder.iterdir()):
        raise FolderError(f"{folder} is not empty, and holds no run.", "Pass a new folder with --out.")


def begin(folder: Path, config: dict[str, Any], overwrite: bool, files: Iterable[str]) -> None:
    """The folder, ready for an experiment that writes those files: nothing of an older one is left among them."""
    refuse_foreign(folder)
    if (folder / "config.json").exists():
        refuse_other(folder, {"experiment": config["experiment"]} if overwrite else config)
    make(folder)
    for name in files:
        (folder / name).unlink(missing_ok=True)


def refuse_other(folder: Path, config: dict[str, Any]) -> None:
    """Refuses to mix two experiments in one folder."""
    found = read_config(folder)
    if found.get("experiment") != config["experiment"]:
        raise FolderError(
            f"{folder} holds another experiment, {found.get('experiment')}.",
            "Pass another folder with --out.",
        )
    different = [name for name in config if found.get(name) != config[name]]
    if different:
        was = ", ".join(f"{name} = {found.get(name)} there and {config[name]} here" for name in different)
        raise FolderError(
            f"{folder} holds a run with other options: {was}.",
            "Pass another folder with --out, or --overwrite to lose that run.",
        )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FolderError(
            f"{path.parent} has no {path.name}: it is no folder of results, or an incomplete one.",
            "Pass the folder that a run was told to write with --out.",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = "it is no text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise FolderError(
            f"{path} cannot be read: {why}.", "Pass the folder that a run was told to write with --out."
        ) from None


def _parse(path: Path, text: str, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno if line is None else line}"
        raise FolderError(
            f"{path} is no valid JSON at {where}: {error.msg}.",
            "It was changed after the run. Restore it, or run again with --overwrite.",
        ) from None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
