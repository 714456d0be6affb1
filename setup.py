"""Drives CMake, which is the only build definition, and packs what it installs.

FUSED_ATTENTION_BUILD_DIR: where CMake builds (build/release). MAX_JOBS: compilers at a time.
CMAKE_ARGS: more arguments for the configure step. USE_CUDA: see cmake/CudaSwitch.cmake.
TORCH_CUDA_ARCH_LIST: see cmake/CudaArchitectures.cmake.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from setuptools import Command, setup
from setuptools.command.build import build
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError as error:
    raise SystemExit(
        "fused_attention needs setuptools 77 or newer to build, and a fresh virtual environment of "
        "Python 3.10 or 3.11 brings an older one. Run: pip install --upgrade 'setuptools>=77'"
    ) from error

SOURCE_DIR = Path(__file__).resolve().parent
PACKAGE_DIR = SOURCE_DIR / "python" / "fused_attention"


def read_version() -> str:
    header = (SOURCE_DIR / "include" / "fused_attention" / "version.h").read_text()
    return ".".join(re.findall(r"VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))


def check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise SystemExit(
            "fused_attention is built against the torch that it will run with, and there is no "
            f"torch in {sys.prefix}.\n"
            "If pip builds in isolation (its default), it cannot see the torch you have. Run:\n"
            "  pip install 'torch>=2.11' 'setuptools>=77' 'cmake>=3.28' ninja\n"
            "  pip install --no-build-isolation <path of the fused_attention sources>"
        )


class BuildCMake(Command):
    """Configures, builds and installs the library into the Python package."""

    description = "build the library with CMake"
    user_options: ClassVar[list] = []

    def initialize_options(self) -> None:
        self.build_lib = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        check_torch()
        cmake = shutil.which("cmake")
        if cmake is None:
            raise SystemExit(
                "cmake 3.28 or newer is needed to build. Run: pip install 'cmake>=3.28'"
            )
        build_dir = Path(
            os.environ.get("FUSED_ATTENTION_BUILD_DIR") or SOURCE_DIR / "build/release"
        )
        configure = [cmake, "-S", SOURCE_DIR, "-B", build_dir, "-DCMAKE_INSTALL_LIBDIR=lib"]
        configure.append(f"-DPython_EXECUTABLE={sys.executable}")
        configure.append(f"-DUSE_CUDA={os.environ.get('USE_CUDA') or 'auto'}")
        if not (build_dir / "CMakeCache.txt").exists():
            configure += ["-G", self.generator()]
        configure += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        subprocess.run(configure, check=True)
        jobs = ["--parallel", os.environ.get("MAX_JOBS") or str(len(os.sched_getaffinity(0)))]
        target = ["--target", "fused_attention_library"]
        subprocess.run([cmake, "--build", build_dir, *target, *jobs], check=True)

        prefix = PACKAGE_DIR if self.editable_mode else Path(self.build_lib) / "fused_attention"
        for component in ("library", "python"):
            install = [cmake, "--install", build_dir, "--prefix", prefix, "--component", component]
            subprocess.run(install, check=True)

    def generator(self) -> str:
        if os.environ.get("CMAKE_GENERATOR"):
            return os.environ["CMAKE_GENERATOR"]
        if shutil.which("ninja"):
            return "Ninja"
        print(
            "ninja is not there: building with make, which is slower (pip install ninja)",
            flush=True,
        )
        return "Unix Makefiles"

    # setuptools asks these of every build step before it makes an editable install.
    def get_source_files(self) -> list[str]:
        return []

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    sub_commands: ClassVar[list] = [*build.sub_commands, ("build_cmake", None)]

    def run(self) -> None:
        # What an earlier build left here would be packed too.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class Wheel(bdist_wheel):
    """One wheel for every Python 3: the library does not use Python's C interface."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    version=read_version(),
    cmdclass={"build": Build, "build_cmake": BuildCMake, "bdist_wheel": Wheel},
    distclass=BinaryDistribution,
)
