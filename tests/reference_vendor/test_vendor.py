from __future__ import annotations

import threading
import warnings

import numpy as np
import pytest
import torch
from against_host import KERNELS, run

from flroute import reference_vendor
from flroute.kernel_rules import broken_kernel_rule
from flroute.reference_vendor.support import fast

EVERY = reference_vendor.kernels()


@pytest.mark.parametrize("kernel", EVERY, ids=lambda kernel: f"{kernel.op} {kernel.name}")
def test_every_kernel_keeps_the_rules(kernel: object) -> None:
    assert broken_kernel_rule(kernel) is None


def test_names_tell_kernels_of_an_op_apart() -> None:
    assert len({(kernel.op, kernel.name) for kernel in EVERY}) == len(EVERY)


def test_the_vendor_has_two_devices_and_its_kernels() -> None:
    (vendor,) = reference_vendor.flroute_vendors()
    assert vendor.name == "reference"
    assert len(vendor.devices) == 2
    assert all(facts.total_memory > 2**28 and facts.multi_processor_count >= 1 for facts in vendor.devices)
    assert len(list(vendor.kernels)) == len(EVERY) >= len(KERNELS)
    assert {kernel.name for kernel in KERNELS} >= {"numpy:add", "numpy:convolution", "numpy:gelu"}


def test_ufuncs_are_quiet_in_every_thread_and_leave_no_trace() -> None:
    errors: list[BaseException] = []

    def divide() -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for _ in range(200):
                    run("aten::reciprocal", torch.zeros(1000))
        except BaseException as error:  # whatever it is, the main thread reports it
            errors.append(error)

    threads = [threading.Thread(target=divide) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    with np.errstate(divide="raise"):
        assert np.isinf(fast.run(np.true_divide, 1.0, 0.0))
        with pytest.raises(FloatingPointError):
            np.true_divide(1.0, 0.0)
