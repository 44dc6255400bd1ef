"""What ``!function`` in the YAML files finds: lm-eval looks beside a file first."""

from ragen_bench.lm_eval_tasks.multi_turn import RagenTask

__all__ = ["RagenTask"]
