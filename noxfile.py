"""Longer checks in environments of their own: ``nox -l`` lists them, ``nox -s NAME`` runs one, ``nox`` the usual three.

Only pip needs a network. What follows ``--`` is handed on: ``nox -s tests -- -k planned``.
"""

import shutil
from pathlib import Path

import nox

CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index: its CPU builds are a tenth of the size of those for CUDA."""

TORCH = ("2.11", "2.12", "2.13", "2.14", "2.15")
"""All minor versions that pyproject.toml allows."""

PYTHON = ("3.12", "3.13", "3.14")
"""Those after the one that CI takes."""

OPTIMIZERS = ("torchao", "bitsandbytes", "lion-pytorch", "schedulefree", "prodigyopt")
"""Packages of optimizers that trainings take beside those of ``torch.optim``."""

QUIET_MKDOCS = {"NO_MKDOCS_2_WARNING": "1"}
"""mkdocs-material tells of its successor at each run; it is kept up until May 2027."""

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
@nox.parametrize("torch", TORCH)
def torch_versions(session: nox.Session, torch: str) -> None:
    """What touches PyTorch's inside, on one of its versions: a row of docs/compatibility.md.

    The builds for CUDA, which pip takes by itself: only they make fake CUDA tensors. An environment has 6 GB, and is
    removed once all is well.
    """
    session.install(f"torch=={torch}.*", "-e", ".[dev]")
    session.run("python", "-m", "tests.versions", *session.posargs)
    shutil.rmtree(session.virtualenv.location)


@nox.session(name="python-versions", python=PYTHON)
def python_versions(session: nox.Session) -> None:
    """All tests of the CPU, on another Python than CI's; one that is not installed is passed over."""
    install(session, "-e", ".[all]")
    session.run("python", "-m", "pytest", "-n", "auto", "tests/pure", "tests/cpu", "tests/contracts", *session.posargs)


@nox.session
def trainers(session: nox.Session) -> None:
    """Real trainers at a third of what they need. For timm's own script: ``-- --source timm=FOLDER``, a checkout."""
    install(session, "-e", ".[all]", "diffusers", "ultralytics", *OPTIMIZERS)
    session.run("python", "-m", "tests.trainers", *session.posargs)


@nox.session
def architectures(session: nox.Session) -> None:
    """Networks of timm, torchvision and transformers, each trained small at a half and at a fifth of its demand."""
    install(session, "-e", ".[all]")
    session.run("python", "-m", "tests.architectures", *session.posargs)


@nox.session
def wheels(session: nox.Session) -> None:
    """One wheel, in dist/, with the native interposer for each version of PyTorch. Needs g++.

    Its shared objects link no CUDA: those that are built here with a build for the CPU are good for all.
    """
    for torch in TORCH:
        install(session, f"torch=={torch}.*", "numpy")
        session.run("python", "-m", "torch_lms.native.build", env={"PYTHONPATH": "src"})
    session.install("build")
    session.run("python", "-m", "build", "--wheel")
    shutil.rmtree(Path("src", "torch_lms", "native", "lib"))


@nox.session
def docs(session: nox.Session) -> None:
    """The site, in build/site, to be read there without a network. A dead link fails it."""
    install(session, "-e", ".[docs]")
    session.run("mkdocs", *(session.posargs or ["build"]), env=QUIET_MKDOCS)


@nox.session
def bench(session: nox.Session) -> None:
    """What LMS costs while everything fits (20 minutes), and how many bytes planned steps move out."""
    install(session, "-e", ".[dev]")
    session.run("python", "benchmarks/overhead.py", *session.posargs)
    session.run("python", "benchmarks/traffic.py")
