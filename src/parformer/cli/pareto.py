"""The verbs `search pareto` and `pick`."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parformer.cli.console import make_console, print_json
from parformer.cli.screen import Screen
from parformer.errors import ConfigError, FolderError, Stopped
from parformer.events import Watch

if TYPE_CHECKING:
    from parformer.measure.device import Device
    from parformer.measure.readings import Meter
    from parformer.search.sizes.job import Wanted
    from parformer.search.sizes.space import SearchSpace

DEFAULT = "pocket"
FOUND, REPORT = "pareto.json", "report.html"

EXAMPLES = """\
  parformer search pareto --run gallery
  parformer search pareto lts-as-run --like lts-gpt2 --limit latency=50ms
  parformer search pareto mine.toml --objectives quality,latency --iterations 10
  parformer search pareto pocket-mixed --proxy short-training --corpus notes.txt --workers 2
  parformer search pareto --spaces"""

PICK_EXAMPLES = """\
  parformer pick gallery --limit latency=5ms
  parformer pick gallery --limit latency=0.7x --limit memory=8MB --output small.toml"""


def add_pareto(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(act=run_pareto)
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    parser.add_argument(
        "space",
        nargs="?",
        metavar="SPACE",
        help=f"a space of sizes by name, or a TOML file (default {DEFAULT})",
    )
    parser.add_argument("--spaces", action="store_true", help="list the spaces and what they hold")
    parser.add_argument(
        "--like", metavar="MODEL", help="preset or TOML file for all that the space leaves open"
    )
    parser.add_argument(
        "--objectives",
        default="quality,latency,memory",
        metavar="NAMES",
        help="quality and one or more of latency, memory, flops, parameters, state "
        "(default quality,latency,memory)",
    )
    add_limits(parser, "the model that the space is like")
    quality = parser.add_argument_group("quality")
    quality.add_argument(
        "--proxy",
        default="decoder-parameters",
        metavar="NAME",
        help="what stands for quality: decoder-parameters, parameters, grad-norm, snip, grasp, "
        "fisher, synflow, jacob-cov, relu-log-det, short-training (default decoder-parameters)",
    )
    quality.add_argument("--corpus", metavar="NAME|PATH", help="text of a short training")
    quality.add_argument(
        "--steps", type=int, default=0, metavar="N", help="updates of a whole training"
    )
    quality.add_argument(
        "--share",
        type=float,
        default=0.15,
        metavar="SHARE",
        help="the share of them that a candidate is trained for (default 0.15)",
    )
    step = parser.add_argument_group("what is measured")
    step.add_argument(
        "--tgt-len", type=int, metavar="N", help="new tokens per step (default: the model's)"
    )
    step.add_argument(
        "--mem-len",
        type=int,
        metavar="N",
        help="remembered tokens before them (default: the model's)",
    )
    step.add_argument("--batch", type=int, default=1, metavar="N", help="texts at once (default 1)")
    step.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads (default 1)")
    step.add_argument(
        "--precision", choices=("fp32", "bf16"), default="fp32", help="(default fp32)"
    )
    step.add_argument(
        "--latency-by",
        choices=("profile", "measuring"),
        default="profile",
        help="predict candidates from a profile of the device, or build and measure each "
        "(default profile)",
    )
    step.add_argument(
        "--measure-on",
        choices=("here", "worker"),
        default="here",
        help="this machine, or the device that runs 'parformer measure worker' on the --storage "
        "(default here)",
    )
    step.add_argument("--again", action="store_true", help="measure the device profile anew")
    engine = parser.add_argument_group("the search")
    engine.add_argument(
        "--sampler", choices=("lts", "nsga2", "random"), default="lts", help="(default lts)"
    )
    engine.add_argument("--population", type=int, default=100, metavar="N", help="(default 100)")
    engine.add_argument("--iterations", type=int, default=30, metavar="N", help="(default 30)")
    engine.add_argument("--seed", type=int, default=0, metavar="N", help="(default 0)")
    engine.add_argument(
        "--run", type=Path, metavar="FOLDER", help="(default runs/pareto-SPACE-MODEL)"
    )
    engine.add_argument(
        "--storage",
        default="",
        metavar="ADDRESS",
        help="where the study is kept, for several machines: sqlite:FILE, journal:FILE or "
        "postgresql://USER:PASSWORD@HOST/DATABASE (default: in the run folder)",
    )
    engine.add_argument(
        "--study", default="pareto", metavar="NAME", help="its name there (default pareto)"
    )
    engine.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes here (default 1)"
    )


def add_limits(parser: argparse.ArgumentParser, baseline: str) -> None:
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        dest="limits",
        metavar="METRIC=AMOUNT",
        help="what a model may cost at most: latency=20ms, memory=200MB, flops=5G, "
        f"parameters=50M, state=1MB, or latency=0.7x of {baseline}; may be repeated",
    )


def run_pareto(arguments: argparse.Namespace) -> None:
    if arguments.spaces:
        list_spaces(arguments)
        return
    wanted = read_wanted(arguments)
    path = arguments.run or Path("runs") / default_name(wanted.space)
    if arguments.run is None:
        arguments.command += f" --run {shlex.quote(str(path))}"
    from parformer.report.pareto import front_table, pareto_page, verdict
    from parformer.search.sizes.result import showcase
    from parformer.search.sizes.workers import search_together
    from parformer.store.files import replace_file
    from parformer.train.run import only_one

    make_room(path)
    screen = Screen()
    meter, device = meter_of(arguments, wanted, screen)
    with only_one(path), screen.bar:
        about(screen, wanted, path)
        try:
            ended = search_together(
                wanted,
                path,
                storage=arguments.storage,
                name=arguments.study,
                workers=arguments.workers,
                again=arguments.again,
                meter=meter,
                device=device,
                watch=Watch(screen),
            )
            found = showcase(
                ended, command=arguments.command, meter=meter, watch=Watch(screen), folder=path
            )
        except KeyboardInterrupt:
            raise Stopped(
                f"stopped, everything is saved; go on with: {arguments.command}"
            ) from None
        replace_file(path / FOUND, json.dumps(found) + "\n")
        replace_file(path / REPORT, pareto_page(found))
    if arguments.json:
        print_json({"run": str(path), **{k: v for k, v in found.items() if k != "visited"}})
        return
    console = make_console()
    console.print(front_table(found))
    for line in (
        verdict(found),
        f"report: {path / REPORT}",
        f"pick:   parformer pick {shlex.quote(str(path))} --limit …",
    ):
        console.print(line, soft_wrap=True, markup=False)


def read_wanted(arguments: argparse.Namespace) -> Wanted:
    from parformer.measure.readings import Step
    from parformer.search.limits import read_limits
    from parformer.search.sizes.evolution import Plan
    from parformer.search.sizes.job import Wanted
    from parformer.search.sizes.objectives import read_objectives
    from parformer.search.sizes.quality import Grading
    from parformer.search.sizes.space import read_space

    space = read_space(arguments.space or DEFAULT, arguments.like or "")
    return Wanted(
        space=space,
        plan=Plan.sized(arguments.population, arguments.iterations, seed=arguments.seed),
        step=Step(
            tgt_len=arguments.tgt_len,
            mem_len=arguments.mem_len,
            batch=arguments.batch,
            threads=arguments.threads,
            precision=arguments.precision,
        ),
        objectives=read_objectives([n.strip() for n in arguments.objectives.split(",") if n]),
        limits=read_limits(arguments.limits),
        grading=Grading(
            proxy=arguments.proxy,
            seed=arguments.seed,
            recipe=space.recipe,
            corpus=arguments.corpus or "",
            steps=arguments.steps,
            share=arguments.share,
        ),
        sampler=arguments.sampler,
        latency_by=arguments.latency_by,
    )


def meter_of(
    arguments: argparse.Namespace, wanted: Wanted, screen: Screen
) -> tuple[Meter, Device | None]:
    """Who measures, and if that is not this machine, which one it is."""
    from parformer.measure.readings import measure_here
    from parformer.search.sizes.remote import RemoteMeter

    if arguments.measure_on == "here":
        return measure_here, None
    if not arguments.storage:
        raise ConfigError(
            "--measure-on worker needs a --storage that the worker can reach, such as "
            "postgresql://USER:PASSWORD@HOST/DATABASE"
        )
    meter = RemoteMeter(arguments.storage, arguments.study, screen.say)
    return meter, meter.device(wanted.step.threads) if wanted.clocked else None


def default_name(space: SearchSpace) -> str:
    words = ["pareto", space.name]
    if space.recipe and Path(space.recipe).stem != space.name:
        words.append(Path(space.recipe).stem)
    return "-".join(words)


def make_room(path: Path) -> None:
    """A new folder, an empty one, or one that holds a search of this kind."""
    ours = {"study.jsonl", "study.db", FOUND, "measured.jsonl"}
    try:
        path.mkdir(parents=True, exist_ok=True)
        inside = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    except OSError as error:
        raise FolderError(f"cannot make the run folder {str(path)!r}: {error.strerror}") from None
    if inside and not inside & ours:
        raise FolderError(
            f"{str(path)!r} is not empty and holds no Pareto search; choose another --run"
        )


def about(screen: Screen, wanted: Wanted, path: Path) -> None:
    space, plan = wanted.space, wanted.plan
    screen.say(
        f"{space.title or space.name}: {space.size:.1e} architectures like {space.recipe}, "
        f"{plan.slots:,} candidates in {plan.iterations} iterations, "
        f"{' against '.join(wanted.objectives)}, quality by {wanted.grading.proxy}, run {path}"
    )


def list_spaces(arguments: argparse.Namespace) -> None:
    from parformer.search.sizes.files import space_names
    from parformer.search.sizes.space import read_space

    spaces = [read_space(name) for name in space_names()]
    if arguments.json:
        print_json([space.to_dict() | {"size": float(space.size)} for space in spaces])
        return
    from rich.table import Table

    table = Table(header_style="bold", show_lines=True)
    for head in ("space", "like", "layers", "one layer", "fields", "architectures"):
        table.add_column(head)
    for space in spaces:
        table.add_row(
            f"{space.name}\n{space.title}",
            space.recipe,
            space.layers.text + (", all alike" if space.alike else ""),
            "\n".join(" | ".join(map(str, slot)) for slot in space.unit),
            "\n".join(f"{name} {values.text}" for name, values in space.fields),
            f"{space.size:.1e}",
        )
    make_console().print(table, markup=False)


def add_pick(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a Pareto search")
    add_limits(parser, "the search's baseline")
    parser.add_argument("--name", metavar="NAME", help="this one of the front, such as g7")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="(default RUN/NAME.toml, such as RUN/g7.toml)"
    )


def run_pick(arguments: argparse.Namespace) -> None:
    from parformer.search.limits import in_words, read_limits
    from parformer.search.sizes.picking import figure, pick, picked_recipe, relative_limits
    from parformer.store.files import replace_file

    found = read_found(arguments.run)
    limits = relative_limits(read_limits(arguments.limits), found)
    if arguments.name is not None:
        named = [row for row in found["front"] if row["name"] == arguments.name]
        if not named:
            names = ", ".join(row["name"] for row in found["front"])
            raise ConfigError(f"no model {arguments.name!r} in the front; there are: {names}")
        found = {**found, "front": named}
    row = pick(found, limits)
    file = arguments.output or arguments.run / f"{row['name']}.toml"
    import tomli_w

    recipe = picked_recipe(row, found)
    if not file.parent.is_dir():
        raise FolderError(f"cannot write {str(file)!r}: there is no folder {str(file.parent)!r}")
    replace_file(file, tomli_w.dumps(recipe.to_dict()))
    if arguments.json:
        print_json({**row, "config": str(file), "limits": limits})
        return
    console = make_console()
    words = [f"{row['decoder_parameters']:,} parameters in the stack"]
    for metric in ("latency", "memory"):
        if (value := figure(row, metric)) is not None:
            how = "measured" if row["measured"] else "predicted"
            words.append(f"{in_words(metric, value)} of {metric} ({how})")
    console.print(f"{row['name']}: {row['pattern']}", soft_wrap=True, markup=False)
    console.print(", ".join(words), soft_wrap=True, markup=False)
    for line in (
        f"written: {file}",
        f"train:   parformer train {shlex.quote(str(file))}",
    ):
        console.print(line, soft_wrap=True, markup=False)


def read_found(run: Path) -> dict[str, Any]:
    from parformer.store import folder

    if not (run / FOUND).is_file():
        raise FolderError(
            f"no finished Pareto search at {str(run)!r}: it has no {FOUND}; "
            "begin one with: parformer search pareto --run " + shlex.quote(str(run))
        )
    found: dict[str, Any] = folder.read_json(run, FOUND)
    if not isinstance(found, dict) or found.get("format") != "parformer-pareto-1":
        raise FolderError(f"{str(run / FOUND)!r} was not written by a Pareto search")
    return found
