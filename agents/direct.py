"""Direct: a language model that answers without thinking aloud."""

from ragen_bench.chat import ChatAgent
from ragen_bench.registry import register_agent


@register_agent("direct")
class Direct(ChatAgent):
    """Asks for ``<answer>...</answer>`` alone, 32 new tokens by default."""

    protocol = "direct"
    default_max_tokens = 32
