"""``python -m ragen_bench`` is ``ragen-bench``."""

from ragen_bench.cli import main

if __name__ == "__main__":
    main()
