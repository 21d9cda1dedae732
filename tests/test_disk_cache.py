"""The cache on disk: whole entries or none, whatever processes do to each other; bounded; never in the program's way."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

import flroute
from flroute import disk_cache
from flroute.cli import app
from flroute.disk_cache import DiskCache
from flroute.errors import SettingsError


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", limit=1 << 20)


def keys(cache: DiskCache) -> list[str]:
    return [entry.key for entry in cache.entries()]


def test_what_is_stored_is_loaded(cache: DiskCache) -> None:
    assert cache.load("add-1") is None
    assert cache.entries() == []
    cache.store("add-1", b"one")
    cache.store("add-2", b"")
    cache.store("add-1", b"another")
    assert cache.load("add-1") == b"another"
    assert cache.load("add-2") == b""
    assert {entry.name for entry in cache.entries()} == {"add"}
    cache.clear()
    assert cache.load("add-1") is None
    assert list(cache.folder.iterdir()) == []


def test_only_its_owner_may_look_into_the_folder(cache: DiskCache) -> None:
    cache.store("add-1", b"code")
    assert cache.folder.stat().st_mode & 0o077 == 0
    assert (cache.folder / "add-1").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("key", ["", ".hidden", "a/b", "../up", "a b", "a\n", "x" * 201, "größe"])
def test_a_key_that_cannot_name_a_file(cache: DiskCache, key: str) -> None:
    for use in (cache.load, lambda key: cache.store(key, b"")):
        with pytest.raises(ValueError, match="cannot name a file"):
            use(key)


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-1],
        lambda b: b[:20],
        lambda b: b"",
        lambda b: b + b"x",
        lambda b: b[:40] + bytes([b[40] ^ 1]) + b[41:],
    ],
    ids=["cut off", "cut off in the digest", "empty", "too long", "one bit"],
)
def test_a_damaged_entry_is_dropped(cache: DiskCache, damage: object) -> None:
    cache.store("add-1", b"machine code")
    path = cache.folder / "add-1"
    path.write_bytes(damage(path.read_bytes()))
    assert cache.load("add-1") is None
    assert not path.exists()


def age(cache: DiskCache, key: str, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(cache.folder / key, (at, at))


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, limit=3 * (1000 + 32))
    for at, key in enumerate("abc"):
        cache.store(key, bytes(1000))
        age(cache, key, 100 - at)
    assert cache.load("a") is not None  # now used last
    cache.store("d", bytes(1000))
    assert keys(cache) == ["c", "a", "d"]
    cache.store("e", bytes(2000))
    assert keys(cache) == ["d", "e"]
    cache.store("f", bytes(4000))  # larger than the limit: no reason to throw the others out
    assert keys(cache) == ["d", "e"]


def test_a_limit_of_0_keeps_nothing(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "none", limit=0)
    cache.store("a", b"")
    assert not cache.folder.exists()


def test_half_written_files_of_the_dead_are_swept(cache: DiskCache) -> None:
    cache.store("a", b"")
    for name, seconds in ((".old", 7200), (".young", 0)):
        (cache.folder / name).write_bytes(b"half")
        age(cache, name, seconds)
    cache.store("b", b"")
    assert sorted(path.name for path in cache.folder.iterdir()) == [".young", "a", "b"]
    assert keys(cache) == ["a", "b"]
    cache.clear()
    assert not list(cache.folder.iterdir())


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "flroute" and r.levelno == logging.WARNING]


def test_a_full_disk_costs_one_warning(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache.store("before", b"1")

    def full(path: Path, target: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        cache.store("a", b"")
        cache.store("b", b"")
    assert cache.load("before") == b"1"
    assert cache.load("a") is None
    assert [path.name for path in cache.folder.iterdir()] == ["before"]
    (message,) = _warnings(caplog)
    assert str(cache.folder) in message
    assert "No space left on device" in message
    assert "cache_dir" in message


def test_a_read_only_folder_is_read(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:  # root, as whom tests may run, is refused nothing
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    cache.store("a", b"1")
    monkeypatch.setattr(disk_cache.os, "utime", refuse)
    monkeypatch.setattr(disk_cache.tempfile, "NamedTemporaryFile", refuse)
    cache.store("b", b"2")
    assert cache.load("a") == b"1"
    (message,) = _warnings(caplog)
    assert "Permission denied" in message


def test_a_folder_that_is_none_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file", limit=100)
    cache.store("a", b"1")
    assert cache.load("a") is None
    assert cache.entries() == []
    assert len(_warnings(caplog)) == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from flroute import disk_cache
cache = disk_cache.DiskCache(Path(sys.argv[1]), limit=1 << 30)
point = int(sys.argv[2])
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if point == 0:  # nothing of it written
    disk_cache.tempfile._TemporaryFileWrapper.write = kill
elif point == 1:  # half of it written, and on disk
    def half(path, target):
        with open(path, "r+b") as file:
            file.truncate(1500)
        kill()
    Path.replace = half
elif point == 2:  # whole, not yet named
    Path.replace = kill
elif point == 3:  # named, others not yet evicted
    disk_cache.DiskCache._evict = kill
cache.store("a", b"new" * 1000)
"""


