"""How do many requests share one model? They enter and leave a running batch.

Each turn reads a piece of the prompts that have come, draws a token for every text, lets those go
that are complete and runs the model once for all others, wherever in its text each of them is.
Pasts of different lengths stand side by side in one state (`state.side_by_side`).
"""

# b batch, t time, v vocabulary

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from parformer.data.tokenizer import Tokenizer
from parformer.errors import InputError, ParformerError
from parformer.generate.writing import PIECE
from parformer.head import widen
from parformer.model import Model
from parformer.native.decoder import MOST_TEXTS, Decoder, takes
from parformer.native.lending import tell
from parformer.native.program import NoForm
from parformer.serve.cohorts import Cohort, Reading, joined
from parformer.serve.jobs import Ended, Failed, Job, Row
from parformer.state import State, can_stand_beside

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

DECODERS = 4
"""Native decoders that are kept, each for a length of memory."""

FEWEST_PACKED = 8
"""Rows from which on packed weights are worth their memory."""


class Busy(Exception):
    """There is no room in the queue."""


@dataclass
class Counters:
    """What was done so far."""

    prompt_tokens: int = 0
    written_tokens: int = 0
    turns: int = 0
    steps: int = 0
    """Runs of the model that wrote a token for every text of a batch."""


class Engine:
    """One model, one thread that runs it, and a queue of bounded length."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer | None, *, batch: int, queue: int
    ) -> None:
        self.model, self.tokenizer, self.batch, self.queue = model, tokenizer, batch, queue
        self.waiting: deque[Job] = deque()
        self.errands: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self.reading: list[Reading] = []
        self.cohorts: list[Cohort] = []
        self.decoders: dict[int, Decoder | None] = {}
        self.packed = False
        """Whether weights are laid out for a full batch, which makes its steps faster."""
        self.counters = Counters()
        self.wake = threading.Condition()
        self.closing = False
        self.thread = threading.Thread(target=self.run, name="parformer-engine", daemon=True)

    def start(self) -> None:
        config = self.model.config
        if self.tokenizer is not None and config.causal:  # compiled now, not in the first request
            self.native(self.model.initial_state(1, config.memory or config.step_len))
            self.packed = self.batch >= FEWEST_PACKED and self.model.pack(self.batch)
        self.thread.start()

    def close(self) -> None:
        """Stop after the turn that is under way; whoever still waits is told."""
        with self.wake:
            self.closing = True
            self.wake.notify()
        self.thread.join()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take all of these jobs, or none."""
        with self.wake:
            self.check_room(len(jobs))
            self.waiting.extend(jobs)
            self.wake.notify()

    def ask(self, errand: Callable[[], Answer]) -> Future[Answer]:
        """Have something else done by the thread that runs the model."""
        future: Future[Answer] = Future()
        with self.wake:
            self.check_room(1)
            self.errands.append((errand, future))
            self.wake.notify()
        return future

    def check_room(self, more: int) -> None:
        queued = len(self.waiting) + len(self.errands)
        if self.closing or queued + more > max(self.queue, more if not queued else 0):
            raise Busy

    @property
    def running(self) -> int:
        return sum(len(cohort.rows) for cohort in self.cohorts)

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.reading or self.cohorts or self.errands)

    def run(self) -> None:
        with torch.inference_mode():
            while True:
                with self.wake:
                    while self.idle and not self.closing:
                        self.wake.wait()
                    if self.closing:
                        break
                try:
                    self.turn()
                except Exception:  # a bug of ours must not leave all later requests waiting
                    log.exception("a turn failed; the requests under way are refused")
                    self.refuse_all("something went wrong in the server; its log says what", 500)
        self.refuse_all("the server is being stopped", 503)

    def turn(self) -> None:
        """Read, draw, let go, run."""
        self.counters.turns += 1
        self.run_errand()
        self.admit()
        self.read_on()
        self.draw()
        self.gather()
        for cohort in list(self.cohorts):
            self.guarded(cohort, self.step)

    def run_errand(self) -> None:
        with self.wake:
            if not self.errands:
                return
            errand, future = self.errands.popleft()
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(errand())
        except BaseException as error:  # whoever asked is told, whatever it is
            future.set_exception(error)

    def admit(self) -> None:
        """Begin with prompts for whose texts there is room."""
        taken = self.running + sum(one.job.wish.n for one in self.reading)
        with self.wake:
            while self.waiting:
                job = self.waiting[0]
                if taken and taken + job.wish.n > self.batch and not job.over:
                    return
                self.waiting.popleft()
                if job.over:
                    job.give_up()
                    continue
                assert self.tokenizer is not None
                self.reading.append(Reading(job, self.model, self.tokenizer))
                taken += job.wish.n

    def read_on(self) -> None:
        """Read a piece of the prompts, the oldest first; what is read begins to be written."""
        left = PIECE
        for reading in list(self.reading):
            if reading.job.over:
                reading.job.give_up()
                self.reading.remove(reading)
                continue
            if left <= 0:
                continue
            try:
                read = reading.go_on(left)
            except (ParformerError, RuntimeError) as error:
                self.reading.remove(reading)
                reading.job.tell(Failed(in_a_line(error)))
                continue
            left -= read
            self.counters.prompt_tokens += read
            if reading.done:
                self.reading.remove(reading)
                self.begin(reading)

    def begin(self, reading: Reading) -> None:
        job, count = reading.job, reading.job.wish.n
        assert self.tokenizer is not None
        rows = [Row(job, number, self.tokenizer) for number in range(count)]
        if job.wish.tokens == 0:
            for row in rows:
                job.tell(Ended(row.index, "length", 0))
            return
        state = reading.state
        if count > 1:
            state = state.rows(torch.zeros(count, dtype=torch.long))
        self.cohorts.append(Cohort(state, rows, reading.logits_v.expand(count, -1)))

    def draw(self) -> None:
        """One token for every text; complete ones leave."""
        for cohort in list(self.cohorts):
            self.guarded(cohort, self.hand_out)
        self.cohorts = [cohort for cohort in self.cohorts if cohort.rows]

    def hand_out(self, cohort: Cohort) -> None:
        for row in cohort.rows:
            if row.job.over:
                row.job.give_up()
        cohort.keep([n for n, row in enumerate(cohort.rows) if not row.job.cancelled])
        if not cohort.rows:
            return
        chosen = cohort.draw()
        self.counters.written_tokens += len(chosen)
        logs_bv = None
        if any(row.job.wish.logprobs is not None for row in cohort.rows):
            logs_bv = cohort.logits_bv.log_softmax(-1)
        going = []
        for place, (row, token) in enumerate(zip(cohort.rows, chosen, strict=True)):
            wanted = logs_bv is not None and row.job.wish.logprobs is not None
            if row.take(token, logs_bv[place] if wanted and logs_bv is not None else None):
                going.append(place)
        cohort.keep(going)
        cohort.next_b1 = torch.tensor([[chosen[place]] for place in going])

    def gather(self) -> None:
        """Make one batch of all that can stand side by side."""
        if len(self.cohorts) > 1:
            for cohort in self.cohorts:
                cohort.settle()
        together: list[list[Cohort]] = []
        for cohort in self.cohorts:
            for group in together:
                if all(can_stand_beside(cohort.state, other.state) for other in group):
                    group.append(cohort)
                    break
            else:
                together.append([cohort])
        self.cohorts = [group[0] if len(group) == 1 else joined(group) for group in together]

    def step(self, cohort: Cohort) -> None:
        """Run the model once for the texts of a cohort."""
        self.counters.steps += 1
        if len(self.cohorts) == 1 and not cohort.ghosts and self.step_natively(cohort):
            return
        if self.packed:
            cohort.fill_up(self.batch)
        tokens_b1, count = cohort.next_b1, len(cohort.rows)
        if cohort.ghosts:
            tokens_b1 = torch.cat((tokens_b1, tokens_b1[-1:].expand(cohort.ghosts, 1)))
        device = next(self.model.parameters()).device
        assert self.tokenizer is not None
        out = self.model(tokens_b1.to(device), state=cohort.state, last_only=True)
        assert out.logits is not None
        assert out.state is not None
        cohort.state = out.state
        cohort.logits_bv = widen(out.logits[:count, 0, : self.tokenizer.size].cpu())

    def step_natively(self, cohort: Cohort) -> bool:
        """The same in C++, wherever in its text each of them is; whether that was possible."""
        if cohort.decoder is None:
            decoder = self.native(cohort.state) if takes(cohort.state) else None
            if decoder is None:
                return False
            decoder.load(cohort.state)
            cohort.decoder = decoder
        if cohort.decoder.full:  # a window that slides is read again
            cohort.settle()
            return False
        assert self.tokenizer is not None
        logits_bv = cohort.decoder.step(cohort.next_b1)
        cohort.logits_bv = logits_bv[:, : self.tokenizer.size].clone()
        return True

    def native(self, state: State) -> Decoder | None:
        """A decoder for all batches with such a memory: one at a time is run natively."""
        most, memory = min(self.batch, MOST_TEXTS), state.memory
        if state.batch > most:
            return None
        if memory not in self.decoders:
            if len(self.decoders) >= DECODERS:
                self.decoders.pop(next(iter(self.decoders)))
            try:
                decoder = self.model.native(batch=most, memory=memory)
            except NoForm as reason:
                tell(reason)
                decoder = None
            self.decoders[memory] = decoder
        return self.decoders[memory]

    def guarded(self, cohort: Cohort, work: Callable[[Cohort], None]) -> None:
        """One batch that fails leaves the others running."""
        try:
            work(cohort)
        except (ParformerError, RuntimeError) as error:
            for row in cohort.rows:
                row.job.tell(Failed(in_a_line(error)))
            self.cohorts.remove(cohort)

    def refuse_all(self, why: str, status: int) -> None:
        """Tell everybody who waits, and start afresh."""
        jobs = [row.job for cohort in self.cohorts for row in cohort.rows]
        jobs += [reading.job for reading in self.reading]
        for job in {*jobs, *self.waiting}:
            job.tell(Failed(why, status))
        for _, future in self.errands:
            future.cancel()
        self.cohorts, self.reading = [], []
        self.waiting.clear()
        self.errands.clear()


def in_a_line(error: Exception) -> str:
    if isinstance(error, InputError):
        return str(error)
    return f"the model failed: {' '.join(str(error).split())[:200]}"
