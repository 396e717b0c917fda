"""The catalogue of machines: what it loads and refuses, what ranks get of shared ways, and that its document agrees."""

import dataclasses
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from torch_lms.errors import UsageError
from torch_lms.machine import Accelerator, Disk, Link, Machine, Switch, default_host_costs, load, names

DOCUMENT = (Path(__file__).parents[2] / "docs" / "machines.md").read_text()

LINK = Link(
    nominal_bytes_per_s=16e9,
    to_device_bytes_per_s=12e9,
    to_host_bytes_per_s=10e9,
    duplex_bytes_per_s=20e9,
    latency_s=1e-5,
)


def gbps(*speeds: float) -> list[float]:
    return [pytest.approx(speed * 1e9) for speed in speeds]


def speeds(machine: Machine, ranks: int) -> list[list[float]]:
    """To the device, to the host, both together: of each rank."""
    return [
        [link.to_device_bytes_per_s, link.to_host_bytes_per_s, link.both_bytes_per_s] for link in machine.links(ranks)
    ]


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "mine.toml"
        file.write_text(text)
        return file

    return write


# -- loading ---------------------------------------------------------------------------------------------------------


def test_the_names() -> None:
    assert names() == (
        "ac922-v100-16gb",
        "ac922-v100-32gb",
        "xeon-8xv100-16gb",
        "dgx-station-v100-16gb",
        "aws-p3.8xlarge",
        "rtx4090-24gb",
        "rtx3060-12gb",
        "a100-40gb-pcie",
        "a100-80gb-sxm",
        "h100-80gb-pcie5",
        "h200-141gb-pcie5",
        "gh200-96gb",
    )


@pytest.mark.parametrize("name", names())
def test_every_machine_loads(name: str) -> None:
    machine = load(name)
    assert machine.name == name
    assert machine.title
    assert len(machine.links(machine.gpus)) == machine.gpus
    assert 0.9 < machine.accelerator.usable_bytes / machine.accelerator.memory_bytes < 1


def test_figures_of_an_entry() -> None:
    machine = load("ac922-v100-16gb")
    assert machine.accelerator.memory_bytes == 16160 * 2**20
    assert machine.accelerator.tf32_flop_per_s is None
    assert machine.link.to_device_bytes_per_s == 71.4e9
    assert machine.host_bytes == 512 * 2**30
    assert (machine.switch, machine.disk) == (None, None)


def test_entries_of_the_same_gpu_share_its_figures() -> None:
    assert load("ac922-v100-16gb").accelerator == load("xeon-8xv100-16gb").accelerator
    small, large = load("ac922-v100-16gb"), load("ac922-v100-32gb")
    assert large.accelerator.memory_bytes == 32480 * 2**20
    assert dataclasses.replace(large, name=small.name, title=small.title, accelerator=small.accelerator) == small


def test_a_file_like_an_entry(put: Callable[[str], Path]) -> None:
    file = put('like = "rtx4090-24gb"\nhost_bytes = "128GiB"\naccelerator.memory_bytes = "48GiB"\n')
    machine, base = load(file), load("rtx4090-24gb")
    assert machine.name == "mine"
    assert machine.host_bytes == 128 * 2**30
    assert machine.accelerator == dataclasses.replace(base.accelerator, memory_bytes=48 * 2**30)
    assert (machine.link, machine.disk, machine.title) == (base.link, base.disk, base.title)
    assert load(str(file)) == machine


def test_a_named_part_replaces_the_whole_part(put: Callable[[str], Path]) -> None:
    """Nothing of the old link stays, not even a figure that the new one leaves out."""
    machine = load(put('like = "rtx4090-24gb"\nlink = "nvlink2-x3"\n'))
    assert machine.link == load("ac922-v100-16gb").link


def test_a_part_like_another(put: Callable[[str], Path]) -> None:
    machine = load(put('like = "rtx4090-24gb"\n[accelerator]\nlike = "a100-pcie-40gb"\nname = "A100X"\n'))
    assert machine.accelerator == dataclasses.replace(load("a100-40gb-pcie").accelerator, name="A100X")


def test_none_takes_away(put: Callable[[str], Path]) -> None:
    machine = load(put('like = "dgx-station-v100-16gb"\nswitch = "none"\ndisk = "none"\npeer_bytes_per_s = "none"\n'))
    assert (machine.switch, machine.disk, machine.peer_bytes_per_s) == (None, None, None)


