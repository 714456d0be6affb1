"""The summary of `make test`."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run_checks():
    spec = importlib.util.spec_from_file_location("run_checks", ROOT / "scripts/run_checks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("@pytest.mark.gpu\ndef test_a(): pass\n@pytest.mark.gpu\ndef test_b(): pass", 2),
        ("@pytest.mark.gpu\ndef test_a(): pass\nimport no_such_module", None),
        ("def test_a(): pass", None),
    ],
    ids=["two", "broken", "none"],
)
def test_gpu_tests_are_counted_or_their_collection_fails(run_checks, tmp_path, text, count):
    folder = tmp_path / "test/python"
    folder.mkdir(parents=True)
    (folder / "test_some.py").write_text(f"import pytest\n{text}\n")
    assert run_checks.gpu_tests(tmp_path) == count
