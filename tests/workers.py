"""Processes that answer a command's questions, one after the other: one that crashes or hangs costs one answer."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class _Worker:
    """One process, started anew when it dies."""

    def __init__(self, command: list[str], seconds: float) -> None:
        self._command, self._seconds = command, seconds
        self._process = self._start()

    def ask(self, question: str) -> dict[str, Any] | str:
        """The answer; how the process ended, if there is none."""
        timer = threading.Timer(self._seconds, self._process.kill)
        timer.start()
        try:
            print(question, file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        code = self._process.wait()
        self._process = self._start()
        return f"the process ended with {code}"

    def close(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.wait()

    def _start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answers(
    command: list[str], questions: Iterable[str], workers: int, seconds: float
) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Each question with its answer, as they come; instead of that how the process ended, if it died or took longer.

    Args:
        command: starts a process that calls ``serve``.
        questions: a line each.
        workers: how many processes there are at once.
        seconds: that an answer may take.
    """
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    answered: queue.SimpleQueue[tuple[str, dict[str, Any] | str]] = queue.SimpleQueue()
    asked = list(questions)
    for question in asked:
        waiting.put(question)

    def drain() -> None:
        worker = _Worker(command, seconds)
        while True:
            try:
                question = waiting.get_nowait()
            except queue.Empty:
                break
            answered.put((question, worker.ask(question)))
        worker.close()

    for _ in range(workers):
        threading.Thread(target=drain, daemon=True).start()
    for _ in asked:
        yield answered.get()


def serve(answer: Callable[[str], dict[str, Any]]) -> None:
    """Answer what comes on standard input. What is printed meanwhile goes to standard error."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(line.strip())), file=told, flush=True)