def test_a_file_of_its_own(put: Callable[[str], Path]) -> None:
    text = """
        title = "two small GPUs"
        gpus = 2
        accelerator = "rtx3060-12gb"
        switch = { gpus = 2, uplink = "pcie3-x16" }
        sockets = 1
        host_bytes = 64000000000
        host_bytes_per_s = 40e9
        disk = { write_bytes_per_s = 1e9, read_bytes_per_s = 2e9, nbytes = "1TB" }
        [link]
        nominal_bytes_per_s = 16e9
        to_device_bytes_per_s = 12e9
        to_host_bytes_per_s = 10e9
        duplex_bytes_per_s = 20e9
        latency_s = 1e-5
    """
    machine = load(put(text))
    assert machine.link == LINK
    assert machine.switch == Switch(gpus=2, uplink=load("xeon-8xv100-16gb").link)
    assert machine.disk == Disk(write_bytes_per_s=1e9, read_bytes_per_s=2e9, nbytes=10**12)


# -- refusals --------------------------------------------------------------------------------------------------------


def test_an_unknown_name_lists_near_ones_and_all() -> None:
    with pytest.raises(UsageError, match=r"no machine is called 'rtx4090'; near it: rtx4090-24gb") as got:
        load("rtx4090")
    assert all(name in str(got.value) for name in names())
    with pytest.raises(UsageError, match=r"'toaster'; give one of: .* or the path of a \.toml file"):
        load("toaster")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the machine file .*gone\.toml: No such file"):
        load(tmp_path / "gone.toml")