@pytest.mark.parametrize("point", range(4))
def test_a_process_killed_while_it_stores_leaves_a_whole_entry(cache: DiskCache, point: int) -> None:
    cache.store("a", b"old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(cache.folder), str(point)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert cache.load("a") == (b"new" * 1000 if point == 3 else b"old")
    assert keys(cache) == ["a"]
    cache.store("a", b"newer")
    assert cache.load("a") == b"newer"


def _use(cache: DiskCache, seed: int) -> bool:
    """Store and load at random for a while; whether every load gave what someone stored under that key."""
    sound = True
    for step in range(300):
        key = f"kernel-{(seed * 7 + step * 3) % 11}"
        if (seed + step) % 3:
            found = cache.load(key)
            sound = sound and (found is None or (len(found) > 500 and set(found) == {int(key[7:])}))
        else:
            cache.store(key, bytes([int(key[7:])]) * (501 + step * 10))
        if step % 100 == 99:
            cache.clear()
    return sound


def test_many_processes_at_once(cache: DiskCache, caplog: pytest.LogCaptureFixture) -> None:
    """Forked ones, so that what they share with their parent is tried as well; some are killed at work."""
    cache.limit = 12_000  # about five entries: eviction is at work, too
    children = []
    for seed in range(8):
        child = os.fork()
        if child == 0:
            os._exit(0 if _use(cache, seed) and not caplog.records else 1)
        children.append(child)
    for child in children[:2]:
        time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes[2:] == [0] * 6
    assert _use(cache, 99)
    assert sum(entry.bytes for entry in cache.entries()) <= cache.limit


# -- settings and the command line ----------------------------------------------------------------------------------


def test_the_folder_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLROUTE_CACHE_DIR", raising=False)
    for given, folder in ((str(tmp_path / "xdg"), tmp_path / "xdg"), ("relative", Path.home() / ".cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert disk_cache.disk_cache().folder == folder / "flroute"
    (tmp_path / "flroute.toml").write_text('cache_dir = "here"\ncache_limit = 1000\n')
    assert (disk_cache.disk_cache().folder, disk_cache.disk_cache().limit) == (Path("here"), 1000)
    monkeypatch.setenv("FLROUTE_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("FLROUTE_CACHE_LIMIT", "5")
    assert (disk_cache.disk_cache().folder, disk_cache.disk_cache().limit) == (tmp_path / "mine", 5)
    assert disk_cache.disk_cache() is disk_cache.disk_cache()  # one warning in the whole process


def test_without_a_home_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", fail)
    cache = DiskCache(Path(disk_cache._default_folder()), limit=100)
    cache.store("a", b"1")
    assert cache.load("a") is None
    assert len(_warnings(caplog)) == 1


@pytest.mark.parametrize("text", ["-1", "1GB", "1.5"])
def test_a_limit_that_is_no_number_of_bytes(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLROUTE_CACHE_LIMIT", text)
    with pytest.raises(
        SettingsError, match=rf"FLROUTE_CACHE_LIMIT: '{text}' .* a number of bytes, 0 or more"
    ):
        disk_cache.disk_cache()


def test_one_session_cannot_have_a_cache_of_its_own() -> None:
    with pytest.raises(SettingsError, match=r"cache_dir: it holds for the whole process.*FLROUTE_CACHE_DIR"):
        flroute.enable(cache_dir="elsewhere")


def test_the_command_shows_and_clears_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLROUTE_CACHE_DIR", str(tmp_path / "cache"))
    assert "nothing is kept" in CliRunner().invoke(app, ["cache"]).output
    cache = disk_cache.disk_cache()
    for key in ("softmax-1", "softmax-2", "gelu-3"):
        cache.store(key, bytes(2**20 - 32))
    shown = CliRunner().invoke(app, ["cache"])
    assert shown.exit_code == 0
    assert str(tmp_path / "cache") in shown.output
    assert "3 compiled kernels, 3.0 of 512 MiB" in shown.output
    row = next(row for row in shown.output.splitlines() if row.startswith("softmax"))
    assert row.split()[1:3] == ["2", "2048.0"]
    found = json.loads(CliRunner().invoke(app, ["cache", "--json"]).output)
    assert found["bytes"] == 3 * 2**20
    assert sorted(entry["key"] for entry in found["entries"]) == ["gelu-3", "softmax-1", "softmax-2"]
    cleared = CliRunner().invoke(app, ["cache", "--clear"])
    assert "3 compiled kernels, 3.0 MiB removed" in cleared.output
    assert cache.entries() == []
    assert json.loads(CliRunner().invoke(app, ["cache", "--clear", "--json"]).output)["entries"] == []


def test_the_command_says_what_it_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setenv("FLROUTE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(disk_cache.os, "scandir", refuse)
    done = CliRunner().invoke(app, ["cache"])
    assert done.exit_code == 2
    assert "Permission denied" in done.output
