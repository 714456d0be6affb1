import shutil
import sys
from pathlib import Path

import pytest
import torch
from commands import BUILD, ROOT, run


@pytest.fixture(scope="session")
def build():
    """The folder of a finished build for this interpreter's torch."""
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    if not (BUILD / "libfused_attention.so").exists():
        pytest.skip(f"no library in {BUILD}: run `make build`, or set BUILD to the build folder")
    return BUILD


@pytest.fixture(scope="session")
def torch_root():
    return Path(torch.__file__).parent


@pytest.fixture(scope="session")
def prefix(build, tmp_path_factory):
    """The library, installed with CMake as a C++ user would."""
    prefix = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", build, "--prefix", prefix)
    return prefix


@pytest.fixture(scope="session")
def wheel(build, tmp_path_factory):
    """The wheel, built as pip does it; nothing is compiled again."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", folder]
    run(*pip, ROOT, env={"FUSED_ATTENTION_BUILD_DIR": str(build)})
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def unpacked_wheel(wheel, tmp_path_factory):
    """A folder to put on the path, with the package as the wheel brings it."""
    folder = tmp_path_factory.mktemp("unpacked")
    shutil.unpack_archive(wheel, folder, "zip")
    return folder


@pytest.fixture
def package_copy(unpacked_wheel, tmp_path):
    """A second copy of the package, to be changed. It finds torch by its build-time path."""
    shutil.copytree(unpacked_wheel / "fused_attention", tmp_path / "copy/fused_attention")
    return tmp_path / "copy"


@pytest.fixture
def torch_tree(torch_root, tmp_path):
    """Makes trees that look like another torch: of another version, or a CPU build."""

    def make(version=None, without=()):
        tree = tmp_path / f"torch-{version}-{len(without)}"
        (tree / "lib").mkdir(parents=True)
        for library in (torch_root / "lib").glob("*.so*"):
            if not any(name in library.name for name in without):
                (tree / "lib" / library.name).symlink_to(library)
        if version is None:
            (tree / "include").symlink_to(torch_root / "include")
        else:
            header = tree / "include/torch/headeronly/version.h"
            header.parent.mkdir(parents=True)
            parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
            header.write_text("".join(f"#define TORCH_VERSION_{n} {v}\n" for n, v in parts))
        return tree

    return make
