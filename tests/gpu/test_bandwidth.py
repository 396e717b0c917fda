"""``doctor``'s measurements on an accelerator."""

import pytest
import torch

from torch_lms.runtime.bandwidth import device_links
from torch_lms.runtime.probe import probe

pytestmark = pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")


@pytest.mark.usefixtures("_times_count")
def test_device_links_are_measured_and_plausible() -> None:
    device = torch.accelerator.current_accelerator()
    assert device is not None
    up, down, both = device_links(device, 8 << 30)
    assert (up.name, down.name, both.name) == ("host to device", "device to host", "both ways at once")
    for link in (up, down, both):
        assert link.bytes_per_s is not None, link.note
        assert 1e9 < link.bytes_per_s < 1e12
    assert both.bytes_per_s > 0.9 * max(up.bytes_per_s, down.bytes_per_s)


def test_probe_finds_the_accelerator() -> None:
    machine = probe(measure=False)
    assert len(machine.accelerators) == torch.accelerator.device_count()
    assert machine.page_locking.locked_bytes
    assert machine.auto_limit.nbytes <= machine.accelerators[0].total_bytes
