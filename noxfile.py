"""One wheel on every supported PyTorch and Triton: ``nox -s "torch(2.15)"``, or ``nox`` for all (large downloads)."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import nox

TORCH_RELEASES = ("2.11", "2.13", "2.14", "2.15")
TRITON_RELEASES = ("3.8", "3.9")  # triton_cpu.backend.TESTED; PyTorch 2.14 pairs with 3.8, 2.15 with 3.9

nox.options.reuse_existing_virtualenvs = True


@nox.session
@nox.parametrize("release", TORCH_RELEASES, ids=TORCH_RELEASES)
def torch(session: nox.Session, release: str) -> None:
    """The wheel on one PyTorch release: all tests but PyTorch's databases, or what follows ``--`` for pytest.

    2.11 brings Triton 3.6, which is refused: the tests of compiled kernels are skipped and say so.
    """
    session.env.update(OMP_NUM_THREADS="1", PYTHONPATH=None)  # what is tested is the wheel, not the checkout
    with TemporaryDirectory() as wheels:
        session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, ".")
        (wheel,) = Path(wheels).glob("flroute-*.whl")
        session.install(f"torch=={release}.*", f"{wheel}[dev]")
        session.install("--force-reinstall", "--no-deps", str(wheel))  # pip keeps a build of the same version
    session.install("-e", "tests/plugins/opaque_vendor")
    session.run("python", "-c", f"import torch; assert torch.__version__.startswith('{release}.')")
    session.run("python", "-c", "import flroute as f; assert 'site-packages' in f.__file__, f.__file__")
    arguments = session.posargs or ["tests", "--ignore=tests/conformance"]
    session.run("python", "-m", "pytest", "-n", "2", "--dist", "worksteal", *arguments)


@nox.session
@nox.parametrize("release", TRITON_RELEASES, ids=TRITON_RELEASES)
def triton(session: nox.Session, release: str) -> None:
    """The compiler of Triton kernels for the CPU, on one Triton release: ``nox -s "triton(3.8)"``."""
    session.env.update(OMP_NUM_THREADS="1")
    session.install("-e", ".[dev]", "-e", "tests/plugins/opaque_vendor")
    session.install(f"triton=={release}.*")
    session.run("python", "-m", "pytest", *(session.posargs or ["tests/triton_cpu"]))
