"""Reads timelines that ``perfetto`` wrote."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any

from torch_lms.errors import UsageError
from torch_lms.report.perfetto import FORMAT, VERSION
from torch_lms.residency import Tier
from torch_lms.sim import LinkSpeeds
from torch_lms.timeline import Lane, Level, Life, Span, Timeline
from torch_lms.trace import Trace, lines, parse


@dataclass(frozen=True)
class TimelineFile:
    """A timeline, and what else is known of its step.

    Attributes:
        timeline: with moments in seconds since the step began.
        about: "what" ("run" or "plan"), "title", "machine", "policy", "limit_bytes" and others, as far as known.
    """

    timeline: Timeline
    about: Mapping[str, Any]

    @property
    def trace(self) -> Trace | None:
        """The same step, as it is without moves; None where the file has none."""
        found = self.about.get("trace")
        return None if found is None else parse(found, "the timeline's trace")

    @property
    def link(self) -> LinkSpeeds | None:
        """The speeds of the link; None where they are not known."""
        found = self.about.get("link")
        if found is None:
            return None
        speeds: dict[str, Any] = {name: inf if value is None else value for name, value in found.items()}
        return LinkSpeeds(**speeds)

    @property
    def tiers(self) -> dict[Tier, int]:
        """The bytes of each lower tier."""
        return {Tier(name): nbytes for name, nbytes in self.about.get("tiers", {}).items()}


def plain_step(trace: Trace, link: LinkSpeeds, tiers: Mapping[Tier, int]) -> dict[str, Any]:
    """What a step can be simulated from, for ``about``."""
    speeds = {name: value if isfinite(value) else None for name, value in asdict(link).items()}
    return {
        "trace": list(lines(trace)),
        "link": speeds,
        "tiers": {tier.value: nbytes for tier, nbytes in tiers.items()},
    }


def read_timeline(written: Mapping[str, Any]) -> TimelineFile:
    """The timeline that ``perfetto`` wrote, perhaps before it knew of lives.

    Raises:
        UsageError: it is of another version, or none of ours.
    """
    about = written.get("otherData", {})
    if about and about.get("format") != FORMAT:
        raise UsageError(f"expected a timeline of torch-lms; got one of another program ({str(about)[:80]})")
    if about and about["version"] != VERSION:
        raise UsageError(f"expected a {FORMAT!r} of version {VERSION}; got version {about['version']}: record it again")
    events = written["traceEvents"]
    lanes = {event["tid"]: Lane(event["args"]["name"]) for event in events if event.get("name") == "thread_name"}
    spans = tuple(_span(event, lanes) for event in events if event["ph"] == "X")
    levels = tuple(_level(event) for event in events if event["ph"] == "C")
    lives = tuple(_life(each) for each in about.get("lives", ()))
    known = {name: value for name, value in about.items() if name not in ("format", "version", "lives")}
    return TimelineFile(Timeline(spans, levels, lives), known)


def _span(event: Mapping[str, Any], lanes: Mapping[int, Lane]) -> Span:
    start_s = event["ts"] / 1e6
    args = event.get("args", {})
    return Span(
        lanes[event["tid"]],
        event["name"],
        start_s,
        start_s + event["dur"] / 1e6,
        args.get("bytes", 0),
        args.get("page", -1),
    )


def _level(event: Mapping[str, Any]) -> Level:
    nbytes = event["args"]
    return Level(event["ts"] / 1e6, nbytes["resident"], nbytes["host"], nbytes["disk"])


def _life(written: Mapping[str, Any]) -> Life:
    born, dead = written["born"], written["dead"]
    op, place = written["born_at"]
    return Life(
        written["page"],
        written["bytes"],
        written["made_by"],
        (op, place),
        None if born is None else born / 1e6,
        None if dead is None else dead / 1e6,
        tuple(use / 1e6 for use in written["uses"]),
    )
