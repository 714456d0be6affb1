"""Configuring: which torch, which CUDA decision, which generator."""

import os
import shutil
import stat
import sys

import pytest
import torch
from commands import ROOT, configure, run


def test_torch_of_the_interpreter_is_found_with_its_version(tmp_path, torch_root):
    output = configure(ROOT, tmp_path / "b", "-DUSE_CUDA=0").stdout
    version = ".".join(torch.__version__.split("+")[0].split(".")[:3])
    assert f"torch {version} in {torch_root.resolve()}" in output


def test_configuring_without_torch_says_how_to_name_one(tmp_path):
    python = tmp_path / "python-without-packages"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    result = configure(ROOT, tmp_path / "b", f"-DPython_EXECUTABLE={python}", check=False)
    assert result.returncode != 0
    for hint in ("-DTORCH_ROOT=", "--no-build-isolation", str(python)):
        assert hint in " ".join(result.stdout.split())


def test_torch_older_than_supported_is_refused(tmp_path, torch_tree):
    old = torch_tree(version="2.10.1")
    result = configure(ROOT, tmp_path / "b", f"-DTORCH_ROOT={old}", check=False)
    assert result.returncode != 0
    output = " ".join(result.stdout.split())
    assert 'unsuitable version "2.10.1"' in output
    assert "No torch in" not in output


def test_cpu_build_of_torch_configures_without_cuda(tmp_path, torch_tree):
    cpu = torch_tree(without=("cuda", "nvshmem", "nvrtc"))
    output = configure(ROOT, tmp_path / "b", f"-DTORCH_ROOT={cpu}", "-DUSE_CUDA=auto").stdout
    assert "CUDA kernels: no (USE_CUDA=auto: torch is a CPU build)" in output


def test_machine_without_toolkit_configures_with_a_cuda_build_of_torch(tmp_path, torch_tree):
    if not torch.version.cuda:
        pytest.skip("this torch is a CPU build")
    # An empty name keeps CMake from searching: the effect of a machine that has no toolkit at all.
    no_toolkit = "-DCMAKE_CUDA_COMPILER="
    output = configure(ROOT, tmp_path / "b", "-DUSE_CUDA=auto", no_toolkit).stdout
    assert "CUDA kernels: no (USE_CUDA=auto: there is no CUDA toolkit)" in output


@pytest.mark.parametrize("how", ["variable", "environment"])
def test_use_cuda_0_is_obeyed(tmp_path, how):
    arguments = ["-DUSE_CUDA=0"] if how == "variable" else []
    env = {"USE_CUDA": "0"} if how == "environment" else {"USE_CUDA": ""}
    assert (
        "CUDA kernels: no (USE_CUDA=0)"
        in configure(ROOT, tmp_path / "b", *arguments, env=env).stdout
    )


def test_use_cuda_1_with_a_cpu_build_of_torch_fails_and_says_why(tmp_path, torch_tree):
    cpu = torch_tree(without=("cuda", "nvshmem", "nvrtc"))
    result = configure(ROOT, tmp_path / "b", f"-DTORCH_ROOT={cpu}", "-DUSE_CUDA=1", check=False)
    assert result.returncode != 0
    words = " ".join(result.stdout.split())
    assert "asks for CUDA kernels, but torch is a CPU build" in words


def fake_nvcc(folder, release):
    nvcc = folder / "nvcc"
    nvcc.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release {release}, V{release}.1"\n')
    nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)
    return nvcc


def test_toolkit_of_another_major_release_than_torchs_is_not_used(tmp_path):
    if not torch.version.cuda:
        pytest.skip("this torch is a CPU build")
    nvcc = f"-DCMAKE_CUDA_COMPILER={fake_nvcc(tmp_path, '1.0')}"
    reason = f"torch has CUDA {torch.version.cuda}, but {tmp_path}/nvcc is of CUDA 1"
    output = configure(ROOT, tmp_path / "auto", "-DUSE_CUDA=auto", nvcc).stdout
    assert f"CUDA kernels: no (USE_CUDA=auto: {reason})" in output
    result = configure(ROOT, tmp_path / "forced", "-DUSE_CUDA=1", nvcc, check=False)
    assert result.returncode != 0
    assert reason in " ".join(result.stdout.split())


def test_toolkit_that_fits_torch_is_used_whether_or_not_there_is_a_gpu(tmp_path):
    toolkit = shutil.which("nvcc", path="/usr/local/cuda/bin" + os.pathsep + os.environ["PATH"])
    if not torch.version.cuda or not toolkit:
        pytest.skip("needs a CUDA build of torch and a CUDA toolkit (no GPU)")
    release = run(toolkit, "--version").stdout
    if f"release {torch.version.cuda.split('.')[0]}." not in release:
        pytest.skip("the CUDA toolkit is of another major release than torch's")
    env = {"CUDA_VISIBLE_DEVICES": "", "TORCH_CUDA_ARCH_LIST": ""}
    output = configure(
        ROOT, tmp_path / "b", f"-DCMAKE_CUDA_COMPILER={toolkit}", "-DUSE_CUDA=1", env=env
    ).stdout
    assert f"CUDA kernels: yes, for 80-real, 90 ({toolkit})" in output


