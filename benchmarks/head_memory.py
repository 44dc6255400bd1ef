"""Shows the memory that the head in chunks saves, each way in a process of its own.

    python benchmarks/head_memory.py

A forward and a backward pass through the head of SmolLM2 alone: states of width 576,
49,152 words.  The memory is the peak of the process above what it held before.
"""

import argparse
import subprocess
import sys
from pathlib import Path

WIDTH, WORDS = 576, 49_152


def peak_mib() -> float:
    """Return the peak of this process, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise SystemExit("this system does not tell the peak of a process")


def forward_and_backward(way: str, tokens: int) -> float:
    """Return what one pass takes, in MiB."""
    import torch

    from ragen_bench.starpo.logprobs import Selected, token_logprobs

    torch.set_num_threads(1)
    hidden = torch.randn(tokens, WIDTH).requires_grad_(True)
    weight = torch.randn(WORDS, WIDTH).mul_(0.02).requires_grad_(True)
    targets = torch.randint(WORDS, (tokens,))
    weight.grad, hidden.grad = torch.ones_like(weight), torch.ones_like(hidden)
    before = peak_mib()
    if way == "chunks":
        found = token_logprobs(Selected(hidden=hidden, targets=targets), weight)
        logprobs = found.logprobs
    else:
        log_p = torch.log_softmax(hidden @ weight.T, dim=-1)
        logprobs = log_p.gather(1, targets[:, None])
        with torch.no_grad():
            (log_p.exp() * log_p).sum(-1)
    logprobs.mean().backward()
    return peak_mib() - before


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--way", choices=("chunks", "whole"))
    asked = parser.parse_args()
    if asked.way:
        print(forward_and_backward(asked.way, asked.tokens))
        return
    print(f"| head, {asked.tokens} tokens | peak MiB |\n|---|---:|")
    for way in ("whole", "chunks"):
        command = [sys.executable, __file__, "--way", way]
        done = subprocess.run(
            [*command, "--tokens", str(asked.tokens)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        print(f"| {way} | {float(done.stdout):,.0f} |", flush=True)


if __name__ == "__main__":
    main()
