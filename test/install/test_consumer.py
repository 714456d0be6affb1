"""C++ programs that find the installed package."""

from pathlib import Path

import pytest
import torch
from commands import ROOT, configure, run

HERE = Path(__file__).parent
KINDS = ("fused_attention", "fused_attention_static")


@pytest.fixture(scope="module", params=["Debug", "Release"])
def consumer(request, prefix, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"consumer-{request.param}")
    if not list(prefix.rglob("libfused_attention_static.a")):
        pytest.skip("the build has no static library (-DFUSED_ATTENTION_STATIC=ON)")
    build_type = f"-DCMAKE_BUILD_TYPE={request.param}"
    configure(HERE / "consumer", folder, build_type, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", folder, "--parallel", "2")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_program_that_only_looks_the_operator_up_by_name_finds_it(consumer, kind):
    assert "worked" in run(consumer / f"with_{kind}").stdout


def test_package_refuses_another_torch_and_names_both(prefix, torch_tree, tmp_path):
    other = torch_tree(version="2.99.0")
    result = configure(
        HERE / "consumer",
        tmp_path / "b",
        f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DTORCH_ROOT={other}",
        check=False,
    )
    assert result.returncode != 0
    output = " ".join(result.stdout.split())
    built_with = torch.__version__.split("+")[0]
    assert f"was built with torch {built_with}, but torch 2.99.0 was found in {other}" in output


def test_example_trains_with_the_package_that_python_installs(unpacked_wheel, tmp_path):
    """examples/cpp_train finds the CMake package inside the wheel; its loss falls, or it fails."""
    package = unpacked_wheel / "fused_attention"
    configure(ROOT / "examples/cpp_train", tmp_path, f"-DCMAKE_PREFIX_PATH={package}")
    run("cmake", "--build", tmp_path)
    output = run(tmp_path / "cpp_train").stdout
    assert "loss" in output
