"""How does a folder get to Hugging Face's hub?

By `huggingface_hub`, with the token that its user has logged in with or that stands in the
environment; Parformer neither asks for a token nor writes one anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parformer.errors import ConfigError, FolderError, need
from parformer.records import Record
from parformer.verbs import requested

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


@dataclass(frozen=True, kw_only=True)
class PushRequest:
    """A folder that `export --hub` wrote, and where it goes."""

    folder: Path
    """What 'parformer export --hub' wrote."""
    name: str
    """Of the repository: owner/name."""
    private: bool = False
    """For its owner alone."""
    message: str = "Upload a model made with Parformer"
    """What the hub's history says."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name) or ".." in self.name:
            raise ConfigError(f"a repository's name is owner/name, got {self.name!r:.80}")


@dataclass(frozen=True, slots=True)
class Pushed(Record):
    """Where a folder is now."""

    name: str
    url: str


def push(request: PushRequest | None = None, **given: Any) -> Pushed:
    """Upload a folder to Hugging Face's hub."""
    asked = requested(PushRequest, request, given)
    folder = Path(asked.folder)
    if not (folder / "config.json").is_file():
        raise FolderError(f"{str(folder)!r} has no config.json; write one with 'parformer export'")
    hub = need("huggingface_hub", extra="hub")
    try:
        client = hub.HfApi()
        made = client.create_repo(asked.name, private=asked.private, exist_ok=True)
        client.upload_folder(
            repo_id=asked.name, folder_path=str(folder), commit_message=asked.message
        )
    except (hub.errors.HfHubHTTPError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FolderError(f"cannot push to {asked.name!r}: {reason}; is one logged in?") from None
    return Pushed(asked.name, str(made))
