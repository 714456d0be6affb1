"""examples/train_lm runs as its user runs it: as a script, in its own process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "train_lm"
TINY = (
    "--threads 1 --steps 3 --layers 1 --width 32 --heads 4 --kv-heads 2 --head-dim 8 --context 64 "
    "--sample 8"
)

# Doubles the scale in the fused copy only.
WITH_WRONG_SCALE = f"""
import sys
sys.path.insert(0, {str(DEMO)!r})
import attentions
import train
right = attentions.ATTENTIONS[attentions.FUSED]
attentions.ATTENTIONS[attentions.FUSED] = lambda q, k, v: right(2 * q, k, v)
sys.exit(train.main(sys.argv[1:]))
"""

pytestmark = pytest.mark.own_mode  # other processes
pytest.importorskip("rich")
pytest.importorskip("matplotlib")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {i}: the square is {i * i}\n" for i in range(300)))
    return path


def run(command: list[str], text: Path, *options: str) -> subprocess.CompletedProcess:
    where = ["--text", str(text), "--out", str(text.parent / "out")]
    return subprocess.run(
        [sys.executable, *command, *TINY.split(), *where, *options],
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_train_lm_finds_the_two_trainings_equal_and_writes_its_results(text: Path) -> None:
    done = run([str(DEMO / "train.py")], text)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Same training" in done.stdout
    out = text.parent / "out"
    assert (out / "train_lm.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((out / "train_lm.json").read_text())
    assert result["same_training"] is True
    assert {len(model["losses"]) for model in result["models"].values()} == {3}
    assert all(model["median_attention_seconds"] > 0 for model in result["models"].values())


def test_train_lm_exits_with_an_error_when_the_losses_part(text: Path) -> None:
    done = run(["-c", WITH_WRONG_SCALE], text)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "PART" in done.stdout
    assert json.loads((text.parent / "out" / "train_lm.json").read_text())["same_training"] is False


def test_train_lm_names_the_missing_text(text: Path) -> None:
    done = run([str(DEMO / "train.py")], text, "--text", str(text.with_name("absent.txt")))
    assert done.returncode == 2
    assert "there is no file" in done.stderr
