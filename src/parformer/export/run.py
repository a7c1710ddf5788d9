"""Runs a model that Parformer exported: onnxruntime and numpy are all it needs.

A tokenizer of subwords needs the package tokenizers too.

    python run.py --prompt 'def ' --tokens 100 --greedy
    python run.py --source 'Ein Hund.'          what a translator makes of it
    python run.py --text 'a text'               what an encoder makes of it
"""

# b batch, t time, n places, v vocabulary

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Json: TypeAlias = dict[str, Any]
PIECE = 512
"""Tokens of a prompt that are read at once."""


class Runner:
    """The graphs of a folder, and the state between their steps."""

    def __init__(self, folder: str | Path, threads: int = 0) -> None:
        import onnxruntime

        self.folder = Path(folder)
        self.told: Json = json.loads((self.folder / "parformer.json").read_text("utf-8"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.graphs = {
            name: onnxruntime.InferenceSession(
                str(self.folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"]
            )
            for name in self.told["graphs"]
        }
        self.slots: list[Json] = self.told["state"]
        counts = self.folder / "counts.bin"
        self.counts = Counts(np.fromfile(counts, np.uint8)) if counts.exists() else None

    def run(self, graph: str, given: Json) -> dict[str, NDArray[Any]]:
        session = self.graphs[graph]
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, given), strict=True))

    # Writing

    def start(self, batch: int) -> Json:
        """The state before the first token."""
        state: Json = {
            "position": 0,
            "mask": np.ones((batch, 0), np.int64),
            "recent": np.zeros((batch, 0), np.int64),
        }
        for slot in self.slots:
            shape = (batch, *(max(size, 0) for size in slot["shape"]))
            kind = np.int64 if slot["whole"] else np.float32
            state[slot["name"]] = np.full(shape, slot["fill"], kind)
        return state

    def step(self, tokens_bt: NDArray[np.int64], state: Json) -> tuple[NDArray[np.float32], Json]:
        """Logits (batch, time, vocabulary) of some more tokens, and the state after them."""
        batch, time = tokens_bt.shape
        window = self.told["window"]
        if window and state["position"] + time > window:  # read the last ones again
            tokens_bt = np.concatenate((state["recent"], tokens_bt), 1)[:, -window:]
            again = {name: state[name] for name in state if ".encoder." in name or name == "source"}
            logits, state = self.step(tokens_bt, self.start(batch) | again)
            return logits[:, -time:], state
        mask = np.concatenate((state["mask"], np.ones((batch, time), np.int64)), 1)
        places = np.arange(state["position"], state["position"] + time)[None].repeat(batch, 0)
        given = {"input_ids": tokens_bt, "position_ids": places, "attention_mask": mask}
        given |= {f"past_key_values.{s['name']}": state[s["name"]] for s in self.slots}
        if "source" in state:
            given["encoder_attention_mask"] = state["source"]
        recent = np.concatenate((state["recent"], tokens_bt), 1)
        given |= self.hints(recent, time)
        graph = "decoder" if "decoder" in self.graphs else "model"
        wanted = {one.name for one in self.graphs[graph].get_inputs()}
        out = self.run(graph, {name: value for name, value in given.items() if name in wanted})
        memory = self.told["memory"]
        after = {
            "position": state["position"] + time,
            "mask": mask[:, max(0, mask.shape[1] - memory) :],
            "recent": recent[:, max(0, recent.shape[1] - max(self.told["sight"], window, 1)) :],
        }
        after |= {"source": state["source"]} if "source" in state else {}
        for slot in self.slots:
            kept: Any = out.get(f"present.{slot['name']}", state[slot["name"]])
            if -1 in slot["shape"] and ".encoder." not in slot["name"]:
                kept = kept[:, :, max(0, kept.shape[2] - memory) :]
            after[slot["name"]] = kept
        return out["logits"], after

    def hints(self, tokens_br: NDArray[np.int64], time: int) -> dict[str, NDArray[Any]]:
        """What counts and repeats say of the next tokens, where the model listens to them."""
        given: dict[str, NDArray[Any]] = {}
        tokens_br = tokens_br[:, max(0, tokens_br.shape[1] - time - self.told["sight"]) :]
        places = range(tokens_br.shape[1] - time, tokens_br.shape[1])
        if self.counts is not None:
            rows = [[self.counts.look(row[: n + 1]) for n in places] for row in tokens_br]
            given["counted"] = np.array(rows, np.float32)
        if self.told["recall"]:
            found = [
                [repeat(row[: n + 1].tolist(), self.told) for n in places] for row in tokens_br
            ]
            given["expected"], given["length"] = np.array(found, np.int64).transpose(2, 0, 1)
        return given

    def read(self, prompt: list[int], state: Json) -> tuple[NDArray[Any], Json]:
        """Logits after a prompt, which is read in pieces."""
        window = self.told["window"]
        tokens = np.array([prompt[-window:] if window else prompt], np.int64)
        logits = np.zeros((1, 1, 0), np.float32)
        for first in range(0, tokens.shape[1], window or PIECE):
            logits, state = self.step(tokens[:, first : first + (window or PIECE)], state)
        return logits[0, -1], state

    def generate(
        self,
        prompt: list[int],
        tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> list[int]:
        """Tokens after a prompt; temperature 0 always takes the likeliest."""
        random, written = np.random.default_rng(seed), list[int]()
        logits_v, state = self.read(prompt, self.start(1))
        while True:
            token = draw(logits_v[: self.told["size"]], random, temperature, top_k, top_p)
            written.append(token)
            if len(written) == tokens:
                return written
            logits_btv, state = self.step(np.array([[token]]), state)
            logits_v = logits_btv[0, -1]

    # Translating and reading

    def translate(self, source: list[int], most: int = 0) -> list[int]:
        """The likeliest token each time, until the end."""
        told = self.told
        tokens = np.array([[*source, told["end"]]], np.int64)
        mask = np.ones_like(tokens)
        read = self.run("encoder", {"input_ids": tokens, "attention_mask": mask})
        state = self.start(1) | {"source": mask}
        state |= {name.removeprefix("present."): value for name, value in read.items()}
        last, written = told["start"], list[int]()
        for _ in range(most or 2 * tokens.shape[1] + 10):
            logits, state = self.step(np.array([[last]]), state)
            logits_v = logits[0, -1].copy()
            logits_v[told["pad"]] = -np.inf
            last = int(logits_v.argmax())
            if last == told["end"]:
                break
            written.append(last)
        return written

    def look(self, tokens_bt: NDArray[np.int64], mask_bt: NDArray[np.int64] | None = None) -> Any:
        """All that an encoder tells of some texts."""
        mask = np.ones_like(tokens_bt) if mask_bt is None else mask_bt
        given = {"input_ids": tokens_bt, "attention_mask": mask}
        if any(one.name == "token_type_ids" for one in self.graphs["model"].get_inputs()):
            given["token_type_ids"] = np.zeros_like(tokens_bt)
        return self.run("model", given)


def draw(
    logits_v: NDArray[Any],
    random: np.random.Generator,
    temperature: float,
    top_k: int,
    top_p: float,
) -> int:
    if temperature == 0:
        return int(logits_v.argmax())
    scaled = logits_v.astype(np.float64) / temperature
    order = np.argsort(-scaled, kind="stable")
    chance = np.exp(scaled[order] - scaled[order[0]])
    chance /= chance.sum()
    keep = (np.cumsum(chance) - chance < top_p) & (np.arange(len(order)) < (top_k or len(order)))
    chance = np.where(keep, chance, 0)
    return int(order[random.choice(len(order), p=chance / chance.sum())])


def repeat(text: list[int], told: Json) -> tuple[int, int]:
    """The token after the longest repeat of a text's end, and its length."""
    end, best = len(text) - 1, (0, 0)
    for place in range(end - 1, max(end - told["recall"], 0) - 1, -1):
        length = 0
        while length < 32 and length <= place and text[place - length] == text[end - length]:
            length += 1
        if length >= 2 and length > best[1]:
            best = (text[place + 1], length)
    return best


class Counts:
    """A table of n-grams, as parformer/counts/table.py lays it out."""

    def __init__(self, table: NDArray[np.uint8]) -> None:
        self.table = table
        head = table[:256].view("<u4").astype(np.int64)
        _, _, self.size, depth = head[:4].tolist()
        self.empty = not head.any()
        contexts, tokens = (head[4 : 4 + 2 * depth].reshape(2, depth)).tolist() or ([], [])
        width = 1 if self.size <= 2**8 else 2 if self.size <= 2**16 else 4
        self.bits = [max(1, (max(count, 1) // 8).bit_length()) for count in contexts]
        self.place = 4 * (64 + self.size)
        self.frequencies = table[256 : 256 + 4 * self.size].view("<f4").astype(np.float64)
        firsts = self.parts("<u4", [2 * (2**few + 1) for few in self.bits])
        names = self.parts(f"<u{width}", tokens) if width > 1 else []
        marks = self.parts("<u2", contexts)
        names = names or self.parts("u1", tokens)
        chances = self.parts("u1", tokens)
        self.rooms = []
        for first, mark, name, chance in zip(firsts, marks, names, chances, strict=True):
            starts = np.concatenate(([0], np.flatnonzero(chance & 0x80) + 1))
            self.rooms.append((first.reshape(2, -1)[0], mark, name, chance & 0x7F, starts))
        self.chances = (1 / (1 + np.exp(-np.linspace(-11.5, 9.0, 128)))).astype(np.float32)

    def parts(self, kind: str, counts: list[int]) -> list[NDArray[Any]]:
        found = []
        for count in counts:
            size = np.dtype(kind).itemsize * count
            found.append(self.table[self.place : self.place + size].view(kind))
            self.place += size
        self.place += -self.place % 4
        return found

    def look(self, text: NDArray[np.int64]) -> NDArray[np.float64]:
        """Logarithms of every token's chance to come next."""
        if self.empty:
            return np.full(self.size, -np.log(self.size))
        chance, key = self.frequencies.copy(), 0
        rooms = zip(self.bits, self.rooms, reversed(text.tolist()), strict=False)
        for bits, (firsts, marks, names, coded, starts), token in rooms:
            key = ((key ^ (token + 1)) * 0x9E3779B97F4A7C15) % 2**64
            key = ((key ^ key >> 29) * 0xBF58476D1CE4E5B9) % 2**64
            bucket, mark = key >> 64 - bits, key >> 48 - bits & 0xFFFF
            near = marks[int(firsts[bucket]) : int(firsts[bucket + 1])]
            found = np.flatnonzero(near == mark)
            if not len(found):
                continue
            context = int(firsts[bucket]) + int(found[0])
            part = slice(int(starts[context]), int(starts[context + 1]))
            name, told = names[part].astype(np.int64), self.chances[coded[part]].astype(np.float64)
            left = max(1 - told.sum(), 1e-5) / max(1 - chance[name].sum(), 1e-5)
            chance *= left
            chance[name] = told
            chance /= chance.sum()
        logs: NDArray[np.float64] = np.log(chance / chance.sum())
        return logs


# Text


class Text:
    """Text to tokens and back, as tokenizer.json says; of pairs one side."""

    def __init__(self, folder: Path, side: int = 0) -> None:
        told = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        self.first = 0
        if "sides" in told:  # numbered after what stands for no token, for start and for end
            told, self.first = told["sides"][side], 3
        self.kind: str = told["kind"]
        self.told = told
        if "library" in told:
            import tokenizers

            self.library = tokenizers.Tokenizer.from_str(json.dumps(told["library"]))

    def encode(self, text: str) -> list[int]:
        return [self.first + token for token in self.numbers(text)]

    def decode(self, tokens: list[int]) -> str:
        return self.words([token - self.first for token in tokens if token >= self.first])

    def numbers(self, text: str) -> list[int]:
        if "library" in self.told:
            ids: list[int] = self.library.encode(text, add_special_tokens=False).ids
            return ids
        if self.kind == "character":
            letters = {letter: n for n, letter in enumerate(self.told["characters"])}
            unknown = len(letters) if self.told["unknown"] else None
            found = [letters.get(letter, unknown) for letter in text]
            if None in found:
                sys.exit(f"character {text[found.index(None)]!r} is not in the vocabulary")
            return [n for n in found if n is not None]
        if "words" in self.told:
            numbers = {word: n for n, word in enumerate(self.told["words"])}
            words = text.replace("\n", " <eos> ").split()
            return [numbers.get(word, numbers["<unk>"]) for word in words]
        used = self.told.get("bytes", list(range(256)))
        places = {byte: n for n, byte in enumerate(used)}
        return [places[byte] for byte in text.encode("utf-8") if byte in places]

    def words(self, tokens: list[int]) -> str:
        if "library" in self.told:
            return str(self.library.decode(tokens, skip_special_tokens=False))
        if self.kind == "character":
            letters = self.told["characters"] + "\ufffd"
            return "".join(letters[token] for token in tokens)
        if "words" in self.told:
            shown = ["\n", *self.told["words"][1:]]
            text = " ".join(shown[token] for token in tokens)
            return text.replace(" \n", "\n").replace("\n ", "\n")
        used = self.told.get("bytes", list(range(256)))
        return bytes(used[token] for token in tokens).decode("utf-8", "replace")


def main() -> None:
    parser = argparse.ArgumentParser(description="Run an exported model.")
    parser.add_argument("--prompt", default="\n", help="text to go on with")
    parser.add_argument("--source", help="text to translate")
    parser.add_argument("--text", help="text to look at, for an encoder")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--greedy", action="store_true", help="always the likeliest token")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    given = parser.parse_args()
    folder = Path(__file__).resolve().parent
    runner, text = Runner(folder, given.threads), Text(folder)
    kind = runner.told["kind"]
    if kind == "translator":
        if given.source is None:
            parser.error("this model translates; give it a --source")
        print(Text(folder, -1).decode(runner.translate(text.encode(given.source))))
    elif kind == "encoder":
        if given.text is None:
            parser.error("this model looks at texts; give it a --text")
        before, after = (runner.told.get(name, []) for name in ("before", "after"))
        tokens = [*before, *text.encode(given.text), *after]
        told = runner.look(np.array([tokens], np.int64))
        labels = runner.told.get("labels")
        for name, value in told.items():
            print(name, value.shape)
        if labels:
            print(labels[int(told["label_logits"][0].argmax())])
    else:
        prompt = text.encode(given.prompt) or text.encode("\n")
        how = {"top_k": given.top_k, "top_p": given.top_p, "seed": given.seed}
        temperature = 0.0 if given.greedy else given.temperature
        written = runner.generate(prompt, given.tokens, temperature=temperature, **how)
        print(given.prompt + text.decode(written))


if __name__ == "__main__":
    main()
