"""A column's settings as code for production: transformers, openvino-genai, vLLM, llama.cpp."""

from backend.export.llama_cpp import llama_server
from backend.export.plan import Settings, Snippet, plan
from backend.export.python_libraries import openvino_genai, transformers, vllm
from backend.strategies.registry import Strategy
from backend.types import ModelSpec, Request

__all__ = ["Settings", "Snippet", "snippets"]


def snippets(
    strategy: Strategy, request: Request, target: ModelSpec, settings: Settings
) -> tuple[Snippet, ...]:
    """What does the same as a column, one snippet a library; `settings` are those that won.

    Prompts, names and grammars stay literals, whatever they hold. Raises DerbyError if the
    column's JSON Schema is not JSON.
    """
    planned = plan(strategy, request, target, settings)
    return tuple(write(planned) for write in (transformers, openvino_genai, vllm, llama_server))