def architectures(tmp_path, *arguments, env=None, check=True):
    """What CMAKE_CUDA_ARCHITECTURES becomes; the whole output if that fails."""
    script = tmp_path / "architectures.cmake"
    script.write_text(
        f'include("{ROOT}/cmake/CudaArchitectures.cmake")\n'
        "fused_attention_cuda_architectures(result)\n"
        'message("result=${result}")\n'
    )
    env = {"TORCH_CUDA_ARCH_LIST": "", **(env or {})}
    output = run("cmake", *arguments, "-P", script, env=env, check=check).stdout
    return output.split("result=")[1].strip() if check else " ".join(output.split())


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("", "80-real;90"),
        ("8.0;9.0+PTX", "80-real;90"),
        ("8.6 8.9  12.0+PTX", "86-real;89-real;120"),
        ("9.0a", "90a-real"),
        ("7.0;7.5;8.0", "80-real"),
        ("Ampere;Hopper", "80-real;86;90"),
        ("Ampere+Tegra", "87-real"),
        ("native", "native"),
    ],
)
def test_torch_cuda_arch_list_is_read_as_torchs_extensions_read_it(tmp_path, asked, given):
    assert architectures(tmp_path, env={"TORCH_CUDA_ARCH_LIST": asked}) == given
    other = {"TORCH_CUDA_ARCH_LIST": "10.0"}  # the variable counts more
    if asked:
        assert architectures(tmp_path, f"-DTORCH_CUDA_ARCH_LIST={asked}", env=other) == given


@pytest.mark.parametrize("asked", ["sm_80", "8", "8.0,9.0", "80", "8.0;PTX"])
def test_torch_cuda_arch_list_of_another_form_fails_and_says_so(tmp_path, asked):
    output = architectures(tmp_path, env={"TORCH_CUDA_ARCH_LIST": asked}, check=False)
    assert "is a list such as '8.0;9.0+PTX'" in output
    assert "CMAKE_CUDA_ARCHITECTURES" in output


def test_torch_cuda_arch_list_without_a_gpu_that_the_kernels_run_on_fails(tmp_path):
    output = architectures(tmp_path, env={"TORCH_CUDA_ARCH_LIST": "7.0 7.5+PTX"}, check=False)
    assert "need 8.0 or newer" in output


def test_torch_cuda_arch_list_decides_what_is_compiled(tmp_path):
    if not torch.version.cuda:
        pytest.skip("this torch is a CPU build")
    release = torch.version.cuda.split(".")[0] + ".0"
    arguments = (f"-DCMAKE_CUDA_COMPILER={fake_nvcc(tmp_path, release)}", "-DUSE_CUDA=1")
    env = {"TORCH_CUDA_ARCH_LIST": "8.6+PTX"}
    # The compiler is none, so that this fails later.
    output = configure(ROOT, tmp_path / "b", *arguments, env=env, check=False).stdout
    assert "CUDA kernels: yes, for 86 (" in output
    by_hand = "-DCMAKE_CUDA_ARCHITECTURES=89-real"
    output = configure(ROOT, tmp_path / "c", *arguments, by_hand, env=env, check=False).stdout
    assert "CUDA kernels: yes, for 89-real (" in output


def test_use_cuda_of_another_word_fails(tmp_path):
    result = configure(ROOT, tmp_path / "b", "-DUSE_CUDA=perhaps", check=False)
    assert result.returncode != 0
    assert "USE_CUDA is auto, 0 or 1, but got 'perhaps'" in result.stdout


def test_building_works_without_ninja(tmp_path):
    """With make as the generator; one small file stands for all, which are compiled elsewhere."""
    configure(ROOT, tmp_path / "b", "-G", "Unix Makefiles", "-DUSE_CUDA=0")
    run("cmake", "--build", tmp_path / "b", "--target", "fused_attention_isa")


def test_pip_build_without_ninja_uses_make_and_respects_max_jobs(tmp_path):
    """A stand-in for cmake records what setup.py asks for."""
    tools, log = tmp_path / "tools", tmp_path / "log"
    tools.mkdir()
    (tools / "cmake").write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    (tools / "cmake").chmod(0o755)
    env = {
        "PATH": str(tools),
        "MAX_JOBS": "1",
        "FUSED_ATTENTION_BUILD_DIR": str(tmp_path / "b"),
        "CMAKE_GENERATOR": "",
    }
    output = run(sys.executable, "setup.py", "-q", "build_cmake", env=env, cwd=ROOT).stdout
    assert "ninja is not there" in output
    configured, built, *installed = log.read_text().splitlines()
    assert "-G Unix Makefiles" in configured
    assert f"-DPython_EXECUTABLE={sys.executable}" in configured
    assert built.endswith("--parallel 1")
    assert len(installed) == 2
