"""The same package on every supported PyTorch: ``nox -s "torch(2.15)"``, or ``nox`` for all (large downloads)."""

from __future__ import annotations

import nox

TORCH_RELEASES = ("2.11", "2.13", "2.14", "2.15")

nox.options.reuse_existing_virtualenvs = True


@nox.session
@nox.parametrize("release", TORCH_RELEASES, ids=TORCH_RELEASES)
def torch(session: nox.Session, release: str) -> None:
    """All tests but PyTorch's databases, on one PyTorch release; arguments after ``--`` go to pytest."""
    session.install(f"torch=={release}.*")
    session.install("-e", ".[dev]", "-e", "tests/plugins/opaque_vendor")
    session.run("python", "-c", f"import torch; assert torch.__version__.startswith('{release}.')")
    arguments = session.posargs or ["--ignore=tests/conformance"]
    session.run("python", "-m", "pytest", "-n", "2", *arguments, env={"OMP_NUM_THREADS": "1"})
