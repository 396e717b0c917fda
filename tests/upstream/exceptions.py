"""Tests that fail under LMS only, and why that is no fault."""

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Known:
    """An exception. The first three are patterns as of shells.

    Attributes:
        settings: a comma between several.
        is_run: False for what takes longer than a test may.
    """

    file: str
    test: str
    settings: str
    reason: str
    is_run: bool = True

    def covers(self, file: str, test: str, setting: str) -> bool:
        """Whether this names it."""
        at = any(fnmatchcase(setting, pattern) for pattern in self.settings.split(","))
        return at and fnmatchcase(file, self.file) and fnmatchcase(test, self.test)

    def __str__(self) -> str:
        return f"{self.file} {self.test} [{self.settings}]: {self.reason}"


_MIN_SIZE_1 = "*-1,*-1-x4"

KNOWN: tuple[Known, ...] = (
    Known(
        "test_autograd",
        "TestAutograd.test_free_deep_graph*",
        _MIN_SIZE_1,
        "too slow to run: hundreds of thousands of operations on one number, which moves at each (1.5 ms for two)",
        is_run=False,
    ),
    Known(
        "test_autograd",
        "TestAutograd.test_lobpcg",
        _MIN_SIZE_1,
        "too slow to run: tens of thousands of operations, whose tensors of a few bytes all move",
        is_run=False,
    ),
    Known(
        "test_autograd",
        "TestAutogradMultipleDispatchCPU.test_per_dispatch_key_input_saving_cpu",
        _MIN_SIZE_1,
        "an error as on stock, with another text: its message prints the sizes of a nested tensor from a copy of "
        "32 bytes, which is a page at this min_size, and away",
    ),
    Known(
        "test_torch",
        "TestTorchDeviceTypeCPU.test_scatter_add_one_dim_deterministic_cpu",
        f"{_MIN_SIZE_1},*-64",
        "too slow to run: reads tens of thousands of elements one by one, and their whole tensor moves for each",
        is_run=False,
    ),
    Known(
        "test_torch",
        "TestTorchDeviceTypeCPU.test_gather_backward_deterministic_path_cpu",
        f"{_MIN_SIZE_1},*-64",
        "too slow to run: reads 40,000 elements one by one, and their whole tensor moves for each",
        is_run=False,
    ),
    Known(
        "test_torch",
        "TestTorchDeviceTypeCPU.test_index_copy_deterministic_cpu",
        "*",
        "too slow to run: copies thousands of rows one by one, and their whole tensor moves for each",
        is_run=False,
    ),
    Known(
        "test_nn",
        "TestNN.test_l1_loss_correct",
        "*",
        "too slow to run: tensors of up to a gigabyte, all of which go to the disk and back",
        is_run=False,
    ),
    Known(
        "test_nn",
        "TestNNDeviceTypeCPU.test_affine_3d_rotateRandom_cpu",
        f"{_MIN_SIZE_1},*-64",
        "too slow to run: compares a grid row by row, and the whole grid moves for each",
        is_run=False,
    ),
)


def known(file: str, test: str, setting: str) -> Known | None:
    """The exception that names this test at this setting."""
    return next((one for one in KNOWN if one.covers(file, test, setting)), None)
