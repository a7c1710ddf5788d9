"""How does a study of version 0.1 go on, and one of ours get into Optuna's dashboard?

Version 0.1 kept studies in files of lines, or in the tables and journals of Optuna. All of that
is read once, when such a study is opened again; Optuna's own reader is `parformer[optuna]`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parformer.errors import ConfigError, FolderError, need
from parformer.records import Json
from parformer.search.sizes.record import FORMAT, Finished
from parformer.search.sizes.storage import Address, translated
from parformer.store.lines import SEAL, Lines, unseal


@dataclass(frozen=True)
class Old:
    """A study as version 0.1 kept it."""

    settings: Json
    slots: int
    records: list[Finished]


def read_old(address: Address, name: str) -> Old | None:
    """The study of this name, where version 0.1 kept one."""
    if address.kind == "notebook":
        return read_notebook(address.path, name) if address.path.is_file() else None
    if address.kind == "journal" and not address.path.is_file():
        return None
    return read_optuna(address, name)


def read_notebook(path: Path, name: str) -> Old:
    """A line with the settings, then one for every generation."""
    with contextlib.closing(Lines(path, SEAL, unseal)) as lines:
        found = lines.found
    settings: Json = {}
    records: dict[int, Finished] = {}
    slots = 0
    try:
        for entry in found:
            if "format" in entry and (entry["format"] != FORMAT or entry["name"] != name):
                raise ConfigError(
                    f"{str(path)!r} has the study {entry['name']!r} in the format "
                    f"{entry['format']!r}, and no {name!r}; choose another --run"
                )
            settings = entry.get("settings", settings)
            slots = max(slots, entry.get("slots", 0))
            for record in map(Finished.from_dict, entry.get("records", ())):
                records.setdefault(record.slot, record)
    except (FolderError, KeyError, TypeError, AttributeError) as error:
        raise FolderError(f"{str(path)!r} is not a study of ours: {error!r}") from None
    return Old(settings, slots, list(records.values()))


def read_optuna(address: Address, name: str) -> Old | None:
    """A study whose trials have slots, by Optuna's own reader."""
    with optuna_storage(address) as (optuna, storage):
        if name not in optuna.get_all_study_names(storage=storage):
            return None
        study = optuna.load_study(study_name=name, storage=storage)
        stored = study.user_attrs.get("parformer")
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            return None
        records: dict[int, Finished] = {}
        for trial in study.get_trials(states=(optuna.trial.TrialState.COMPLETE,
                                              optuna.trial.TrialState.PRUNED)):  # fmt: skip
            if trial.user_attrs.keys() >= {"slot", "genome"}:
                record = Finished.from_dict({**trial.user_attrs, "values": trial.values})
                records.setdefault(record.slot, record)
        return Old(stored["settings"], int(study.user_attrs["slots"]), list(records.values()))


def write_optuna(address: Address, name: str, settings: Json, records: Sequence[Finished]) -> None:
    """A new study of Optuna's with these records."""
    if address.kind in ("memory", "notebook"):
        raise ConfigError(f"a study is copied to journal:, sqlite: or postgresql:, not {address}")
    with optuna_storage(address) as (optuna, place):
        if name in optuna.get_all_study_names(storage=place):
            raise ConfigError(f"{address} has a study {name!r} already; choose another name")
        objectives = [str(objective) for objective in settings["objectives"]]
        copy = optuna.create_study(
            study_name=name, storage=place, directions=["minimize"] * len(objectives)
        )
        copy.set_metric_names(objectives)
        copy.set_user_attr("settings", settings)
        state = optuna.trial.TrialState
        for record in records:
            kept = record.to_dict()
            values = kept.pop("values")
            how = state.PRUNED if values is None else state.COMPLETE
            trial = optuna.trial.create_trial(state=how, values=values, user_attrs=kept)
            copy.add_trial(trial)


@contextlib.contextmanager
def optuna_storage(address: Address) -> Iterator[tuple[Any, Any]]:
    """Optuna, silent, and its storage at an address."""
    optuna = need("optuna", extra="optuna")
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    with warnings.catch_warnings(), translated(address):
        warnings.simplefilter("ignore")
        try:
            storage = make_storage(optuna, address)
            yield optuna, storage
            if address.kind != "journal":
                storage.remove_session()
                storage.engine.dispose()
        except (RuntimeError, ValueError, KeyError) as error:
            said = str(error).splitlines()[0]
            raise FolderError(f"Optuna cannot read {address}: {said}") from None


def make_storage(optuna: Any, address: Address) -> Any:
    if address.kind == "journal":
        backend = optuna.storages.journal.JournalFileBackend(str(address.path))
        return optuna.storages.JournalStorage(backend)
    url = address.url.replace("postgresql:", "postgresql+psycopg:", 1)
    # Optuna fills in {SCHEMA_VERSION}; a password may have braces of its own
    escaped = (url or f"sqlite:///{address.path}").replace("{", "{{").replace("}", "}}")
    return optuna.storages.RDBStorage(escaped)
