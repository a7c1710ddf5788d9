"""Which translators were trained, by those who trained two thousand of them?

Zhang and Duh 2020 (hpo_nmt) have two files for each pair of languages: `ja-en.hyps` says how each
Transformer was built and trained, `ja-en.evals` what became of it. LiteTransformerSearch's
Appendix J ranks them by parameters, among models of one vocabulary. Here every vocabulary of a
pair is an experiment of its own.
"""

from __future__ import annotations

from pathlib import Path

from parformer.errors import ConfigError
from parformer.notation import shown
from parformer.search.ranking.table import MOST_MODELS, Trained

BUILT = ("bpe", "cfg_n_layer", "cfg_d_model", "cfg_d_inner", "cfg_n_head", "learning_rate")
"""Columns of `.hyps`: pieces, and then as many layers in the encoder as in the decoder."""
BECAME = ("valid_bleu", "latency", "valid_ppl", "updates", "memory", "params_total")
"""Columns of `.evals`; the latency is that of the whole dev set on their GPU, in seconds."""


def read_translators(folder: Path) -> list[Trained]:
    """Every model of every pair of languages in a folder."""
    found: list[Trained] = []
    try:
        pairs = sorted(path for path in folder.iterdir() if path.suffix == ".hyps")
    except OSError as error:
        raise ConfigError(f"cannot read {str(folder)!r}: {error.strerror or error}") from None
    if not pairs:
        raise ConfigError(
            f"{str(folder)!r} has no tables of translators such as ja-en.hyps and ja-en.evals; "
            "name a folder that has, or a CSV file"
        )
    for path in pairs:
        built, became = (rows_of(path.with_suffix(end)) for end in (".hyps", ".evals"))
        if len(built) != len(became):
            raise ConfigError(
                f"{str(path)!r} has {len(built):,} lines and {path.stem}.evals {len(became):,}; "
                "line n of one must be about the model in line n of the other"
            )
        for line, (how, what) in enumerate(zip(built, became, strict=True), 1):
            values = dict(zip((*BUILT, *BECAME), (*how, *what), strict=True))
            sizes = [float(values[name]) for name in BUILT[1:4]]
            values["params_nonembedding"] = str(stack_parameters(*sizes))
            experiment = f"{path.stem}, {float(values['bpe']):,.0f} pieces"
            found.append(Trained(line, experiment, f"line {line}", values, str(path)))
    return found


def stack_parameters(layers: float, width: float, inner: float) -> int:
    """Parameters of encoder and decoder, as Sockeye builds them: attention without biases.

    >>> stack_parameters(1, 256, 1024)
    1840128
    """
    attention, feed = 3 * 4 * width**2, 2 * (2 * width * inner + inner + width)
    return int(layers * (attention + feed + 5 * 2 * width))


def rows_of(path: Path) -> list[list[str]]:
    """A file of numbers with tabs between, as many in each line as there are columns."""
    columns = BUILT if path.suffix == ".hyps" else BECAME
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} is no text: {error}") from None
    if len(lines) > MOST_MODELS:
        raise ConfigError(f"{str(path)!r} has more than {MOST_MODELS:,} models; cut it down")
    found = []
    for number, line in enumerate(lines, 1):
        row = line.split("\t")
        if len(row) != len(columns):
            raise ConfigError(
                f"line {number} of {str(path)!r} has {len(row)} values for {', '.join(columns)}"
            )
        for name, text in zip(columns, row, strict=True):
            if not is_number(text):
                raise ConfigError(
                    f"{name} in line {number} of {str(path)!r} is no number: {shown(text)}; mend it"
                )
        found.append(row)
    return found


def is_number(text: str) -> bool:
    try:
        return 0 <= float(text) < float("inf")
    except ValueError:
        return False
