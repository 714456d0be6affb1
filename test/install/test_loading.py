"""Importing the package and loading its library: any order, any number of copies, any torch."""

import re

import pytest
import torch
from commands import run_python

CALL = """
import torch
q = torch.randn(1, 2, 5, 8, requires_grad=True)
out = torch.ops.fused_attention.attention(q, q, q)
expected = torch.nn.functional.scaled_dot_product_attention(q, q, q)
torch.testing.assert_close(out, expected)
out.sum().backward()
print("worked")
"""


def test_import_before_torch_works(unpacked_wheel):
    output = run_python("import fused_attention\n" + CALL, path=unpacked_wheel).stdout
    assert "worked" in output


def test_library_loads_before_torch(unpacked_wheel):
    library = unpacked_wheel / "fused_attention/lib/libfused_attention.so"
    code = f"import ctypes; ctypes.CDLL({str(library)!r})\n" + CALL
    assert "worked" in run_python(code).stdout


def test_second_copy_stays_passive(unpacked_wheel, package_copy):
    library = package_copy / "fused_attention/lib/libfused_attention.so"
    code = f"import fused_attention, torch; torch.ops.load_library({str(library)!r})\n" + CALL
    output = run_python(code, path=unpacked_wheel).stdout
    assert "worked" in output
    assert "another copy of the library is loaded" in output


def test_import_after_another_copy_was_loaded_works(unpacked_wheel, package_copy):
    library = package_copy / "fused_attention/lib/libfused_attention.so"
    code = (
        f"import torch; torch.ops.load_library({str(library)!r}); import fused_attention\n" + CALL
    )
    assert "worked" in run_python(code, path=unpacked_wheel).stdout


def test_same_library_under_another_name_is_loaded_once(unpacked_wheel, tmp_path):
    library = unpacked_wheel / "fused_attention/lib/libfused_attention.so"
    (tmp_path / "alias.so").symlink_to(library)
    alias = str(tmp_path / "alias.so")
    code = f"import fused_attention, torch; torch.ops.load_library({alias!r})\n" + CALL
    output = run_python(code, path=unpacked_wheel).stdout
    assert "worked" in output
    assert "another copy" not in output


@pytest.mark.parametrize("built_for", ["2.3.0", "3.0.0"])
def test_import_under_another_torch_says_how_to_rebuild(package_copy, built_for):
    info = package_copy / "fused_attention/_build_info.py"
    info.write_text(
        re.sub(r'torch_version = ".*"', f'torch_version = "{built_for}"', info.read_text())
    )
    result = run_python("import fused_attention", path=package_copy, check=False)
    assert result.returncode != 0
    assert f"built for torch {built_for}, but this is torch {torch.__version__}" in result.stdout
    assert "pip install --no-build-isolation" in result.stdout


def test_import_under_another_patch_release_works(package_copy):
    minor = ".".join(torch.__version__.split(".")[:2])
    info = package_copy / "fused_attention/_build_info.py"
    info.write_text(
        re.sub(r'torch_version = ".*"', f'torch_version = "{minor}.99"', info.read_text())
    )
    assert "worked" in run_python("import fused_attention\n" + CALL, path=package_copy).stdout


def test_import_of_sources_that_were_not_built_says_how_to_build(package_copy):
    (package_copy / "fused_attention/_build_info.py").unlink()
    result = run_python("import fused_attention", path=package_copy, check=False)
    assert result.returncode != 0
    assert "ImportError: fused_attention has no built library" in result.stdout
    assert "pip install --no-build-isolation -e ." in result.stdout


def test_library_that_does_not_load_raises_the_linkers_reason(package_copy):
    (package_copy / "fused_attention/lib/libfused_attention.so").write_text("not a library")
    result = run_python("import fused_attention", path=package_copy, check=False)
    assert result.returncode != 0
    assert re.search(
        r"ImportError: .*cannot be loaded.*: .*(invalid ELF|file too short)", result.stdout
    )
    assert "Rebuild it: pip install --no-build-isolation" in result.stdout
