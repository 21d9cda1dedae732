"""The proof of ``flroute run``: scripts written for cuda, unmodified, with the numbers they have on the host."""

from __future__ import annotations

import pytest

from cuda_scripts import SCRIPTS, Script, differences, host_numbers, numbers, run

ONE_DEVICE = {"CUDA_VISIBLE_DEVICES": "0"}
"""Where Trainer finds several, it takes larger batches, and the numbers are others."""


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_cuda_script_runs_unmodified_with_the_hosts_numbers(script: Script) -> None:
    environment = {} if script.processes > 1 or script.name == "data_parallel" else ONE_DEVICE
    done = run(script, "-m", "flroute", "run", "--strict", environment=environment)
    assert done.returncode == 0, done.stderr
    assert differences(numbers(done.stdout), host_numbers(script), script.tolerance) == []
    assert "redirected from cuda:" in done.stderr
    assert "fallbacks: none" in done.stderr
