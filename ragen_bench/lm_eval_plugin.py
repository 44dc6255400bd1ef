"""Makes lm-eval know the model ``ragen-bench``, where it finds no entry points.

``python -m ragen_bench.lm_eval_plugin`` takes the arguments of lm-eval's own command;
with newer releases ``lm_eval --model ragen-bench`` does without it.
"""

from ragen_bench.errors import MissingExtra

NAME = "ragen-bench"
"""What ``lm_eval --model`` is given."""
TARGET = "ragen_bench.models.lm_eval_lm:RagenBenchLM"
"""What it stands for; the entry point in ``pyproject.toml`` says the same."""


def register() -> None:
    """Make lm-eval know the model.

    Raises:
        MissingExtra: lm-eval is not installed.
    """
    try:
        import lm_eval.models  # noqa: F401  its own names come first
        from lm_eval.api.registry import model_registry
    except ImportError as error:
        raise MissingExtra("lm-eval", "lm-eval's model 'ragen-bench'") from error
    if NAME not in model_registry:
        model_registry.register(NAME, target=TARGET)


def main() -> None:
    """Run lm-eval's command, with the model registered."""
    register()
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
