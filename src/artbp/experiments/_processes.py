"""Jobs in processes of their own, which report while they work and stop where they can be continued."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

Work = Callable[[Any, Callable[[], bool]], Iterator[Any]]
"""A job: given its task, and a function that says whether it is asked to stop, it yields a report now and then."""

_PATIENCE = 5.0  # seconds that a job has to reach a place where it can stop
_LOOK_EVERY = 0.2  # seconds


class JobError(Exception):
    """A process ended too early: what happened, and what to do instead."""


class Jobs:
    """Does tasks in processes of one thread each, and hands on what they report.

    The processes are forked from a server that has imported `modules` once, where the system can do that: importing
    torch takes longer than many a job. They do not see a Ctrl-C, which a terminal sends to all: who waits for their
    reports decides.
    """

    def __init__(self, work: Work, tasks: Sequence[Any], processes: int, modules: Sequence[str] = ()) -> None:
        self.work, self.tasks, self.processes = work, tasks, min(processes, len(tasks))
        self.modules, self.context = modules, _context(modules)
        self.busy: dict[Connection, int] = {}  # the connection to a process, and the number of its task
        self.waiting = list(range(len(tasks)))
        self.children: list[Any] = []

    def __enter__(self) -> Jobs:
        prepare(self.modules)
        try:
            for _ in range(self.processes):
                here, there = self.context.Pipe()
                child = self.context.Process(target=_serve, args=(self.work, there), daemon=True)
                child.start()
                there.close()
                self.children.append(child)
                self._next(here)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self.busy:
            connection.close()
        for child in self.children:
            child.terminate()
            child.join()

    def reports(self, interrupted: Callable[[], bool] = lambda: False) -> Iterator[tuple[int, Any]]:
        """(number of the task, report), until all are done; once `interrupted()`, until all have stopped."""
        end = math.inf
        while self.busy and time.monotonic() < end:
            if end == math.inf and interrupted():
                end = time.monotonic() + _PATIENCE
                self._stop()
            yield from self._reports()

    def _stop(self) -> None:
        self.waiting.clear()
        for connection in self.busy:
            with contextlib.suppress(ConnectionError):
                connection.send(None)

    def _reports(self) -> Iterator[tuple[int, Any]]:
        for connection in wait(list(self.busy), _LOOK_EVERY):
            if not isinstance(connection, Connection):
                continue
            try:
                message = connection.recv()
            except (EOFError, ConnectionError):
                raise JobError(
                    "a process of this command ended before its job did.\nIf nothing above says why, it may have been "
                    "short of memory: run with fewer --jobs. What is finished is kept."
                ) from None
            if message is None:
                self._next(connection)
            else:
                yield self.busy[connection], message[0]

    def _next(self, connection: Connection) -> None:
        self.busy.pop(connection, None)
        if not self.waiting:
            connection.close()
            return
        number = self.waiting.pop(0)
        connection.send((self.tasks[number],))
        self.busy[connection] = number


def _serve(work: Work, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while (task := connection.recv()) is not None:
            for report in work(task[0], connection.poll):
                connection.send((report,))
            connection.send(None)
    except (EOFError, ConnectionError):
        return  # the one who asked has gone


def _context(modules: Sequence[str]) -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")  # Windows
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    return context


def prepare(modules: Sequence[str]) -> None:
    """Lets the server that processes are forked from import `modules` now, while the caller does other things."""
    if _context(modules).get_start_method() != "forkserver":
        return
    if not _in_main_thread():
        forkserver.ensure_running()
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server inherits that, and those it forks
    try:
        forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def interrupts_as_flag() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C raises nothing, and the function says that it came; a second one is as usual."""
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.signal(number, before)

    if not _in_main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, before)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()  # the only one that may handle signals
