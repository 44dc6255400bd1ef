"""Think-act: a language model that reasons, then answers (RAGEN's protocol)."""

from ragen_bench.chat import ChatAgent
from ragen_bench.registry import register_agent


@register_agent("think_act")
class ThinkAct(ChatAgent):
    """Asks for ``<think>...</think><answer>...</answer>``, 256 new tokens."""

    protocol = "think_act"
    default_max_tokens = 256
