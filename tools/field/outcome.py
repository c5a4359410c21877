"""What became of a case."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    area: str
    name: str
    reference: str
    """The public report or the document whose case it is; empty: a relative of one."""
    wrong: str = ""
    """One line; empty: it is as it has to be."""

    @property
    def passed(self) -> bool:
        return not self.wrong

    def row(self) -> dict[str, str]:
        return asdict(self)


def one_line(error: BaseException | str) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else repr(error))[:200]
