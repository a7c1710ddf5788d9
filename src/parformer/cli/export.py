"""The verb `export`: its flags, and what was written."""

from __future__ import annotations

import argparse

from parformer.cli.console import print_json, print_lines
from parformer.cli.flags import Flag, add_flags, asked
from parformer.export.request import Exported, ExportRequest, export

EXAMPLES = """\
  parformer export first --onnx first-onnx        graphs, tokenizer and a run.py without torch
  parformer export first --hub first-hub          for transformers and everything around it
  parformer export first --gguf first.gguf --type q8_0       for llama.cpp"""

FLAGS = {
    "model": Flag(name="RUN"),
    "onnx": Flag(metavar="FOLDER"),
    "hub": Flag(metavar="FOLDER"),
    "gguf": Flag(metavar="FILE"),
}


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, ExportRequest, FLAGS)


def run(arguments: argparse.Namespace) -> None:
    written = export(asked(arguments, ExportRequest))
    if arguments.json:
        print_json([one.to_dict() for one in written])
        return
    for one in written:
        print_lines(*told(one))


def told(one: Exported) -> list[str]:
    """What people read of an export."""
    lines = [f"{one.kind}: {one.path}"]
    if "note" in one.parity:
        lines.append(f"  {one.parity['note']}")
    if "largest_difference" in one.parity:
        lines.append(
            f"  its numbers differ from the model's by {one.parity['largest_difference']:.1g}"
        )
    if count := one.parity.get("greedy_tokens_equal"):
        lines.append(f"  the same {count} greedy tokens")
    if one.parity.get("inputs_of_8_bits"):
        far = one.parity["moved_by_rounded_inputs"]
        lines.append(
            f"  as written, matrices in few bits read inputs of 8 bits, which moves what the model "
            f"says by {far:.1%} of its spread; the figures above are without that"
        )
    if "likeliest_token_equal" in one.parity:
        lines.append(f"  the same likeliest token in {one.parity['likeliest_token_equal']:.0%}")
    for name, times in one.latency.items():
        if isinstance(times, dict) and "ratio" in times:
            each = ", ".join(f"{n} {t * 1e3:.2f} ms" for n, t in times.items() if n != "ratio")
            lines.append(f"  a step with {name}: {each} ({times['ratio']:.2f}×)")
    return lines
