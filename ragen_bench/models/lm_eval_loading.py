"""A name of lm-eval and model arguments to a model object, quietly, or a refusal."""

import contextlib
import dataclasses
import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ragen_bench.errors import InvalidSpec, MissingExtra, UnknownName
from ragen_bench.models import hf_loading, lm_eval_quiet

_SECRETS = frozenset({"access_token", "api_key", "auth_token", "header", "token"})
_OVERRULED = ("o1", "o3", "o4", "5")
"""lm-eval drops stops and sets temperature 1 where a model's name holds one of them."""
_BATCH = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """A new model object."""

    lm: Any
    served: bool
    notes: tuple[str, ...]


def version() -> str:
    """Return the version of lm-eval that is installed."""
    return importlib.metadata.version("lm_eval")


def require_extra(feature: str) -> None:
    """Import lm-eval.

    Raises:
        MissingExtra: It is not installed.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import lm_eval.models  # noqa: F401  its registry learns the names
    except ImportError as error:
        raise MissingExtra("lm-eval", feature) from error


def create(name: str, arguments: Mapping[str, Any], *, insist: bool) -> Created:
    """Return a new object of one of lm-eval's model classes.

    Raises:
        UnknownName: lm-eval has no such class.
        InvalidSpec: A package that it needs is missing, or arguments are refused.
    """
    secret = sorted(_SECRETS & arguments.keys())
    if secret:
        raise InvalidSpec(
            f"model argument {secret[0]!r} would stand in run.json; set the key's "
            "environment variable, such as OPENAI_API_KEY, in its place"
        )
    cls = _class(name)
    served = _descends(cls, "TemplateAPI")
    notes = []
    if _is_overruled(cls, arguments):
        if not insist:
            raise InvalidSpec(
                f"lm-eval asks {arguments['model']!r} with temperature 1 and without "
                "stop strings, because of its name; take openai:NAME in its place, or "
                "insist=true"
            )
        notes.append("lm-eval sends temperature 1 and no stop strings")
    settings: dict[str, Any] = {
        key: arguments.get(key) for key in ("max_batch_size", "device")
    }
    settings["batch_size"] = arguments.get("batch_size", 1 if served else _BATCH)
    if settings["device"] is None and _descends(cls, "HFLM"):
        settings["device"] = _device()
    own = {key: value for key, value in arguments.items() if key not in settings}
    lm_eval_quiet.prepare(cls)
    with _quiet_loading():
        try:
            lm = cls.create_from_arg_obj(own, settings)
            if served:
                # Made of the key, which may be missing: better now than in a run.
                _ = lm.header
        except Exception as error:  # classes of lm-eval raise whatever they like
            first = str(error).strip().partition("\n")[0]
            raise InvalidSpec(
                f"lm-eval cannot make model {name!r} of {dict(arguments)!r}: "
                f"{type(error).__name__}: {first}"
            ) from error
    if hasattr(getattr(lm, "model", None), "generation_config"):
        _forget_sampling(lm.model)
    return Created(lm=lm, served=served, notes=tuple(notes))


def _class(name: str) -> Any:
    from lm_eval.api.registry import get_model, model_registry

    if not name:
        raise InvalidSpec("model 'lm-eval' needs a class of lm-eval: lm-eval:hf")
    if name not in model_registry:
        raise UnknownName.of("model class of lm-eval", name, model_registry)
    try:
        return get_model(name)
    except ImportError as error:
        raise InvalidSpec(
            f"lm-eval's model class {name!r} needs a package that is not installed: "
            f"{error}"
        ) from error


def _descends(cls: type, name: str) -> bool:
    return any(ancestor.__name__ == name for ancestor in cls.__mro__)


def _device() -> str:
    """Return a device that is there; lm-eval's own choice is always CUDA."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _is_overruled(cls: type, arguments: Mapping[str, Any]) -> bool:
    if not _descends(cls, "OpenAIChatCompletion"):
        return False
    return any(part in str(arguments.get("model")) for part in _OVERRULED)


def _forget_sampling(network: Any) -> None:
    """Leave of the folder's generation settings only the ids.

    A repetition penalty, say, would change replies that the run asks to be greedy.
    """
    held = network.generation_config
    names = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")
    ids = {name: getattr(held, name, None) for name in names}
    network.generation_config = type(held)(**ids)


@contextlib.contextmanager
def _quiet_loading() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(lm_eval_quiet.quietly())
        # Classes that ask a server do without both packages.
        with contextlib.suppress(ImportError):
            stack.enter_context(hf_loading.quiet())
        with contextlib.suppress(ImportError):
            stack.enter_context(hf_loading.one_core())
        yield
