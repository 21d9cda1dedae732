"""``FLROUTE_ALLOC_CONF``: read, checked, and applied to the pools of devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flroute.device.memory import DeviceFacts
from flroute.device.pool_settings import configure_pool
from flroute.device.table import Device
from flroute.errors import SettingsError
from flroute.settings import load_settings
from flroute.vendor import HostMemory

MIB = 1 << 20


def test_it_is_read_as_pytorchs_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLROUTE_ALLOC_CONF", "max_split_size_mb:128, garbage_collection_threshold:0.8")
    assert load_settings().alloc_conf == {"max_split_size_mb": 128, "garbage_collection_threshold": 0.8}


def test_a_file_has_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flroute.toml").write_text("alloc_conf = {max_split_size_mb = 64}\n")
    monkeypatch.chdir(tmp_path)
    assert load_settings().alloc_conf == {"max_split_size_mb": 64}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_splt_size_mb:1", r"unknown key 'max_splt_size_mb'\. Did you mean 'max_split_size_mb'"),
        ("expandable_segments:True", "unknown key 'expandable_segments'"),
        ("max_split_size_mb:0", "max_split_size_mb takes MiB, 1 or more, not '0'"),
        ("max_split_size_mb:1.5", "not '1.5'"),
        ("max_split_size_mb:many", "not 'many'"),
        ("max_split_size_mb", "'max_split_size_mb' has no value"),
        ("max_split_size_mb:1,max_split_size_mb:2", "there twice"),
        ("garbage_collection_threshold:1.5", "between 0 and 1, not '1.5'"),
        ("garbage_collection_threshold:nan", "between 0 and 1, not 'nan'"),
        ("roundup_power2_divisions:3", "takes 1, 2, 4, 8, 16, 32 or 64, not '3'"),
        ("per_process_memory_fraction:0", "above 0, at most 1, not '0'"),
        (",", "has no value"),
    ],
)
def test_what_is_wrong_is_named(text: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLROUTE_ALLOC_CONF", text)
    with pytest.raises(SettingsError, match=says) as caught:
        load_settings()
    assert "FLROUTE_ALLOC_CONF" in str(caught.value)
    assert "Allowed: key:value with commas between, of max_split_size_mb (MiB" in str(caught.value)


def device(memory: Any = None, total: int = 64 * MIB) -> Device:
    return Device(0, "any", 0, DeviceFacts("any", total), memory or HostMemory(max_split=1 * MIB))


def test_it_wins_over_what_the_vendor_chose() -> None:
    made = device()
    pool = made.memory.pool(0)
    configure_pool(made, {})
    assert (pool.max_split, pool.limit, pool.divisions, pool.trim_above) == (1 * MIB, None, 16, None)
    configure_pool(
        made, {"max_split_size_mb": 8, "roundup_power2_divisions": 4, "per_process_memory_fraction": 0.5}
    )
    assert (pool.max_split, pool.limit, pool.divisions) == (8 * MIB, 32 * MIB, 4)


@pytest.mark.parametrize(
    ("divisions", "used"), [(1, 8 * MIB), (4, 6 * MIB), (16, 5 * MIB + MIB // 4), (64, 5 * MIB + MIB // 16)]
)
def test_divisions_round_sizes_up(divisions: int, used: int) -> None:
    made = device(HostMemory())
    configure_pool(made, {"roundup_power2_divisions": divisions})
    made.memory.pool(0).allocate(5 * MIB + 1)
    assert made.memory.pool(0).stats().used == used


@pytest.mark.parametrize("threshold", [None, 0.5])
def test_a_threshold_gives_back_what_is_not_used(threshold: float | None) -> None:
    made = device()
    pool = made.memory.pool(0)
    configure_pool(
        made, {"garbage_collection_threshold": threshold} if threshold else {"max_split_size_mb": 1}
    )
    for size in (12, 16, 20):
        pool.free(pool.allocate(size * MIB))
    assert pool.stats().reserved == (20 if threshold else 48) * MIB
    assert pool.stats().peak == (28 if threshold else 48) * MIB


def test_a_device_without_a_pool_has_nothing_to_set() -> None:
    class Plain(HostMemory):
        def pool(self, device: int) -> None:  # type: ignore[override]
            return None

    configure_pool(device(Plain()), {"max_split_size_mb": 8})


def test_a_process_runs_under_it() -> None:
    program = "import flroute, torch; print(torch.fl.get_per_process_memory_fraction(0), torch.fl.memory_stats(1)['max_split_size'])"
    conf = {"FLROUTE_ALLOC_CONF": "per_process_memory_fraction:0.25,max_split_size_mb:20"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **conf},
        capture_output=True,
        text=True,
        check=True,
    )
    fraction, max_split = done.stdout.split()
    assert float(fraction) == pytest.approx(0.25)
    assert int(max_split) == 20 * MIB
