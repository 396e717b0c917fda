"""Longer checks in environments of their own: ``nox -l`` lists them, ``nox -s NAME`` runs one, ``nox`` the usual three.

Only pip needs a network. What follows ``--`` is handed on: ``nox -s tests -- -k planned``.
"""

import tomllib
from pathlib import Path

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parent
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index: its CPU builds are a tenth of the size of those for CUDA."""

SUPPORTED = ("2.11", "2.12", "2.13")
LATER = ("2.14", "2.15")
"""Beyond the cap in pyproject.toml. Tried where there is one, so that what breaks is known before the cap is raised."""

SWEEP_EVERY = "20"
"""Of PyTorch's own operators, modules and optimizers, one in so many: some minutes on two cores."""

INSIDE_PYTORCH = (
    "tests/cpu/test_compat.py",
    "tests/cpu/test_features.py",
    "tests/cpu/test_features_autograd.py",
    "tests/cpu/test_features_training.py",
    "tests/cpu/test_raw_access.py",
    "tests/cpu/test_schema.py",
    "tests/cpu/test_sizes.py",
)
"""Tests of what depends on PyTorch's inside, which changes with its version."""

nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True


def install(session: nox.Session, *what: str) -> None:
    session.install("--extra-index-url", CPU_WHEELS, *what)


@nox.session
def tests(session: nox.Session) -> None:
    """All tests, on all cores."""
    install(session, "-e", ".[all]")
    session.run("python", "-m", "pytest", "-n", "auto", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, and who may import whom."""
    install(session, "-e", ".[dev]")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("python", "-m", "pytest", "-q", "tests/pure/test_layers.py")


@nox.session
def types(session: nox.Session) -> None:
    """Types, everywhere."""
    install(session, "-e", ".[all]")
    session.run("mypy", *session.posargs)


@nox.session(name="torch-versions")
@nox.parametrize("torch", [*SUPPORTED, *LATER])
def torch_versions(session: nox.Session, torch: str) -> None:
    """What touches PyTorch's inside, on one of its versions."""
    try:
        install(session, f"torch=={torch}.*")
    except CommandFailed:
        if torch not in LATER:
            raise
        session.skip(f"pip finds no PyTorch {torch}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    others = [wanted for wanted in project["dependencies"] if not wanted.startswith("torch>")]
    install(session, *others, *project["optional-dependencies"]["dev"])
    session.install("--no-deps", "-e", ".")  # else pip replaces what is beyond the cap
    session.run("python", "-m", "pytest", "-q", *INSIDE_PYTORCH, *session.posargs)
    session.run("python", "-m", "tests.sweep", "--every", SWEEP_EVERY)


@nox.session
def bench(session: nox.Session) -> None:
    """What LMS costs while everything fits (20 minutes), and how many bytes planned steps move out."""
    install(session, "-e", ".[dev]")
    session.run("python", "benchmarks/overhead.py", *session.posargs)
    session.run("python", "benchmarks/traffic.py")
