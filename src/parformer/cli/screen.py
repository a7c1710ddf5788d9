"""What do people see while a verb works: a bar, notices, validations as they come?"""

from __future__ import annotations

import math
from typing import Any

from parformer.cli.console import make_console
from parformer.events import (
    Event,
    Notice,
    Phase,
    Planned,
    Progress,
    Started,
    Step,
    Training,
    Validated,
)


class Screen:
    """Shows events on the terminal's error side; use it as `with screen.bar`."""

    def __init__(
        self, *, quiet: bool = False, doing: str = "training", brief: bool = False
    ) -> None:
        """`brief` leaves trainings to the bar: where there are many, one more hardly matters."""
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.quiet, self.doing, self.brief = quiet, doing, brief
        self.console = make_console(stderr=True)
        self.unit = "perplexity"
        self.bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[words]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=quiet or not self.console.is_terminal,
        )
        self.task: Any = None
        self.counts_steps = False
        self.what = ""

    def __call__(self, event: Event) -> None:
        match event:
            case Notice(text):
                self.say(text)
            case Progress(what, share):
                self.show_share(what, share)
            case Planned(parts):
                from parformer.report.fit import plan_table

                if not self.quiet:
                    self.bar.console.print(plan_table(parts))
            case Phase(_, title, number, of, left):
                clock = f"  {left:,.0f} s left" if left else ""
                self.say(f"[{number}/{of}] {title}{clock}")
            case Training(text, unit):
                self.unit = unit
                if not self.brief:
                    self.say(text)
            case Started(step, steps):
                self.count(step, steps)
            case Step(step, loss, speed):
                words = f"step {step:,}  {in_words(loss, self.unit)}  {speed:,.0f} tokens/s"
                self.bar.update(self.task, completed=step, words=words)
            case Validated(step, loss):
                if not self.brief:
                    self.say(f"step {step:>7,}  valid {in_words(loss, self.unit)}")

    def say(self, text: str) -> None:
        if not self.quiet:
            self.bar.console.print(text, soft_wrap=True, markup=False)

    def show_share(self, what: str, share: float) -> None:
        self.what = what
        if self.counts_steps:
            self.clear()
        if self.task is None:
            self.task = self.bar.add_task("", total=1.0, words="")
        self.bar.update(self.task, description=what, completed=share)

    def count(self, step: int, steps: int) -> None:
        if step and not self.brief:
            self.say(f"Going on from step {step:,}.")
        self.clear()
        described = self.doing or self.what
        self.task = self.bar.add_task(described, total=steps, completed=step, words="")
        self.counts_steps = True

    def clear(self) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task, self.counts_steps = None, False


def in_words(loss: float, unit: str) -> str:
    """A loss in nats as people read it."""
    if unit == "loss":
        return f"loss {loss:.4f}"
    if unit == "bits":
        return f"loss {loss:.4f}  {loss / math.log(2):.3f} bits"
    return f"loss {loss:.4f}  perplexity {math.exp(min(loss, 700)):,.2f}"
