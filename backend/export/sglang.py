"""SGLang: its offline Engine with speculative decoding and structured outputs."""

from collections.abc import Iterator

from backend.export.plan import TORCH_DTYPES, Library, Plan, call, python, sampled
from backend.export.vllm import compressed, quantising
from backend.strategies.equivalents import EAGLE_3


def _lines(plan: Plan) -> list[str]:
    arguments = [f"model_path={compressed(plan.model, 'target')}"]
    if not plan.model.quantised:
        arguments.append(f'dtype="{TORCH_DTYPES[plan.model.precision]}"')
    arguments.append(f"disable_radix_cache={not plan.reuse}")
    arguments += _speculation(plan)
    if plan.grammar:
        arguments.append('grammar_backend="llguidance"')
    if not plan.greedy:
        arguments.append(f"random_seed={plan.request.sampling.seed % 2**32}")
    asked = ["prompt"]
    chat: list[str] = []
    if plan.request.chat:
        chat = [
            f"tokenizer = AutoTokenizer.from_pretrained({compressed(plan.model, 'target')})",
            'messages = [{"role": "user", "content": prompt}]',
            "asked = tokenizer.apply_chat_template(",
            "    messages, add_generation_prompt=True, return_dict=True",
            ")",
        ]
        asked = ['input_ids=asked["input_ids"]']
    body = [
        f"prompt = {python(plan.request.prompt)}",
        *([f"grammar = {python(plan.constraint)}"] if plan.grammar else []),
        *chat,
        *call("llm", "sgl.Engine", arguments),
        *call("sampling", "dict", _sampling(plan)),
        *call("output", "llm.generate", [*asked, "sampling_params=sampling"]),
        'print(output["text"])',
    ]
    return [
        "import sglang as sgl",
        *(["from transformers import AutoTokenizer"] if plan.request.chat else []),
        "",
        'if __name__ == "__main__":  # it starts processes that import this file again',
        *(f"    {line}" for lines in body for line in lines.split("\n")),
    ]


def _notes(plan: Plan) -> Iterator[str]:
    yield from quantising(plan)
    if plan.kind == "lookup" and not plan.lacking:
        yield "Its n-grams include those of other requests, and need CUDA."
    if plan.trained:
        yield (
            "SGLang loads drafts in their authors' format (SGLang issue 18216): convert a draft in "
            "the format of speculators."
        )


def _speculation(plan: Plan) -> list[str]:
    chain = [
        f"speculative_num_steps={plan.k}",
        "speculative_eagle_topk=1",
        f"speculative_num_draft_tokens={plan.k} + 1",  # the last token is among them
    ]
    if plan.lacking:
        trained = f"speculative_draft_model_path={python(plan.trained)}"
        return ['speculative_algorithm="EAGLE3"', trained, *chain]
    if plan.draft:
        draft = f"speculative_draft_model_path={compressed(plan.draft, 'draft')}"
        return ['speculative_algorithm="STANDALONE"', draft, *chain]
    if plan.kind == "lookup":
        return ['speculative_algorithm="NGRAM"', chain[-1]]
    return []


def _sampling(plan: Plan) -> list[str]:
    arguments = sampled(plan, "max_new_tokens")
    if plan.grammar:
        kinds = {"json_schema": "json_schema", "regex": "regex"}
        arguments.append(f"{kinds.get(plan.grammar.kind, 'ebnf')}=grammar")
    return arguments


SGLANG = Library(
    "SGLang",
    "python",
    'speculative_algorithm="NGRAM" and speculative_num_draft_tokens=1 + ',
    _lines,
    _notes,
    imports=False,
    has=frozenset({EAGLE_3}),
)
