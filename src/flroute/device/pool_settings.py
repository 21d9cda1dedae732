"""What the user says about pools, applied to the pool of a device."""

from __future__ import annotations

from collections.abc import Mapping

from flroute.device.table import Device


def configure_pool(device: Device, conf: Mapping[str, int | float]) -> None:
    """Apply the setting ``alloc_conf``; it wins over what the vendor chose. A device without a pool has nothing to set."""
    pool = device.memory.pool(device.vendor_index) if conf else None
    if pool is None:
        return
    if "max_split_size_mb" in conf:
        pool.max_split = int(conf["max_split_size_mb"]) << 20
    if "roundup_power2_divisions" in conf:
        pool.divisions = int(conf["roundup_power2_divisions"])
    if "per_process_memory_fraction" in conf:
        pool.limit = int(conf["per_process_memory_fraction"] * device.facts.total_memory)
    pool.trim_above = conf.get("garbage_collection_threshold", pool.trim_above)
    if pool.trim_above is not None and pool.limit is None:
        pool.limit = device.facts.total_memory
