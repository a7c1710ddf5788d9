"""What a model is trained for; importing this package registers every task."""

from parformer.tasks.base import TASKS, Loss, Task, find_task, forget_task, task
from parformer.tasks.choice import Choice
from parformer.tasks.classify import Classify, Scores
from parformer.tasks.language import Language
from parformer.tasks.masked import Masked
from parformer.tasks.pretrain import Pretrain
from parformer.tasks.span import Span
from parformer.tasks.summarise import Summarise
from parformer.tasks.translate import Translate

__all__ = [
    "TASKS",
    "Choice",
    "Classify",
    "Language",
    "Loss",
    "Masked",
    "Pretrain",
    "Scores",
    "Span",
    "Summarise",
    "Task",
    "Translate",
    "find_task",
    "forget_task",
    "task",
]
