"""A run from its first update to its last, or from its last checkpoint on: metrics, evaluations, checkpoints."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from artbp._folder import FolderError, write_json
from artbp.train.checkpoints import Checkpoints
from artbp.train.corpus import Corpus
from artbp.train.evaluation import Evaluation, evaluate, fitting_lanes
from artbp.train.group import Group
from artbp.train.options import Options
from artbp.train.progress import Progress
from artbp.train.run_folder import Metrics
from artbp.train.training import Training, Update


class DivergedError(Exception):
    """A loss that is no number any more."""

    def __init__(self, update: int) -> None:
        self.update = update
        super().__init__(f"the loss is no finite number at update {update:,}")


class StoppedError(Exception):
    """A run that was asked to stop, and has saved where it stands."""


# What a checkpoint and config.json may differ in: where the text is (it has a digest), and what follows from the rest.
_FREE = ("corpus", "ptb", "digest", "estimator")


class Session:
    """One run in its folder.

    Whatever ends it, the folder stays valid: rows and checkpoints are on the disk before the run goes on, and a resumed
    run cuts the rows back to its checkpoint. A checkpoint is written only when every loss before it was finite.
    """

    def __init__(
        self,
        options: Options,
        folder: Path,
        corpus: Corpus,
        group: Group,
        device: torch.device,
        config: dict[str, Any],
        stop_asked: Callable[[], bool],
    ) -> None:
        self.options, self.folder, self.corpus, self.group, self.device = options, folder, corpus, group, device
        self.config, self.stop_asked = config, stop_asked
        self.training = Training(options, corpus, group, device)
        self.leads = group.rank == 0
        self.metrics, self.checkpoints = Metrics(folder), Checkpoints(folder)
        self.pending: list[Update] = []  # since the last row, their tensors perhaps still being computed
        self.drained: list[dict[str, float]] = []  # the same as numbers
        self.best: dict[str, Any] = {"bpc": None, "epoch": None}
        self.of_pass: dict[str, Any] = {"epoch": 0, "nats": 0.0, "steps": 0}  # the training loss of the newest pass
        self.clipped = 0  # updates whose gradient was shortened
        self.evaluated = 0  # passes whose evaluation is done
        self.seconds = 0.0  # of training, evaluations left out
        self.peak = 0
        _forget_peak(device)  # which another run in this process may have raised
        self._clock = self._saved_at = time.monotonic()
        self._board: Any = None

    # From the first update to the last

    def resume(self) -> list[str]:
        """Goes back to the newest whole checkpoint, if there is one; returns what there is to say about that."""
        saved, notes = self.group.share(self._take_up)
        if saved is None:
            return [*notes, "There is no checkpoint yet: the run starts from its beginning."]
        self.group.agree(lambda: self._load(saved))
        pass_ = min(self.training.epoch + 1, self.options.epochs)
        notes.append(f"Going on from update {self.training.update:,}, in pass {pass_} of {self.options.epochs}.")
        before = len(saved["random"])
        if before != self.group.size and (self.options.dropout or self.options.weight_dropout):
            notes.append(
                f"It ran in {_processes(before)}, and dropout is drawn by each: it is another one in "
                f"{_processes(self.group.size)}."
            )
        if saved.get("torch", torch.__version__) != torch.__version__:
            notes.append(
                f"It ran with torch {saved['torch']}; with {torch.__version__} here, results may differ in their "
                "last bits."
            )
        return notes

    def _take_up(self) -> tuple[dict[str, Any] | None, list[str]]:
        saved, notes = self.checkpoints.take_up()
        if saved is not None:
            begun = saved["config"]
            different = [name for name in begun if name not in _FREE and self.config.get(name) != begun[name]]
            if different:
                was = ", ".join(f"{name} = {self.config.get(name)} and was {begun[name]}" for name in different)
                raise FolderError(
                    f"{self.folder / 'config.json'} was changed since the checkpoint was written: {was}.",
                    "Change it back to go on, or start a new run with --out.",
                )
        self.metrics.cut_back(saved["rows"] if saved else 0)
        return saved, notes

    def _load(self, saved: dict[str, Any]) -> None:
        try:
            self.training.load_state_dict(saved)
            self.drained, self.best, self.seconds = saved["since_row"], saved["best"], saved["seconds"]
            self.of_pass, self.clipped = saved["of_pass"], saved["clipped"]
            self.metrics.rows = saved["rows"]
            self.evaluated = saved.get("evaluated", saved["epoch"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise FolderError(
                f"the checkpoint in {self.checkpoints.folder} does not fit this run: {type(error).__name__}, "
                f"{str(error).splitlines()[0]}",
                "Go on with the version of artbp that env.json names, or start a new run with --out.",
            ) from None

    def run(self, progress: Progress) -> dict[str, Any]:
        """Trains to the end and returns the summary; raises StoppedError or DivergedError where it ends before."""
        training = self.training
        self._summarise("running")
        self._clock = self._saved_at = time.monotonic()
        try:
            while self.evaluated < self.options.epochs and not self._is_stale():
                if any(self.group.gather(self.stop_asked())):
                    raise StoppedError  # there is nothing that is not in the folder
                if training.epoch == self.evaluated:
                    for update in training.updates():
                        self._take(update, progress)
                    if self.pending or self.drained:
                        self._row(progress, training.epoch - 1)
                self._evaluate(progress)
            test = self._test()
        except DivergedError:
            self._summarise("diverged")
            raise
        except StoppedError:
            self._summarise("stopped")
            raise
        return self._summarise("finished", test)

    def _take(self, update: Update, progress: Progress) -> None:
        self.pending.append(update)
        training = self.training
        progress.advance(update.steps * self.options.lanes)
        row_due = len(self.pending) + len(self.drained) >= self.options.log_every
        stop = save = False
        # Alone, nothing has to be waited for; in a group, what was asked for comes with the gradients.
        if self.group.size == 1:
            stop, save = self.stop_asked(), self._save_due()
        else:
            training.asked = torch.tensor([float(self.stop_asked()), float(self.leads and self._save_due())])
            if self.device.type == "cpu" or row_due:
                asked = torch.stack([update.asked for update in self.pending]).sum(0).tolist()
                stop, save = asked[0] > 0, asked[1] > 0
        if row_due:
            self._row(progress, training.epoch)
        if stop or save:
            self._save()
        if stop:
            raise StoppedError

    def _save_due(self) -> bool:
        return time.monotonic() - self._saved_at >= self.options.checkpoint_every

    # Rows

    def _drain(self) -> None:
        """Waits for the losses; none of those that are kept is infinite or no number."""
        if not self.pending:
            return
        losses, norms = ([float(value) for value in _host([row[i] for row in self.pending])] for i in (0, 3))
        first = self.training.update - len(self.pending) + 1
        for number, (update, loss, norm) in enumerate(zip(self.pending, losses, norms, strict=True), first):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise DivergedError(number)
            self.drained.append({"loss": loss, "steps": update.steps, "rate": update.rate, "norm": norm})
        self.pending.clear()

    def _row(self, progress: Progress, epoch: int) -> None:
        self._drain()
        lengths = [int(update["steps"]) for update in self.drained]
        norms = [update["norm"] for update in self.drained]
        clip, nats, steps = self.options.clip, math.fsum(update["loss"] for update in self.drained), sum(lengths)
        before = self.of_pass if self.of_pass["epoch"] == epoch else {"nats": 0.0, "steps": 0}
        self.of_pass = {"epoch": epoch, "nats": before["nats"] + nats, "steps": before["steps"] + steps}
        bpc = self._bpc(nats, steps)
        clipped = 0 if clip is None else sum(norm > clip for norm in norms)
        self.clipped += clipped
        self.seconds += self._lap()
        self.peak = max(self.peak, _peak_memory(self.device))
        row = {
            "bpc": bpc,
            "rate": self.drained[-1]["rate"],
            "lengths": lengths,
            "gradient_norm": math.fsum(norms) / len(norms),
            "clipped": None if clip is None else clipped / len(norms),
        }
        self.drained = []
        self._write("train", epoch, **row, memory=self.peak, seconds=round(self.seconds, 3))
        progress.train(bpc, self.training)

    def _bpc(self, nats: float, steps: int) -> float:
        return nats / (steps * self.options.lanes * math.log(2))

    @property
    def train_bpc(self) -> float | None:
        """Of the newest pass so far: the loss that was trained on, while the parameters moved."""
        return self._bpc(self.of_pass["nats"], self.of_pass["steps"]) if self.of_pass["steps"] else None

    def _write(self, kind: str, epoch: int, **values: Any) -> None:
        training = self.training
        if self.leads:
            at = {"update": training.update, "step": training.steps, "characters": training.steps * self.options.lanes}
            self.metrics.append(kind=kind, epoch=epoch, **at, **values)
            self._to_board(kind, at["characters"], values)
        else:
            self.metrics.rows += 1

    # Evaluations

    def _evaluate(self, progress: Progress) -> None:
        """After a pass: the validation text, and a checkpoint."""
        valid, seconds = self._evaluation("valid", self._pause)
        epoch = self.training.epoch - 1
        if valid is not None:
            values = {
                "bpc": valid.bpc,
                "median_lane_bpc": valid.median_lane_bpc,
                "worst_lane_bpc": valid.worst_lane_bpc,
            }
            self._write("evaluation", epoch, split="valid", **values, seconds=round(seconds, 3))
        self.evaluated = self.training.epoch
        better = valid is not None and (self.best["bpc"] is None or valid.bpc < self.best["bpc"])
        if better and valid is not None:
            self.best = {"bpc": valid.bpc, "epoch": epoch}
        self._save(best=better or valid is None)
        self._summarise("running")
        progress.evaluated(self.training, valid.bpc if valid else None, self.train_bpc)

    def _is_stale(self) -> bool:
        """Whether so many passes as --patience says were no better than the best one."""
        best, patience = self.best["epoch"], self.options.patience
        return bool(patience) and best is not None and self.evaluated - 1 - best >= patience

    def _test(self) -> Evaluation | None:
        """The test text, by the parameters that were best on the validation text."""
        best = self.group.share(lambda: self.checkpoints.load_best()["model"])
        self.training.model.load_state_dict(best)
        return self._evaluation("test", self._leave)[0]

    def _leave(self) -> None:
        """Ends an evaluation where this process, alone, is asked to stop. (Several could not agree on the moment.)"""
        if self.group.size == 1 and self.stop_asked():
            raise StoppedError

    def _pause(self) -> None:
        """The same, with a checkpoint: a resumed run begins with this evaluation."""
        try:
            self._leave()
        except StoppedError:
            self._lap()
            self._save()
            raise

    def _evaluation(self, split: str, between: Callable[[], None]) -> tuple[Evaluation | None, float]:
        symbols = self.corpus.splits[split]
        if len(symbols) < 2:
            return None, 0.0
        self.seconds += self._lap()
        self.peak = max(self.peak, _peak_memory(self.device))
        lanes = fitting_lanes(symbols, self.options.evaluation_lanes)
        model, training = self.training.model, self.training
        with training.autocast():
            result = evaluate(model, symbols, lanes=lanes, device=self.device, group=self.group, between=between)
        _forget_peak(self.device)  # its chunks of steps are larger than a window, and are no part of training
        if not math.isfinite(result.bpc):
            raise DivergedError(training.update)
        return result, self._lap()

    # Checkpoints and the summary

    def _save(self, *, best: bool = False) -> None:
        self._drain()
        self.seconds += self._lap()
        state = {
            **self.training.state_dict(),
            "config": self.config,
            "vocabulary": self.corpus.vocabulary.to_json(),
            "since_row": self.drained,
            "best": self.best,
            "of_pass": self.of_pass,
            "clipped": self.clipped,
            "evaluated": self.evaluated,
            "rows": self.metrics.rows,
            "seconds": self.seconds,
        }
        if self.leads:
            self.metrics.sync()
            self.checkpoints.save(state, best=best)
        self._saved_at = time.monotonic()

    def _summarise(self, outcome: str, test: Evaluation | None = None) -> dict[str, Any]:
        training = self.training
        characters = training.steps * self.options.lanes
        summary = {
            "complete": outcome == "finished",
            "outcome": outcome,
            "seed": self.options.seed,
            "estimator": self.config["estimator"],
            "epochs": training.epoch,
            "updates": training.update,
            "steps": training.steps,
            "characters": characters,
            "train_bpc": self.train_bpc,
            "valid_bpc": self.best["bpc"],
            "best_epoch": self.best["epoch"],
            "test_bpc": None if test is None else test.bpc,
            "test_median_lane_bpc": None if test is None else test.median_lane_bpc,
            "test_worst_lane_bpc": None if test is None else test.worst_lane_bpc,
            "clipped": self.clipped / training.update if self.options.clip is not None and training.update else None,
            "parameters": sum(parameter.numel() for parameter in training.model.parameters()),
            "seconds": round(self.seconds, 3),
            "characters_per_second": round(characters / self.seconds) if self.seconds else None,
            "peak_memory": self.peak or None,
        }
        if self.leads:
            write_json(self.folder / "summary.json", summary)
        return summary

    def _lap(self) -> float:
        now = time.monotonic()
        lap, self._clock = now - self._clock, now
        return lap

    def _to_board(self, kind: str, characters: int, values: dict[str, Any]) -> None:
        if not self.options.tensorboard:
            return
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            # What was written after the checkpoint that the run went on from is not shown.
            self._board = SummaryWriter(self.folder / "tensorboard", purge_step=characters)
        name = values.get("split", kind)
        for key, value in values.items():
            if isinstance(value, float | int):
                self._board.add_scalar(f"{key}/{name}", value, characters)
        self._board.flush()


def _host(tensors: list[Any]) -> Any:
    stacked: Tensor = torch.stack([tensor.detach().double() for tensor in tensors])
    return stacked.tolist()


def _peak_memory(device: torch.device) -> int:
    """Bytes at the highest moment so far: of tensors on an accelerator, of the whole process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if os.name != "posix":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _forget_peak(device: torch.device) -> None:
    """Where the peak can be told anew from here on: on an accelerator."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _processes(number: int) -> str:
    return "one process" if number == 1 else f"{number} processes"