def test_a_file_that_is_not_toml(put: Callable[[str], Path]) -> None:
    with pytest.raises(UsageError, match=r"mine\.toml is not a TOML file: .*line 1"):
        load(put("gpus: 4\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('like = "rtx4090"', r"no machine is called 'rtx4090'; near it: rtx4090-24gb"),
        ("like = 3", r"no machine is called 3; give one of"),
        ('accelerator = "v100"', r"no accelerator is called 'v100'; .*v100-sxm2-16gb.*or a table of its figures"),
        ('switch = { gpus = 2, uplink = "pcie9" }', r"no link is called 'pcie9'"),
        ("gpu = 1", r"unknown key 'gpu'; did you mean 'gpus'\?"),
        ("link.speed = 1e9", r"unknown key 'link\.speed'; keys are: nominal_bytes_per_s, "),
        ('name = "mine"', r"unknown key 'name'; "),
        ("[disk]\nlike = 'nvme'\nbytes = 1", r"unknown key 'disk\.bytes'; did you mean 'nbytes'\?"),
        ("title = ''", r"'title' must be a text; got ''"),
        ("gpus = 1.0", r"'gpus' must be a whole number; got 1\.0"),
        ("gpus = true", r"'gpus' must be a whole number; got True"),
        ("gpus = 0", r"gpus must be a whole number of at least 1; got 0"),
        ("sockets = 0", r"sockets must be a whole number of at least 1; got 0"),
        ("gpus = 3\nsockets = 2", r"gpus must be a multiple of sockets \(2\); got 3"),
        ("host_bytes = '64 gold'", r"host_bytes must be bytes as an int, a string such as .*; got '64 gold'"),
        ("host_bytes = 64e9", r"host_bytes must be bytes as an int, .*; got 64000000000\.0"),
        ("host_bytes = 0", r"host_bytes must be a positive number; got 0"),
        ("host_bytes_per_s = '80GB'", r"'host_bytes_per_s' must be a number; got '80GB'"),
        ("host_bytes_per_s = nan", r"host_bytes_per_s must be a positive number; got nan"),
        ("peer_bytes_per_s = inf", r"peer_bytes_per_s must be a positive number; got inf"),
        ("peer_bytes_per_s = false", r"'peer_bytes_per_s' must be a number; got False"),
        ("disk = 1", r"'disk' must be a table, or a name of the catalogue; got 1"),
        ("accelerator.reserved_bytes = '30GiB'", r"reserved_bytes must be from 0 to .*\(memory_bytes\)"),
        ("accelerator.tf32_flop_per_s = -1.0", r"tf32_flop_per_s must be a positive number; got -1\.0"),
        ("link.to_host_bytes_per_s = 40e9", r"to_host_bytes_per_s must be from 0 to 3\.2e\+10 \(nominal_bytes_per_s\)"),
        ("link.to_host_bytes_per_s = 0", r"to_host_bytes_per_s must be a positive number; got 0\.0"),
        ("link.duplex_bytes_per_s = 60e9", r"duplex_bytes_per_s must be from 2\.6e\+10 to 5\.2e\+10 \(both direct"),
        ("link.duplex_bytes_per_s = 20e9", r"duplex_bytes_per_s must be from 2\.6e\+10"),
        ("switch = { gpus = 1, uplink = 'pcie3-x16' }", r"gpus must be a whole number of at least 2; got 1"),
        ("switch = { gpus = 2, uplink = 'pcie3-x16' }", r"switch\.gpus must divide the 1 GPUs of a socket; got 2"),
    ],
)
def test_a_file_is_refused_by_key(put: Callable[[str], Path], text: str, message: str) -> None:
    file = put(text if text.startswith("like") else f'like = "rtx4090-24gb"\n{text}\n')
    with pytest.raises(UsageError, match=rf"mine\.toml: {message}"):
        load(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus = 1", r"missing key 'title': give a text, or say `like` and a machine's name"),
        ("title = 'x'", r"missing key 'gpus': give a whole number, or"),
        ("title = 'x'\ngpus = 1", r"missing key 'accelerator': give a table, or a name of the catalogue, or"),
        ("title = 'x'\ngpus = 1\naccelerator.name = 'y'", r"missing key 'accelerator\.memory_bytes': give bytes"),
    ],
)
def test_a_missing_key_is_named(put: Callable[[str], Path], text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(put(text))


# -- sharing ---------------------------------------------------------------------------------------------------------


def test_one_rank_has_its_link_to_itself() -> None:
    assert speeds(load("xeon-8xv100-16gb"), 1) == [gbps(12.36, 12.36, 22)]
    assert load("rtx4090-24gb").links(1) == (load("rtx4090-24gb").link,)


def test_two_consecutive_gpus_halve_their_switch() -> None:
    assert speeds(load("xeon-8xv100-16gb"), 2) == [gbps(6.18, 6.18, 11)] * 2


def test_the_third_has_a_switch_to_itself() -> None:
    """Its share of the socket's memory, 57.6 / 3, is more than one direction, less than both."""
    assert speeds(load("xeon-8xv100-16gb"), 3) == [
        gbps(6.18, 6.18, 11),
        gbps(6.18, 6.18, 11),
        gbps(12.36, 12.36, 19.2),
    ]


def test_a_full_xeon() -> None:
    assert speeds(load("xeon-8xv100-16gb"), 8) == [gbps(6.18, 6.18, 11)] * 8


def test_memory_of_a_socket_is_shared_by_its_gpus() -> None:
    """170 GB/s of reads and writes: two GPUs have 85 each, more than a direction takes, less than both take."""
    machine = dataclasses.replace(load("ac922-v100-16gb"), host_bytes_per_s=170e9)
    assert speeds(machine, 1) == [gbps(71.4, 71.4, 142.8)]
    assert speeds(machine, 2) == [gbps(71.4, 71.4, 85)] * 2
    assert speeds(machine, 3) == [gbps(71.4, 71.4, 85), gbps(71.4, 71.4, 85), gbps(71.4, 71.4, 142.8)]
    assert speeds(machine, 4) == [gbps(71.4, 71.4, 85)] * 4


def test_three_gpus_on_a_socket() -> None:
    machine = dataclasses.replace(load("ac922-v100-16gb"), gpus=6, host_bytes_per_s=170e9)
    assert speeds(machine, 3) == [gbps(170 / 3, 170 / 3, 170 / 3)] * 3


def test_memory_may_be_less_than_the_uplink() -> None:
    machine = dataclasses.replace(load("xeon-8xv100-16gb"), host_bytes_per_s=20e9)
    assert speeds(machine, 8) == [gbps(5, 5, 5)] * 8


def test_directions_may_differ() -> None:
    machine = dataclasses.replace(load("rtx4090-24gb"), gpus=2, link=LINK, switch=Switch(gpus=2, uplink=LINK))
    assert speeds(machine, 2) == [gbps(6, 5, 10)] * 2


@pytest.mark.parametrize("ranks", [0, -1, 5])
def test_no_more_ranks_than_gpus(ranks: int) -> None:
    with pytest.raises(UsageError, match=rf"ac922-v100-16gb has 4 GPU\(s\): give 1 to 4 ranks; got {ranks}"):
        load("ac922-v100-16gb").links(ranks)


def test_a_ring_is_as_fast_as_its_slowest_hop() -> None:
    machine = load("ac922-v100-16gb")
    assert machine.ring_bytes_per_s(2) == 71.8e9
    assert machine.ring_bytes_per_s(3) == machine.ring_bytes_per_s(4) == 32e9
    assert load("dgx-station-v100-16gb").ring_bytes_per_s(4) == 23.9e9


def test_a_ring_through_the_host() -> None:
    """Each of two on a switch has 11 GB/s for its copy out and its copy in."""
    assert load("xeon-8xv100-16gb").ring_bytes_per_s(8) == pytest.approx(5.5e9)


@pytest.mark.parametrize("ranks", [1, 9])
def test_a_ring_has_two_or_more(ranks: int) -> None:
    with pytest.raises(UsageError, match=rf"give 2 to 8 ranks; got {ranks}"):
        load("xeon-8xv100-16gb").ring_bytes_per_s(ranks)


# -- the document ----------------------------------------------------------------------------------------------------


def gb(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e9:g}"


def tera(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e12:g}"


def size(nbytes: int) -> str:
    """In the largest unit that tells it exactly."""
    units = [("TiB", 2**40), ("TB", 10**12), ("GiB", 2**30), ("GB", 10**9), ("MiB", 2**20)]
    name, unit = next((name, unit) for name, unit in units if nbytes % unit == 0)
    return f"{nbytes // unit:g} {name}"


def accelerator_cells(gpu: Accelerator) -> list[str]:
    flops = [gpu.fp32_flop_per_s, gpu.tf32_flop_per_s, gpu.fp16_flop_per_s, gpu.bf16_flop_per_s, gpu.fp64_flop_per_s]
    memory = [f"{gpu.memory_bytes // 2**20}", f"{gpu.reserved_bytes // 2**20}", gb(gpu.memory_bytes_per_s)]
    return [gpu.name, *memory, *map(tera, flops), f"{gpu.launch_s * 1e6:g}"]


def link_cells(link: Link) -> list[str]:
    speeds = [link.nominal_bytes_per_s, link.to_device_bytes_per_s, link.to_host_bytes_per_s, link.duplex_bytes_per_s]
    return [*map(gb, speeds), f"{link.latency_s * 1e6:g}"]


def disk_cells(disk: Disk) -> list[str]:
    return [gb(disk.write_bytes_per_s), gb(disk.read_bytes_per_s), f"{disk.nbytes / 1e12:g}"]


def machine_cells(machine: Machine) -> list[str]:
    switch = "-"
    if machine.switch is not None:
        switch = f"{machine.switch.gpus} on {gb(machine.switch.uplink.to_device_bytes_per_s)}"
    gpus = [f"`{machine.name}`", f"{machine.gpus}", machine.accelerator.name, gb(machine.link.nominal_bytes_per_s)]
    host = [f"{machine.sockets}", size(machine.host_bytes), gb(machine.host_bytes_per_s)]
    peers = [gb(machine.peer_bytes_per_s), gb(machine.far_peer_bytes_per_s)]
    disk = "-" if machine.disk is None else gb(machine.disk.write_bytes_per_s)
    return [*gpus, switch, *host, *peers, disk]


def documented(table: str) -> list[list[str]]:
    """The cells of a table's rows between <!-- begin: TABLE --> and <!-- end: TABLE -->."""
    match = re.search(rf"<!-- begin: {table} -->\n(.*?)\n<!-- end: {table} -->", DOCUMENT, re.DOTALL)
    assert match is not None, table
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in match[1].splitlines()[2:]]


