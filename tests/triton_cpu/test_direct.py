"""Kernels straight from the cache: what is compiled and what is not, and every argument that a kernel cannot take."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from timeit import repeat

import numpy as np
import pytest
import triton
import triton.language as tl

from flroute.disk_cache import disk_cache
from flroute.reference_vendor.triton_cpu import (
    LaunchError,
    UnsupportedKernelError,
    VersionError,
    compiler,
    direct,
)

HERE = __name__
ADD = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}
NOT_A_KERNEL = 3


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def give(value, out):
    tl.store(out, value)


@triton.jit
def assembly(x):
    v = tl.inline_asm_elementwise(
        "mov.b16 $0, $1;", "=h,h", [tl.load(x)], dtype=tl.float16, is_pure=True, pack=1
    )
    tl.store(x, v)


@triton.jit
def undefined(x):
    tl.store(x, nowhere)  # noqa: F821


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """This file as a module that can be found by its name, a folder for further ones, and a cache of the test's own."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FLROUTE_CACHE_DIR", str(tmp_path / "cache"))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tensor IR of each kernel that is compiled."""
    seen: list[str] = []
    compile_ttir = compiler.compile_ttir

    def watch(text: str) -> object:
        seen.append(text)
        return compile_ttir(text)

    monkeypatch.setattr(compiler, "compile_ttir", watch)
    return seen


