"""How an environment is refused: for good, or until its code is again what it was."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Self


class InvalidEnvironment(Exception):
    """What the job's environment asks for cannot be had; trying again changes nothing.

    Attributes:
        path: of the field of the job spec at fault, for example `environment.task`.
        problem: its value, what is wrong with it and what is allowed.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The exception whose text this is; for one that comes from another process."""
        path, _, problem = text.partition(": ")
        return cls(path, problem)


@contextmanager
def of_mixture(index: int) -> Generator[None]:
    """Makes an InvalidEnvironment of the block name its field as one of the environment at `index`."""
    try:
        yield
    except InvalidEnvironment as fault:
        raise InvalidEnvironment(f"environment.of.{index}.{fault.path}", fault.problem) from fault


class ChangedReward(Exception):
    """The reward's code is no longer what the job began with; restoring it mends that."""
