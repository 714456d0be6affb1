"""What the wheel holds."""

import email
import re
import sys
import tarfile
import zipfile

import pytest
from commands import ROOT, run


@pytest.fixture(scope="module")
def names(wheel):
    return set(zipfile.ZipFile(wheel).namelist())


def test_wheel_is_for_every_python_on_linux(wheel):
    assert re.fullmatch(r"fused_attention-[\d.]+-py3-none-linux_\w+\.whl", wheel.name)


def test_wheel_holds_library_headers_and_cmake_package(names):
    for expected in (
        "__init__.py",
        "_build_info.py",
        "lib/libfused_attention.so",
        "include/fused_attention/attention.h",
        "include/fused_attention/version.h",
        "share/cmake/fused_attention/fused_attention-config.cmake",
        "share/cmake/fused_attention/FindTorchLite.cmake",
    ):
        assert f"fused_attention/{expected}" in names


def test_wheel_holds_nothing_else(names):
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"fused_attention"}
    assert not [name for name in names if name.endswith((".a", ".o", ".pyc"))]


def test_wheel_states_licence_and_torch_range(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "torch<2.16,>=2.11" in metadata.get_all("Requires-Dist")


def test_library_needs_no_python_and_no_second_openmp(unpacked_wheel):
    library = unpacked_wheel / "fused_attention/lib/libfused_attention.so"
    undefined = run("nm", "--dynamic", "--undefined-only", library).stdout
    assert not re.search(r" _?Py[A-Z_]", undefined)
    needed = re.findall(r"NEEDED.*\[(.+)\]", run("readelf", "--dynamic", library).stdout)
    assert {"libtorch_cpu.so", "libc10.so"} <= set(needed)
    assert not [name for name in needed if re.search(r"gomp|omp|python|torch_python|cuda", name)]


def test_library_stays_mapped_and_finds_torch_beside_it(unpacked_wheel):
    library = unpacked_wheel / "fused_attention/lib/libfused_attention.so"
    dynamic = run("readelf", "--dynamic", library).stdout
    assert "NODELETE" in dynamic
    assert "$ORIGIN/../../torch/lib" in dynamic


def test_source_archive_holds_what_the_build_needs(tmp_path):
    run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", tmp_path, cwd=ROOT)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as contents:
        names = {name.split("/", 1)[-1] for name in contents.getnames()}
    folders = ("cmake", "csrc", "include", "python/fused_attention")
    needed = [p for f in folders for p in run("git", "ls-files", f, cwd=ROOT).stdout.split()]
    assert len(needed) > 30
    assert {"CMakeLists.txt", "setup.py", "pyproject.toml", "LICENSE", *needed} <= names