@pytest.mark.parametrize("n", [0, 1, 16, 1000])
def test_a_kernel_from_ndarrays(n: int) -> None:
    kernel = direct.load(f"{HERE}:add", ADD, {"BLOCK": 64})
    x, y = np.random.default_rng(0).random((2, n + 1), dtype=np.float32)
    out = np.full(n + 1, 7, np.float32)
    kernel(-(-n // 64), x, y, out, n)
    assert np.array_equal(out[:n], (x + y)[:n])
    assert out[n] == 7
    out[:] = 7
    kernel.launch((-(-n // 64),), (x.ctypes.data, y, out.ctypes.data, n), threads=3)
    assert np.array_equal(out[:n], (x + y)[:n])
    assert out[n] == 7


def test_it_is_compiled_once(compiled: list[str]) -> None:
    for _ in range(2):
        direct.load(f"{HERE}:add", ADD, {"BLOCK": 64})
        assert len(compiled) == 1
    direct.load(f"{HERE}:add", ADD, {"BLOCK": 128})
    direct.load(f"{HERE}:add", {**ADD, "n": "i64"}, {"BLOCK": 64})
    assert len(compiled) == 3
    assert [entry.name for entry in disk_cache().entries()] == ["add"] * 3
    entry = disk_cache().folder / disk_cache().entries()[-1].key
    entry.write_bytes(entry.read_bytes()[:-100])
    direct.load(f"{HERE}:add", {**ADD, "n": "i64"}, {"BLOCK": 64})
    assert len(compiled) == 4


def test_a_change_of_the_source_is_noticed(tmp_path: Path, compiled: list[str]) -> None:
    text = "import triton, triton.language as tl\n\n@triton.jit\ndef put(x):\n    tl.store(x, {})\n"
    for value in (1.0, 2.0):
        (tmp_path / "changing.py").write_text(text.format(value))
        sys.modules.pop("changing", None)
        out = np.zeros(1, np.float32)
        direct.load("changing:put", {"x": "*fp32"})(1, out)
        assert out[0] == value
    assert len(compiled) == 2


def test_functions_of_another_file_must_be_named(tmp_path: Path, compiled: list[str]) -> None:
    (tmp_path / "helping.py").write_text("import triton\n\n@triton.jit\ndef twice(x):\n    return x + x\n")
    (tmp_path / "helped.py").write_text(
        "import triton, triton.language as tl\nfrom helping import twice\n\n"
        "@triton.jit\ndef double(x):\n    tl.store(x, tl.abs(twice(tl.load(x))))\n"
    )
    with pytest.raises(ValueError, match=r"kernel helped:double uses functions of .*helping\.py.*`sources`"):
        direct.load("helped:double", {"x": "*fp32"})
    x = np.full(1, 2, np.float32)
    direct.load("helped:double", {"x": "*fp32"}, sources=["helping"])(1, x)
    assert x[0] == 4
    (tmp_path / "helping.py").write_text(
        "import triton\n\n@triton.jit\ndef twice(x):\n    return 2 * x + 1\n"
    )
    for module in ("helping", "helped"):
        del sys.modules[module]
    direct.load("helped:double", {"x": "*fp32"}, sources=["helping"])(1, x)
    assert x[0] == 9


COMPILER = ["lowering", "vector_math", "python_entry"]
WARM = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from flroute.reference_vendor.triton_cpu import direct
kernel = direct.load("test_direct:add", {signature!r}, {{"BLOCK": 64}})
out = np.zeros(3, np.float32)
kernel(1, np.ones(3, np.float32), np.ones(3, np.float32), out, 3)
assert out.tolist() == [2, 2, 2]
costly = ["triton", "test_direct", *("flroute.reference_vendor.triton_cpu." + name for name in {compiler!r})]
print([name.rpartition(".")[2] for name in costly if name in sys.modules])
"""


def test_a_second_process_imports_neither_triton_nor_the_compiler() -> None:
    command = [
        sys.executable,
        "-c",
        WARM.format(signature=ADD, compiler=COMPILER),
        str(Path(__file__).parent),
    ]
    shown = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2)]
    assert shown == [f"{['triton', 'test_direct', *COMPILER]}\n", "[]\n"]


def test_a_launch_costs_what_a_call_of_numpys_does() -> None:
    kernel = direct.load(f"{HERE}:add", ADD, {"BLOCK": 64})
    x, y, out = np.ones((3, 16), np.float32)
    ours = min(repeat(lambda: kernel(1, x, y, out, 16), number=500, repeat=20))
    numpys = min(repeat(lambda: np.add(x, y, out=out), number=500, repeat=20))
    assert ours < 3 * numpys


# -- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "dtype", "values"),
    [
        ("i8", np.int8, (-128, 127)),
        ("u8", np.uint8, (0, 255)),
        ("i16", np.int16, (-(2**15), 2**15 - 1)),
        ("i32", np.int32, (-(2**31), 2**31 - 1, np.int64(5), True)),
        ("u32", np.uint32, (2**32 - 1,)),
        ("i64", np.int64, (-(2**63), 2**63 - 1)),
        ("u64", np.uint64, (2**64 - 1,)),
        ("i1", np.bool_, (False, True)),
        ("fp16", np.float16, (1.5, -2)),
        ("fp32", np.float32, (0.1, float("inf"), np.float32(3))),
        ("fp64", np.float64, (0.1, -0.0, 2)),
    ],
)
def test_numbers_of_every_type(kind: str, dtype: type, values: tuple[float, ...]) -> None:
    kernel = direct.load(f"{HERE}:give", {"value": kind, "out": f"*{kind}"})
    for value in values:
        out = np.zeros(1, dtype)
        kernel(1, value, out)
        assert out.tobytes() == np.array([value]).astype(dtype).tobytes()


x = np.zeros(4, np.float32)


@pytest.mark.parametrize(
    "arguments",
    [
        (x, x, x),
        (x, x, x, 1, 1),
        (x, x, x, 1.5),
        (x, x, x, "1"),
        (x, x, x, None),
        (x, x, x, 2**32),
        (x, x, x, -(2**31) - 1),
        (x, x, x, 2**100),
        (x, x, x, -(2**100)),
        (x, x, None, 1),
        (x, x, 1.5, 1),
        (x, [0.0], x, 1),
        (x, x.view(np.matrix), x, 1),
        (x, memoryview(x), x, 1),
    ],
)
@pytest.mark.parametrize("programs", [1, 2])
def test_arguments_that_the_kernel_cannot_take(arguments: tuple[object, ...], programs: int) -> None:
    kernel = direct.load(f"{HERE}:add", ADD, {"BLOCK": 64})
    with pytest.raises(LaunchError) as caught:
        kernel(programs, *arguments)
    text = str(caught.value)
    assert text.startswith("kernel add: ")
    assert "it takes (ptr<f32>, ptr<f32>, ptr<f32>, i32)" in text
    assert f"was given ({', '.join(type(argument).__name__ for argument in arguments)})" in text
    assert not x.any()


@pytest.mark.parametrize(
    ("value", "kind"), [(2**64, "i64"), (-(2**63) - 1, "u64"), (-1.0, "i64"), (256, "u8"), (-129, "u8")]
)
def test_numbers_out_of_range(value: float, kind: str) -> None:
    kernel = direct.load(f"{HERE}:give", {"value": kind, "out": f"*{kind}"})
    with pytest.raises(LaunchError, match=r"kernel give: .*it takes \(i(64|8), ptr"):
        kernel(1, value, np.zeros(1, np.int64))


@pytest.mark.parametrize("programs", [-1, 2**31])
def test_a_grid_out_of_range(programs: int) -> None:
    with pytest.raises(LaunchError, match=r"kernel add: the grid .* is out of range"):
        direct.load(f"{HERE}:add", ADD, {"BLOCK": 64})(programs, x, x, x, 4)


# -- kernels that cannot be had -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "signature", "constants", "message"),
    [
        ("nowhere:add", {}, {}, "'nowhere:add': there is no source file of a module 'nowhere'"),
        ("nowhere.inside:add", {}, {}, "'nowhere.inside:add': No module named 'nowhere'"),
        ("sys:exit", {}, {}, "no source file of a module 'sys'"),
        ("", {}, {}, "write package.module:function"),
        (f"{HERE}:nothing", {}, {}, "has no @triton.jit function 'nothing'"),
        (f"{HERE}:NOT_A_KERNEL", {}, {}, "has no @triton.jit function 'NOT_A_KERNEL'"),
        (HERE, {}, {}, "write package.module:function"),
        (f"{HERE}:add", ADD, {}, "lacks BLOCK; its parameters: x, y, out, n, BLOCK"),
        (f"{HERE}:add", ADD, {"BLOCK": 64, "C": 1}, "does not have C"),
        (f"{HERE}:add", ADD, {"BLOCK": 64, "n": 1}, "has both a type and a value for n"),
        (
            f"{HERE}:add",
            {**ADD, "n": "int32"},
            {"BLOCK": 64},
            "n cannot be of type 'int32'; types are i1, i8",
        ),
        (f"{HERE}:add", ADD, {"BLOCK": tl.float32}, "a constant is neither number, bool, string nor None"),
    ],
)
def test_what_is_asked_for_does_not_exist(
    kernel: str, signature: dict, constants: dict, message: str
) -> None:
    with pytest.raises(ValueError, match="kernel ") as caught:
        direct.load(kernel, signature, constants)
    assert message in str(caught.value)


def test_kernels_that_do_not_compile_leave_no_entry() -> None:
    with pytest.raises(UnsupportedKernelError, match=r"tt\.elementwise_inline_asm at .*test_direct\.py:\d+"):
        direct.load(f"{HERE}:assembly", {"x": "*fp16"})
    with pytest.raises(triton.CompilationError, match="undefined"):
        direct.load(f"{HERE}:undefined", {"x": "*fp16"})
    with pytest.raises(triton.CompilationError, match="power of 2"):
        direct.load(f"{HERE}:add", ADD, {"BLOCK": 6})
    assert disk_cache().entries() == []


def test_without_triton_only_the_cache_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    direct.load(f"{HERE}:add", ADD, {"BLOCK": 64})
    monkeypatch.setitem(sys.modules, "flroute.reference_vendor.triton_cpu.front_end", None)
    direct.load(f"{HERE}:add", ADD, {"BLOCK": 64})
    with pytest.raises(
        VersionError, match=rf"{HERE}:give is not in the cache.*pip install 'flroute\[triton\]'"
    ):
        direct.load(f"{HERE}:give", {"value": "i32", "out": "*i32"})
