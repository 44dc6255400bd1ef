"""The tasks of ragen-bench for the stock command of lm-evaluation-harness.

``lm_eval --include_path "$(ragen-bench lm-eval-path)" --tasks ragen_smoke
--apply_chat_template ...`` finds the YAML files of this folder.  A task plays its
episodes turn by turn with the machinery of ``ragen-bench run``, so that both give the
same scores.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
"""What ``--include_path`` is given."""
