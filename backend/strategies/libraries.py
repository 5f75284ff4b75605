"""Libraries' own decoding as strategies, and a server's."""

from backend.libraries.library import NO_DRAFT, TRAINED
from backend.libraries.llamacpp import EAGLE3, TRAINED_KINDS
from backend.libraries.llamacpp import LLAMACPP as LLAMACPP_LIBRARY
from backend.libraries.openvino_genai import OPENVINO_GENAI as OPENVINO_GENAI_LIBRARY
from backend.libraries.server import ANY_MODEL
from backend.libraries.server import SERVER as SERVER_LIBRARY
from backend.libraries.transformers import DRAFTING, LOOKING, NO_CODE, OWN
from backend.libraries.transformers import TRANSFORMERS as TRANSFORMERS_LIBRARY
from backend.strategies.declaration import Equivalent, Strategy, Values
from backend.strategies.settings import (
    K_HELP,
    NGRAM,
    Choice,
    CodeChoice,
    ModelChoice,
    ServerChoice,
    Setting,
    WholeNumber,
    grammar_choice,
)

LOOKUP_TOKENS = WholeNumber(
    "lookup", "Lookup", "Tokens copied by prompt lookup; 0: none.", 0, 0, 64
)
DRAFT_TOKENS = WholeNumber("k", "k", K_HELP, 4, 1, 32)

#: Tokens that other libraries look up where llama.cpp's usual number is not said.
USUAL_LOOKUP = 10
#: Tokens that its server guesses by a trained draft, likewise.
USUAL_GUESSES = 3


def _draft(*copies: str) -> ModelChoice:
    options = (NO_DRAFT, *copies)
    return ModelChoice("draft", "Draft", "A smaller model that guesses.", NO_DRAFT, options)


def equivalent(values: Values) -> Equivalent:
    """What a library's column amounts to in another one."""
    draft = "" if values["draft"] == NO_DRAFT else values["draft"]
    return Equivalent(values["lookup"], values["ngram"], draft, values["k"])


def llamacpp_equivalent(values: Values) -> Equivalent:
    spec, k = values["spec"], values["k"]
    if values["draft"] == TRAINED and spec in (NO_DRAFT, EAGLE3):
        return Equivalent(draft=TRAINED, k=k or USUAL_GUESSES)
    if spec not in (NO_DRAFT, "ngram-simple"):
        return Equivalent(missing=spec)
    lookup = (k or USUAL_LOOKUP) if spec != NO_DRAFT else 0
    return equivalent({**values, "lookup": lookup, "ngram": NGRAM.default})


def transformers_equivalent(values: Values) -> Equivalent:
    code = values["generate"]
    if code in (NO_CODE, "kv"):
        return equivalent(values)
    if code not in OWN or code == "lookahead":
        return Equivalent(missing="lookahead" if code in OWN else "such code")
    draft = TRAINED if values["draft"] == NO_DRAFT else values["draft"]
    return Equivalent(
        lookup=values["k"] if code in LOOKING else 0,
        ngram=values["ngram"],
        draft=draft if code in DRAFTING else "",
        k=values["k"],
    )


TRANSFORMERS = Strategy(
    "transformers",
    "transformers",
    "What transformers' generate() does: plain, with prompt lookup, a draft, or other code.",
    gist="transformers' own generate()",
    settings=(
        LOOKUP_TOKENS,
        NGRAM,
        _draft(),
        DRAFT_TOKENS,
        CodeChoice(
            "generate",
            "Code",
            "One of our own strategies, or the folder of a custom_generate/generate.py.",
            NO_CODE,
            (NO_CODE, *OWN),
        ),
        Setting(
            "options", "Options", "More arguments for that code, such as window=7;level=4.", "none"
        ),
    ),
    equivalent=transformers_equivalent,
    lossless=lambda values: values["generate"] in OWN,  # which draws with our noise
    verified=(),
    candidates=("lookup=2", "lookup=4", "lookup=8"),
    library=TRANSFORMERS_LIBRARY,
)

OPENVINO_GENAI = Strategy(
    "openvino_genai",
    "openvino-genai",
    "What openvino-genai's LLMPipeline does: plain, with prompt lookup, or with a draft.",
    gist="openvino-genai's own LLMPipeline",
    settings=(
        LOOKUP_TOKENS,
        NGRAM,
        _draft(TRAINED, "int4", "int8"),
        DRAFT_TOKENS,
        grammar_choice(None),
    ),
    equivalent=equivalent,
    lossless=lambda _values: False,
    verified=(),
    candidates=("lookup=2", "lookup=4", "lookup=8"),
    library=OPENVINO_GENAI_LIBRARY,
)

LLAMACPP = Strategy(
    "llamacpp",
    "llama.cpp",
    "What llama.cpp's server does with a GGUF file: plain, or with one of its drafts.",
    gist="llama.cpp's own server",
    settings=(
        Choice(
            "spec",
            "Drafting",
            "How the server drafts, its --spec-type.",
            NO_DRAFT,
            (NO_DRAFT, "ngram-simple", "ngram-mod", *TRAINED_KINDS),
        ),
        _draft(TRAINED),
        WholeNumber("k", "k", "Tokens guessed per pass; 0: its own default.", 0, 0, 64),
        grammar_choice(None),
    ),
    equivalent=llamacpp_equivalent,
    lossless=lambda _values: False,
    verified=(),
    candidates=(
        *(f"spec=ngram-simple,k={k}" for k in (0, 2, 4, 8)),
        *(f"spec=ngram-mod,k={k}" for k in (0, 4, 16)),
    ),
    library=LLAMACPP_LIBRARY,
)

SERVER = Strategy(
    "server",
    "Server",
    "An OpenAI-compatible server, by its own clock or over the network.",
    gist="Another server",
    settings=(
        # The usual one is where llama.cpp's listens.
        ServerChoice("at", "Server", "Its name or address.", "http://127.0.0.1:8080"),
        Setting("model", "Model", "The model's name there; first: the first listed.", ANY_MODEL),
    ),
    lossless=lambda _values: False,
    verified=(),
    library=SERVER_LIBRARY,
)
