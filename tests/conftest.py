"""Lets tests, and the processes that they start, import the toy task."""

import os
import sys
from pathlib import Path

from hypothesis import Phase, settings

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [HERE, os.environ.get("PYTHONPATH")])
)

settings.register_profile(
    "same everywhere", deadline=None, derandomize=True, database=None, max_examples=50
)
settings.register_profile(
    "first failure",
    settings.get_profile("same everywhere"),
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("same everywhere")
