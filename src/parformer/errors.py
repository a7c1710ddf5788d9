"""What can go wrong because of what a user gave us?

Every message is one line with the value, the place and the way out. The command
line prints it and leaves with status 2; an assertion, by contrast, is our own bug.
"""

from __future__ import annotations

import importlib
from types import ModuleType


class ParformerError(Exception):
    """Something the caller can mend."""

    status = 2
    """What the command line leaves with."""


class PatternError(ParformerError):
    """A pattern that cannot be read."""


class ConfigError(ParformerError):
    """A configuration whose parts do not fit together, or a name nobody knows."""


class InputError(ParformerError):
    """Tokens, targets or a state that this model cannot take."""


class FolderError(ParformerError):
    """A model folder or run that is missing, damaged or not ours."""


class CorpusError(ParformerError):
    """Text that is missing, damaged, too short, or not what it was."""


class TrainingError(ParformerError):
    """A training that cannot go on, such as one whose numbers are no longer finite."""

    status = 3


class Stopped(ParformerError):
    """A job that was asked to stop, and did, with everything saved."""

    status = 130


class MissingExtra(ParformerError):
    """An optional package that is not installed."""


def need(package: str, *, extra: str) -> ModuleType:
    """Import an optional package where it is used, or name the extra that brings it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != package.split(".")[0]:
            raise
        raise MissingExtra(f"{package} is missing: pip install 'parformer[{extra}]'") from None
