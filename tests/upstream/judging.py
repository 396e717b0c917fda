"""From the runs of a test to a verdict."""

from dataclasses import dataclass

from tests.upstream.outcome import EMPTY_MODE, PLAIN, Outcome
from tests.upstream.process import Worker
from tests.upstream.settings import SETTINGS

ONLY_LMS, NAMED = "only LMS fails", "named exception"
EQUAL, ANY_MODE, UNREPEATABLE = "equal", "as any mode", "unrepeatable"
SKIPPED, FAILS_PLAIN, NOT_RUN = "skipped", "fails plain", "not run"
RUN = (EQUAL, ANY_MODE, UNREPEATABLE, ONLY_LMS, NAMED)
"""The states of tests that ran under LMS."""

_SHARE_TO_REPEAT = 0.25
"""Of the time-out: what takes longer is slow, not stuck, and is not repeated. To plan it may take as long again."""


@dataclass(slots=True)
class Verdict:
    """On one test at one setting.

    Attributes:
        state: one of those above.
        detail: the last line of the error, or what became of the process.
        evictions, fetches, recomputes, planned_steps: what LMS did.
        compared: values whose bits were compared.
        seconds: under LMS, and plain.
    """

    file: str
    test: str
    setting: str
    state: str
    detail: str = ""
    evictions: int = 0
    fetches: int = 0
    recomputes: int = 0
    planned_steps: int = 0
    compared: int = 0
    seconds: tuple[float, float] = (0.0, 0.0)


class Judge:
    """Runs one test in all ways that it takes to tell."""

    def __init__(self, worker: Worker, file: str, test: str) -> None:
        self._worker, self._file, self._test = worker, file, test
        self._plain: dict[int, Outcome] = {}
        self._once_s = 0.0

    def verdict(self, setting: str) -> Verdict:
        """Whether the test passes at this setting as it does without LMS."""
        repeats = SETTINGS[setting].repeats
        plain = self._plain_run(repeats)
        verdict = Verdict(self._file, self._test, setting, FAILS_PLAIN, plain.detail)
        if plain.state != "passed":
            verdict.state = SKIPPED if plain.state == "skipped" else FAILS_PLAIN
            return verdict
        if repeats > 1 and self._once_s * repeats > self._worker.seconds * _SHARE_TO_REPEAT:
            verdict.state, verdict.detail = NOT_RUN, f"takes {self._once_s:.0f} s once: too long to repeat"
            return verdict
        paged = self._ask(setting, repeats)
        self._once_s = max(self._once_s, paged.seconds / repeats)
        verdict.state = EQUAL
        if not paged.equals(plain):
            verdict.state, paged = self._explain(setting, repeats, plain, paged)
        verdict.detail = _difference(plain, paged)
        verdict.evictions, verdict.fetches = paged.evictions, paged.fetches
        verdict.planned_steps, verdict.recomputes = paged.planned_steps, paged.recomputes
        verdict.compared, verdict.seconds = len(paged.digests), (paged.seconds, plain.seconds)
        return verdict

    def _explain(self, setting: str, repeats: int, plain: Outcome, paged: Outcome) -> tuple[str, Outcome]:
        """Is the difference LMS's? With the run that shows it."""
        again = self._ask(PLAIN, repeats)
        if again.state != "passed":  # a test that passes once in a process
            self._worker.close()
            paged = self._ask(setting, repeats)
            if paged.equals(plain):
                return EQUAL, paged
            self._worker.close()
        elif paged.state == "passed" and not again.equals(plain):
            return UNREPEATABLE, paged
        under_mode = self._ask(EMPTY_MODE, repeats)
        if under_mode.equals(paged) or under_mode.fails_as(paged):
            return ANY_MODE, paged
        self._worker.close()  # what failed may have left things behind
        return ONLY_LMS, paged

    def _plain_run(self, repeats: int) -> Outcome:
        """Once for all settings. A test that fails is not repeated."""
        if repeats not in self._plain:
            once = self._plain.setdefault(1, self._plain.get(1) or self._ask(PLAIN, 1))
            if repeats > 1:
                self._plain[repeats] = self._ask(PLAIN, repeats) if once.state == "passed" else once
        return self._plain[repeats]

    def _ask(self, way: str, repeats: int) -> Outcome:
        return self._worker.ask(self._test, way, repeats)


def _difference(plain: Outcome, paged: Outcome) -> str:
    if paged.state != "passed":
        return paged.detail if paged.state == "failed" else f"{paged.state}: {paged.detail}"
    if plain.digests == paged.digests:
        return ""
    if len(plain.digests) != len(paged.digests):
        return f"bits differ: {len(plain.digests)} values compared plain, {len(paged.digests)} here"
    places = [number for number, pair in enumerate(zip(plain.digests, paged.digests, strict=True)) if len({*pair}) > 1]
    return f"bits differ: {len(places)} of {len(plain.digests)} compared values, the first is number {places[0]}"
