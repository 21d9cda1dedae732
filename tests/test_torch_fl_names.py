"""Each public name of ``torch.cuda`` is in ``torch.fl``, or an error that says why not; the page says the same."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch

from flroute.device import torch_fl
from flroute.device.torch_fl.absent import NEAREST, REFUSED, plain_name
from flroute.torch_fl_page import State, cuda_names, row_of, to_markdown

PAGE = Path(__file__).parents[1] / "docs" / "torch_fl.md"
NAMES = cuda_names()


@pytest.mark.parametrize("name", NAMES)
def test_no_name_is_missing(name: str) -> None:
    row = row_of(name)
    assert row.state is not State.MISSING, (
        f"torch.cuda.{name} has no state: add it, or say in absent.py why not"
    )
    if row.state is State.REFUSED and "." not in name:
        assert not hasattr(torch.fl, name)
        with pytest.raises(AttributeError, match=re.escape(row.note)):
            getattr(torch.fl, name)


def test_what_is_there_has_cudas_kind() -> None:
    """A function for a function, a type for a type."""
    for name in NAMES:
        if row_of(name).state is not State.REFUSED and hasattr(torch.cuda, name):
            ours, cudas = getattr(torch.fl, name), getattr(torch.cuda, name)
            assert callable(ours) == callable(cudas), name
            assert isinstance(ours, type) == isinstance(cudas, type) or name == "stream", name


def test_the_page_says_what_is() -> None:
    """It is of one release; of another, what both have is the same."""
    page = PAGE.read_text()
    if f"Of PyTorch {'.'.join(torch.__version__.split('.')[:2])}:" in page:
        assert page == to_markdown(), "regenerate docs/torch_fl.md"
    told = {name for name in NAMES if f"| `{name}` |" in page}
    assert len(told) > 150
    for name in told:
        row = row_of(name)
        assert f"| `{row.name}` | {row.state.value} | {row.note} |" in page, name


def test_nothing_is_explained_that_is_there_or_unknown() -> None:
    assert set(NEAREST) <= {plain_name(name) for name in NAMES}
    for name in NEAREST:
        assert row_of(name).state is State.NEAREST
    assert all(reason and not reason.endswith(".") for reason in REFUSED.values())


def test_the_parts_are_modules() -> None:
    for name, module in torch_fl.SUBMODULES.items():
        assert importlib.import_module(f"torch.fl.{name}") is module is getattr(torch.fl, name)
        assert sys.modules[module.__name__] is module
        assert set(module.__all__) <= set(dir(module))
    from torch.fl.memory import empty_cache  # type: ignore[import-not-found]

    assert empty_cache is torch.fl.empty_cache
