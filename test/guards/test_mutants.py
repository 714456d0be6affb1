"""The mutants of test/mutants can be made: nobody has rewritten the text that they change."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "test/mutants"))
from cuda_launcher_mutants import LAUNCHER_MUTANTS  # noqa: E402
from cuda_mutants import CUDA_MUTANTS  # noqa: E402
from pair_mutants import PAIR_MUTANTS  # noqa: E402

from mutants import CPU_MUTANTS  # noqa: E402

_spec = importlib.util.spec_from_file_location("mutants_main", ROOT / "test/mutants/__main__.py")
main = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(main)


@pytest.mark.parametrize(
    "mutant", [*CPU_MUTANTS, *PAIR_MUTANTS, *CUDA_MUTANTS, *LAUNCHER_MUTANTS], ids=lambda m: m.name
)
def test_text_of_a_mutant_stands_once_in_its_file(mutant):
    texts = main.mutated(mutant)
    assert all(text != (ROOT / file).read_text() for file, text in texts.items())


def test_mutants_of_a_suite_have_names_of_their_own():
    for mutants in ((*CPU_MUTANTS, *PAIR_MUTANTS), CUDA_MUTANTS, LAUNCHER_MUTANTS):
        assert len({m.name for m in mutants}) == len(mutants)


def test_some_mutants_are_quick_and_all_run_in_their_suite():
    assert {m.suite for m in (*CPU_MUTANTS, *PAIR_MUTANTS)} == {"kernels"}
    assert {m.suite for m in CUDA_MUTANTS} == {"emulator"}
    assert {m.suite for m in LAUNCHER_MUTANTS} == {"launcher"}
    assert len(CUDA_MUTANTS) >= 15
    assert 5 <= sum(m.quick for m in CUDA_MUTANTS) <= 15
