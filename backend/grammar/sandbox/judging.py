"""Texts that a grammar let end, before anybody is told that they are valid."""

from collections.abc import Callable

from backend.errors import DerbyError
from backend.grammar.sandbox.parent import Sandbox, SandboxFailedError, StoppedError, never
from backend.grammar.schema.validity import Judgement, unchecked
from backend.grammar.sources import GrammarSource

#: Seconds of processor time, and bytes of memory, that checking one text may take.
DEADLINE = 3.0
MEMORY = 512 << 20


class Judging:
    """Judges finished texts in a sandbox of its own, which holds no tokenizer."""

    def __init__(self, deadline: float = DEADLINE, memory: int = MEMORY) -> None:
        """`deadline` in seconds of processor time a text, `memory` in bytes."""
        self._limits = f"{deadline:g} s or {memory >> 20} MiB of memory"
        self._sandbox = Sandbox(deadline, memory)

    def judge(
        self, source: GrammarSource, text: str, stopped: Callable[[], bool] = never
    ) -> Judgement | None:
        """Judge `text` under a JSON Schema, until `stopped()` is true; None for other grammars.
        Raises nothing that the text or the schema can cause.
        """
        if source.kind != "json_schema":
            return None
        try:
            return Judgement(**self._sandbox.judge(source, text, stopped))
        except StoppedError:
            return unchecked("the race was stopped")
        except SandboxFailedError as error:
            return unchecked(str(error))
        except DerbyError:
            return unchecked(f"checking it takes more than {self._limits}")

    def close(self) -> None:
        """End the child; another one starts if there is more to judge."""
        self._sandbox.close()
