"""Run a cuda script on the host: ``python tests/run_on_host.py script.py arguments``.

The judge of ``tests/scripts``: stock PyTorch, and the script's text with "cpu" where it says "cuda". It stands on nothing of
flroute, and what it replaces can be read in one table.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

REPLACED = (
    (
        r"^( *)assert .*(\bdevice\b|is_cuda|is_available).*$",
        r"\1pass",
    ),  # where things are is what is changed here
    (r"^( *)\w+\.record_stream\(.*\)$", r"\1pass"),
    (r"\.pin_memory\(\)", ""),
    (r"\btorch\.cuda\b", "host_cuda"),
    (r"\btorch\.device\((['\"])cuda\1, *\d\)", "torch.device('cpu')"),
    (r"(?<!\w)f?(['\"])cuda(:[^'\"]*)?\1", "'cpu'"),
    (r"\.cuda\([^()]*\)", ""),
    (r"\bdevice=(0|GPU|\w+\.get_device\(\))", "device='cpu'"),
    (r"\.is_cuda\b", ".is_cpu"),
    (r", ProfilerActivity\.CUDA\b", ""),
    (r"\bcuda_time_total\b", "cpu_time_total"),
    (r", use_cuda=True|\buse_cuda=True\b", ""),
    (r"(['\"])nccl\1", "'gloo'"),
    (r"\bdevice_ids=\[local_rank\], output_device=local_rank", "device_ids=None"),
)


def for_the_host(text: str) -> str:
    """The script as its author would have written it for a machine without cuda; lines keep their numbers."""
    future = re.search(r"^from __future__ import .*$", text, re.MULTILINE)
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    if future is None:
        return (
            f"import host_cuda; {text}"
            if not text.startswith(("#", '"""', "'''"))
            else _after_docstring(text)
        )
    return text.replace(future[0], f"{future[0]}; import host_cuda", 1)


def _after_docstring(text: str) -> str:
    """The first import gets the stand-in before it."""
    return re.sub(r"^(import|from) ", r"import host_cuda; \1 ", text, count=1, flags=re.MULTILINE)


def main() -> None:
    """Run the script that the command line names."""
    path = Path(sys.argv[1])
    del sys.argv[0]
    code = compile(for_the_host(path.read_text(encoding="utf-8")), str(path), "exec")
    program = ModuleType("__main__")  # torch.compile and pickle look names up in the module of that name
    program.__file__ = str(path)
    sys.modules["__main__"] = program
    exec(code, program.__dict__)


if __name__ == "__main__":
    main()
