"""Language models: a name's prefix to the function that loads it.

A loader takes what stands after the colon and keyword-only arguments, and imports
its heavy packages itself.
"""

from ragen_bench.registry import MODELS

MODELS.add("scripted", "ragen_bench.models.scripted:load")
MODELS.add("hf", "ragen_bench.models.hf_engine:load")
MODELS.add("tiny", "ragen_bench.models.hf_engine:load_tiny")
MODELS.add("vllm", "ragen_bench.models.vllm_engine:load")
MODELS.add("openai", "ragen_bench.models.endpoint:load")
MODELS.add("lm-eval", "ragen_bench.models.lm_eval_adapter:load")
