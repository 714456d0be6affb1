"""One seed for the whole session; every random test is rebuilt from it."""

from __future__ import annotations

import os
import random
import zlib

import torch

ENVIRONMENT = "FUSED_ATTENTION_TEST_SEED"


def session_seed() -> int:
    """The seed given by --seed or the environment, else a fresh one, fixed for the process."""
    if not os.environ.get(ENVIRONMENT):
        os.environ[ENVIRONMENT] = str(random.SystemRandom().randrange(2**31))
    return int(os.environ[ENVIRONMENT])


def seed_test(name: str) -> None:
    """Seeds torch from the session seed and the test's name: a test can be rerun alone."""
    seed = zlib.crc32(f"{session_seed()}:{name}".encode())
    torch.manual_seed(seed)
    random.seed(seed)
