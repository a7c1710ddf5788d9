"""How does a model do on tasks that it was never trained for? By lm-eval, with no or few examples.

lm-eval has the tasks and counts what is right; here is its model. Data come from where lm-eval
looks for them, or from a local folder: task files of its own (YAML), or a task's rows as
`FOLDER/TASK/validation.jsonl`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from parformer.data.tokenizer import Tokenizer
from parformer.errors import ConfigError, FolderError, need
from parformer.evaluate.choices import score_pairs
from parformer.evaluate.untrained import TaskScore, TaskScores
from parformer.events import Preparing
from parformer.model import Model
from parformer.store.files import Json

GROUPS = {
    "lts-14": (
        *("hellaswag", "piqa", "arc_easy", "arc_challenge", "openbookqa", "winogrande"),
        *("boolq", "cb", "copa", "wic", "wsc", "multirc", "rte", "record"),
    )
}
"""The tasks of LiteTransformerSearch (section 4.5), by one name."""
SPLITS = ("train", "validation", "test")
MEASURES = ("acc", "acc_norm", "exact_match", "f1", "em", "bleu", "word_perplexity")
"""Which figure of a task stands for it: the first that it has."""


def score_tasks(
    model: Model,
    tokenizer: Tokenizer,
    tasks: Sequence[str],
    *,
    shots: int = 0,
    local: str = "",
    limit: int | None = None,
    preparing: Preparing | None = None,
) -> TaskScores:
    """What lm-eval counts on these tasks, with `shots` examples before each question."""
    lm_eval = need("lm_eval", extra="tasks")
    if not model.config.causal or model.config.head != "lm" or model.encoder is not None:
        raise ConfigError("tasks are for models that write on; this one does not")
    names = [name for task in tasks for name in GROUPS.get(task, (task,))]
    wanted, manager = find_tasks(names, local)
    judged = make_judged(model, tokenizer, preparing)
    with quietly(), explained(names, local):
        told = lm_eval.simple_evaluate(
            model=judged,
            tasks=wanted,
            num_fewshot=shots,
            task_manager=manager,
            limit=limit,
            bootstrap_iters=1000,
            log_samples=True,
        )
    if not told or not told.get("results"):
        raise ConfigError(f"lm-eval gave no score for {', '.join(names)}")
    scored = [name for name in told["results"] if name in told["samples"]]
    return TaskScores(tuple(one_score(name, told) for name in scored), shots)


def find_tasks(names: Sequence[str], local: str) -> tuple[list[Any], Any]:
    """Tasks as lm-eval takes them, with their rows from a local folder where those are."""
    from lm_eval.tasks import TaskManager

    place = Path(local) if local else None
    if place is not None and not place.is_dir():
        raise FolderError(f"no folder at {local!r} to take tasks from")
    own = str(place) if place is not None and any(place.rglob("*.yaml")) else None
    with quietly():
        # lm-eval's own hundreds take seconds to find, and may not be needed
        manager = TaskManager(include_path=own, include_defaults=False) if own else None
        if manager is None or not {*names} <= {*manager.all_tasks}:
            manager = TaskManager(include_path=own)
    known = set(manager.all_tasks)
    wanted: list[Any] = []
    for name in names:
        if name not in known:
            from parformer.fields import nearest

            raise ConfigError(f"unknown task {name!r:.60}; {nearest(name, sorted(known))}")
        rows = {} if place is None else rows_of(place / name)
        if rows:
            files = {"dataset_path": "json", "dataset_name": None}
            own_rows: Json = {"task": name, **files, "dataset_kwargs": {"data_files": rows}}
            # a task would look for the splits that it usually has
            missing = {"train": "training_split", "test": "test_split"}
            own_rows |= {key: None for split, key in missing.items() if split not in rows}
            # as a member of a group: there alone does lm-eval keep what is not said anew
            wanted.append({"group": f"{name}-local", "task": [own_rows]})
        else:
            wanted.append(name)
    return wanted, manager


def rows_of(folder: Path) -> dict[str, str]:
    files = {split: folder / f"{split}.jsonl" for split in SPLITS}
    return {split: str(file.resolve()) for split, file in files.items() if file.is_file()}


def make_judged(model: Model, tokenizer: Tokenizer, preparing: Preparing | None) -> Any:
    """The model as lm-eval asks it."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    from parformer.generate.writing import Sampling, generate_text

    ends = tokenizer.special("eos") if tokenizer.has("eos") else (tokenizer.encode("\n") or [0])[-1]
    longest = model.config.max_len if model.config.numbered else 2048

    class Judged(TemplateLM):  # type: ignore[misc]
        """Log-likelihoods, rolling ones, and greedy texts."""

        eot_token_id = ends
        max_length = longest

        def tok_encode(self, string: str, **more: Any) -> list[int]:
            return tokenizer.encode(string)

        def _loglikelihood_tokens(self, requests: Any, **more: Any) -> list[tuple[float, bool]]:
            pairs = [(context, continuation) for _, context, continuation in requests]
            tell = None if preparing is None else lambda share: preparing("choosing", share)
            return [tuple(one) for one in score_pairs(model, pairs, progress=tell)]  # type: ignore[misc]

        def loglikelihood_rolling(self, requests: Any, **more: Any) -> list[float]:
            totals = []
            for request in requests:
                windows = get_rolling_token_windows(
                    token_list=self.tok_encode(request.args[0]),
                    prefix_token=self.prefix_token_id,
                    max_seq_len=self.max_length,
                    context_len=1,
                )
                pairs = [make_disjoint_window(window) for window in windows]
                totals.append(sum(one.logprob for one in score_pairs(model, pairs)))
            return totals

        def generate_until(self, requests: Any, **more: Any) -> list[str]:
            texts = []
            for request in requests:
                prompt, how = request.args
                until = how.get("until", ())
                until = [until] if isinstance(until, str) else [stop for stop in until if stop]
                most = int(how.get("max_gen_toks", 256))
                greedy = Sampling(temperature=0)
                texts += generate_text(
                    model, tokenizer, [prompt], most, sampling=greedy, stop=until
                )
            return texts

    return Judged()


def one_score(name: str, told: Any) -> TaskScore:
    figures: dict[str, Any] = told["results"][name]
    plain = {key.partition(",")[0]: value for key, value in figures.items()}
    measure = next((m for m in MEASURES if m in plain), None)
    if measure is None:
        measure = next(k for k, v in plain.items() if isinstance(v, float))
    error = plain.get(f"{measure}_stderr")
    samples = told.get("samples", {}).get(name, [])
    choices = [len(sample["resps"]) for sample in samples if len(sample["resps"]) > 1]
    return TaskScore(
        task=name,
        measure=measure,
        value=float(plain[measure]),
        error=float(error) if isinstance(error, int | float) else None,
        chance=sum(1 / count for count in choices) / len(choices) if choices else None,
        count=len(samples),
    )


@contextlib.contextmanager
def explained(names: Sequence[str], local: str) -> Iterator[None]:
    """Say in a line that a task's data are not there."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        where = f"in {local!r}" if local else "without --from FOLDER"
        raise ConfigError(
            f"no data for {', '.join(names)} {where} ({reason}); put TASK/validation.jsonl there"
        ) from None


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """lm-eval and the libraries below it talk much."""
    loggers = [logging.getLogger(name) for name in ("lm_eval", "lm-eval", "datasets")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
