"""What the machine did while a process ran: processor and disk from /proc, a GPU's use, link and power from NVML."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_EVERY_S = 0.25
_MAX_SAMPLES = 240
"""More are thinned out: every second one goes."""

Reading = Mapping[str, float]


class Sampler:
    """Looks at processes from time to time, on a thread of its own, until ``stop``. Figures are of all together.

    Args:
        pids: of the processes.
        gpu: gives figures of a GPU; None where there is none.
    """

    def __init__(self, pids: Sequence[int], gpu: Callable[[], Reading] | None) -> None:
        self._pids = pids
        self._gpu = gpu
        self._began_s = time.monotonic()
        self._last = (self._began_s, self._used())
        self._every_s = _EVERY_S
        self._rows: list[dict[str, Any]] = []
        self._is_counted = False
        self._is_at_work = True
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="torch-lms-bench", daemon=True)
        self._thread.start()

    def counts_now(self) -> None:
        """From here on steps count."""
        self._is_counted = True

    def sleep(self) -> None:
        """The process waits for its turn: there is nothing to see."""
        self._is_at_work = False

    def wake(self) -> None:
        """It is at work again."""
        self._last = (time.monotonic(), self._used())
        self._is_at_work = True

    def stop(self) -> dict[str, list[Any]]:
        """End; gives a list for each figure."""
        self._is_over.set()
        self._thread.join()
        names = list(dict.fromkeys(name for row in self._rows for name in row))
        return {name: [row.get(name) for row in self._rows] for name in names}

    def _work(self) -> None:
        while not self._is_over.wait(self._every_s):
            row = self._row() if self._is_at_work else {}
            if row is None:
                return
            if not row:
                continue
            self._rows.append(row)
            if len(self._rows) > _MAX_SAMPLES:
                del self._rows[::2]
                self._every_s *= 2

    def _row(self) -> dict[str, Any] | None:
        """What is seen now; None if the processes are gone."""
        now_s = time.monotonic()
        used = self._used()
        if not used:
            return None
        before_s, before = self._last
        self._last = (now_s, used)
        row: dict[str, Any] = {"at_s": round(now_s - self._began_s, 3), "is_counted": self._is_counted}
        row["rss_bytes"] = int(used.pop("rss_bytes"))
        for name, value in used.items():
            row[name] = round(max(0.0, value - before.get(name, value)) / (now_s - before_s), 3)
        if self._gpu is not None:
            row |= self._gpu()
        return row

    def _used(self) -> dict[str, float]:
        found: Counter[str] = Counter()
        for pid in self._pids:
            found.update(_used(pid))
        return dict(found)


def _used(pid: int) -> dict[str, float]:
    """Processor seconds and bytes of the disk so far, and resident bytes now; nothing if the process is gone."""
    folder = Path("/proc", str(pid))
    try:
        after_name = (folder / "stat").read_text().rpartition(")")[2].split()
        pages = int((folder / "statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return {}
    ticks = int(after_name[11]) + int(after_name[12])
    found = {"cpu_cores": ticks / os.sysconf("SC_CLK_TCK"), "rss_bytes": float(pages * os.sysconf("SC_PAGE_SIZE"))}
    with suppress(OSError, ValueError):  # some kernels keep it from us
        io = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
        found["disk_read_bytes_per_s"] = float(io["read_bytes"])
        found["disk_write_bytes_per_s"] = float(io["write_bytes"])
    return found


def gpu_reader(index: int = 0) -> Callable[[], Reading] | None:
    """What gives a GPU's figures now; None where NVML cannot be asked (``pip install 'torch-lms[bench]'``)."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    except Exception:  # not installed, or there is no driver: NVML's own kinds of error
        return None

    def read() -> Reading:
        found: dict[str, float] = {}
        with suppress(pynvml.NVMLError):
            found["gpu_use"] = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        with suppress(pynvml.NVMLError):
            found["gpu_power_w"] = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
        with suppress(pynvml.NVMLError):
            kilobytes = pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
            found["link_to_host_bytes_per_s"] = 1000.0 * kilobytes
        with suppress(pynvml.NVMLError):
            kilobytes = pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
            found["link_to_device_bytes_per_s"] = 1000.0 * kilobytes
        return found

    return read