def unique(rows: Iterable[list[str]]) -> list[list[str]]:
    return [list(row) for row in dict.fromkeys(map(tuple, rows))]


def test_the_documents_tables_are_the_catalogue() -> None:
    """But for the last column, which names the sources, and the first of links and disks, which names them."""
    machines = [load(name) for name in names()]
    links = [machine.link for machine in machines] + [m.switch.uplink for m in machines if m.switch is not None]
    disks = unique(disk_cells(machine.disk) for machine in machines if machine.disk is not None)
    assert [row[:-1] for row in documented("machines")] == [machine_cells(machine) for machine in machines]
    assert [row[:-1] for row in documented("accelerators")] == unique(
        accelerator_cells(machine.accelerator) for machine in machines
    )
    assert [row[1:-1] for row in documented("links")] == unique(map(link_cells, links))
    assert sorted(row[1:-1] for row in documented("disks")) == sorted(disks)


@pytest.mark.parametrize("table", ["machines", "accelerators", "links", "disks"])
def test_every_row_of_the_document_has_sources(table: str) -> None:
    written = set(re.findall(r"^\* \*\*([A-Z]\d+)\*\*", DOCUMENT, re.MULTILINE))
    for row in documented(table):
        cited = set(re.findall(r"\b[A-Z]\d+\b", row[-1]))
        assert cited, row
        assert cited <= written, row


def test_every_source_is_cited() -> None:
    written = re.findall(r"^\* \*\*([A-Z]\d+)\*\*", DOCUMENT, re.MULTILINE)
    assert len(written) == len(set(written))
    for source in written:
        assert len(re.findall(rf"\b{source}\b", DOCUMENT)) > 1, source


def test_what_lms_costs_a_host_is_in_the_document() -> None:
    told = [row[:4] for row in documented("host costs")]
    costs = default_host_costs().items()
    assert told == [
        [name, *(f"{seconds * 1e6:g}" for seconds in (cost.op_s, cost.short_op_s, cost.action_s))]
        for name, cost in costs
    ]
