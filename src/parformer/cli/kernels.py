"""The verb `kernels`: its flags, and what it tells."""

from __future__ import annotations

import argparse

from parformer.cli.console import print_json, print_lines
from parformer.cli.flags import Flag, add_flags, asked
from parformer.kernels.request import Kernels, KernelsRequest, kernels

EXAMPLES = """\
  parformer kernels                               how they come about on this machine
  parformer kernels build                         compile them all now, not when they are needed
  parformer kernels build --wheel wheels          for machines without a compiler
  parformer kernels build --wheel wheels --level x86-64-v3"""

FLAGS = {
    "action": Flag(name="ACTION", metavar="{show,build}"),
    "wheel": Flag(metavar="FOLDER"),
    "level": Flag(metavar="LEVEL"),
}


def add(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, KernelsRequest, FLAGS)


def run(arguments: argparse.Namespace) -> None:
    found = kernels(asked(arguments, KernelsRequest))
    if arguments.json:
        print_json(found.to_dict())
    else:
        print_lines(*told(found))


def told(found: Kernels) -> list[str]:
    """What people read."""
    compilers = ", ".join(found.compilers) or "none; kernels go the plain way, several times slower"
    lines = [f"compiler:     {compilers}"]
    lines.append(f"installed:    {found.package or 'no compiled kernels (parformer_kernels)'}")
    lines.append(f"instructions: {', '.join(found.runs) or 'unknown'}")
    if found.built:
        lines += ["", f"built: {found.built} kernels for this CPU"]
    if found.wheel:
        levels = dict.fromkeys(one.level for one in found.libraries)
        count = len(found.libraries) // max(1, len(levels))
        lines += ["", f"wheel: {found.wheel}", f"  {count} kernels for {', '.join(levels)}"]
        lines.append(f"  pip install {found.wheel}    on a machine that has libgomp")
    return lines
