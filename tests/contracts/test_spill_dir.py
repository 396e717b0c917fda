"""Where the spill file lies: it leaves nothing behind, touches nothing of others, and says what is wrong."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from injection import without_tmpfile

from torch_lms.errors import UsageError
from torch_lms.stores import spill_dir
from torch_lms.stores.disk import DiskStore
from torch_lms.stores.spill_dir import default_spill_dir, filesystem_of

MB = 1 << 20
Patch = pytest.MonkeyPatch


@pytest.fixture(params=["nameless", "unlinked"])
def opening(request: pytest.FixtureRequest, monkeypatch: Patch) -> str:
    """Also as on a file system without O_TMPFILE."""
    if request.param == "unlinked":
        monkeypatch.setattr(os, "open", without_tmpfile(os.open))
    return str(request.param)


@pytest.mark.usefixtures("opening")
def test_the_file_has_no_name_and_no_reader_but_its_owner(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, MB)
    store.write(store.reserve(5000), memoryview(bytes(5000))).wait()
    status = os.fstat(store.file.fd)
    assert list(tmp_path.iterdir()) == []
    assert status.st_nlink == 0
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert not os.get_inheritable(store.file.fd)
    store.close()


@pytest.mark.usefixtures("opening")
def test_a_missing_directory_and_one_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"{tmp_path}/none does not exist: create it, .* spill_dir="):
        DiskStore(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=rf"{tmp_path}/file is not a directory"):
        DiskStore(tmp_path / "file")


@pytest.mark.usefixtures("opening")
def test_a_directory_that_is_not_writable() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)  # root may write anywhere
        try:
            with pytest.raises(UsageError, match=rf"{directory} is not writable: .* TORCH_LMS_SPILL_DIR"):
                DiskStore(directory)
        finally:
            os.seteuid(user)


def test_leftovers_of_the_dead_are_removed_and_nothing_else(tmp_path: Path, monkeypatch: Patch) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    leftover, alive, other, link, folder, victim = (
        tmp_path / name
        for name in (
            f"torch-lms-spill-{dead.pid}-beef",
            f"torch-lms-spill-{os.getpid()}-beef",
            f"torch-lms-spill-{dead.pid}-beef.txt",
            f"torch-lms-spill-{dead.pid}-0001",
            f"torch-lms-spill-{dead.pid}-0002",
            "victim",
        )
    )
    for path in (leftover, alive, other, victim):
        path.write_text("x")
    link.symlink_to(victim)
    folder.mkdir()

    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        spill_dir.remove_leftovers(tmp_path)
        assert leftover.exists(), "another user's"
    DiskStore(tmp_path, MB).close()
    assert set(tmp_path.iterdir()) == {alive, other, link, folder, victim}
    assert victim.read_text() == "x"


def test_the_default_capacity_leaves_some_of_the_free_space(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    free = store.file.free_bytes()
    assert 0.9 * free - (2 << 30) < store.capacity < free + (1 << 30)
    store.close()


def test_the_default_directory(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("TORCH_LMS_SPILL_DIR", str(tmp_path / "chosen"))
    assert default_spill_dir() == tmp_path / "chosen"
    monkeypatch.delenv("TORCH_LMS_SPILL_DIR")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    kinds = {tmp_path: "tmpfs"}
    monkeypatch.setattr(spill_dir, "filesystem_of", lambda path: kinds.get(path, "ext4"))
    assert default_spill_dir() == Path("/var/tmp")
    monkeypatch.setattr(spill_dir, "filesystem_of", lambda _: "tmpfs")
    assert default_spill_dir() == tmp_path
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    assert default_spill_dir() == Path("/var/tmp")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="TORCH_LMS_SPILL_DIR"):
        default_spill_dir()


def test_filesystem_of_reads_the_mount_table(monkeypatch: Patch) -> None:
    table = (
        "/dev/a / ext4 rw 0 0\n/dev/b /srv/my\\040data xfs rw 0 0\nnone /over tmpfs rw 0 0\n/dev/c /over btrfs rw 0 0\n"
    )
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: table)
    places = ("/srv/my data/x", "/srv/my dataset", "/over", "/")
    assert [filesystem_of(place) for place in places] == ["xfs", "ext4", "btrfs", "ext4"]
    assert filesystem_of(Path("/over/deeper/still")) == "btrfs"
