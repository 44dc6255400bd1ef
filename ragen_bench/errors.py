"""The exceptions of ragen-bench, one small tree.

RagenError
  UnknownName      (LookupError)    no such environment, agent, model, board
  InvalidSpec      (ValueError)     a setting, card or option breaks a rule
  InvalidAction    (ValueError)     an action index outside the action space
  GenerationError  (RuntimeError)   no instance fits the asked parameters
  MissingExtra     (ImportError)    an optional package is not installed
  RecordError      (ValueError)     a run folder or file cannot be read
  RunMismatch      (ValueError)     a run folder holds another configuration
  RunIncomplete    (RuntimeError)   a run had to stop; what was played is safe
    ProviderRefusal                 a provider will answer no request of the run
    OverBudget                      the money for the run is spent
  ContextOverflow  (RuntimeError)   a prompt does not fit the model's context
  ProviderError    (RuntimeError)   a model could not be asked, nobody's fault
  CheckFailed      (AssertionError) an environment or agent breaks its interface

Each also is the built-in exception it resembles, so callers may catch either.
Messages name the value, the rule and the way out.
"""

import difflib
from collections.abc import Iterable


class RagenError(Exception):
    """Any error that ragen-bench raises on purpose."""


class UnknownName(RagenError, LookupError):
    """No environment, agent, model, board or setting of that name exists."""

    @classmethod
    def of(
        cls, kind: str, name: object, known: Iterable[str], hint: str = ""
    ) -> "UnknownName":
        """Return an error that suggests the nearest known name.

        Args:
            kind: What was looked up, such as ``"environment"``.
            name: The name that was not found.
            known: The names that exist.
            hint: The way out, such as the command that lists all names.
        """
        names = sorted(known)
        close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
        if close:
            message = f"no {kind} {name!r}; did you mean {close[0]!r}?"
        else:
            message = f"no {kind} {name!r}; known are {', '.join(names) or 'none'}"
        return cls(f"{message} ({hint})" if hint else message)


class InvalidSpec(RagenError, ValueError):
    """A setting, a card or an option breaks a rule."""


class InvalidAction(RagenError, ValueError):
    """An action index lies outside the action space."""


class GenerationError(RagenError, RuntimeError):
    """No instance that fits the asked parameters was found."""


class MissingExtra(RagenError, ImportError):
    """An optional package is needed and not installed."""

    def __init__(self, extra: str, feature: str = "this") -> None:
        """Name the extra and the command that installs it."""
        super().__init__(
            f"{feature} needs the extra {extra!r}, which is not installed: "
            f"pip install 'ragen-bench[{extra}]'"
        )
        self.extra = extra


class RecordError(RagenError, ValueError):
    """A run folder or one of its files cannot be read."""


class RunMismatch(RagenError, ValueError):
    """A run folder holds episodes of another configuration."""


class RunIncomplete(RagenError, RuntimeError):
    """A run had to stop before its end; what was played is safe."""


class ProviderRefusal(RunIncomplete):
    """A provider will answer no request of this run: no key, no credit, no such way.

    It ends the run; the episodes in flight stay owed.
    """


class OverBudget(RunIncomplete):
    """The money that a run may spend is spent; episodes in flight stay owed."""


class ContextOverflow(RagenError, RuntimeError):
    """A prompt does not fit into the model's context."""


class ProviderError(RagenError, RuntimeError):
    """A model could not be asked; neither the agent nor the task is at fault."""


class CheckFailed(RagenError, AssertionError):
    """An environment or an agent breaks a rule of its interface."""

    def __init__(self, message: str, check: str = "") -> None:
        """Say what differs, and in which check of `ragen_bench.checks`."""
        super().__init__(message)
        self.check = check
