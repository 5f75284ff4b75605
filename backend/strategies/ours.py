"""The strategies of our own loop, one declaration each: to add another, copy one."""

from dataclasses import replace

from backend.decoding.sampling import COLDEST, IndependentSampler
from backend.decoding.seams import UNDECIDED, Decision, Drafter
from backend.decoding.verification import KEYED, DistributionVerifier, Verifier
from backend.drafters.lookahead import Lookahead, Sizes, choose_sizes
from backend.drafters.network_drafter import Hybrid, NetworkDrafter
from backend.drafters.prompt_lookup import PromptLookup
from backend.engines.eagle3.checkpoint import draft_for, eagle3_folder
from backend.engines.engine import Engine, no_trained_draft
from backend.engines.registry import all_precisions, copy_spec
from backend.errors import DerbyError
from backend.strategies.declaration import (
    DrafterInputs,
    Equivalent,
    Strategy,
    Values,
    Weights,
)
from backend.strategies.settings import (
    AUTO,
    K_HELP,
    NAMED_SIZE,
    NGRAM,
    Choice,
    Flag,
    ModelChoice,
    WholeNumber,
)

STATELESS = Strategy(
    "stateless",
    "Stateless",
    "Computes the whole text again for every token, without a cache.",
    gist="Rereads the whole text",
    equivalent=lambda _values: Equivalent(note="This keeps a cache: the same text, sooner."),
    keeps_cache=False,
)

KV_REUSE = Strategy(
    "kv",
    "KV reuse",
    "Ordinary decoding: a cache keeps the earlier tokens, and each pass computes one.",
    gist="Ordinary decoding, cached",
)

GRAMMAR = Strategy(
    "grammar",
    "Grammar",
    "Chooses only tokens that a grammar allows, and fills in those that it forces.",
    gist="Keeps to {grammar}",
    grammar="person",
    equivalent=lambda _values: Equivalent(note="Tokens that the grammar forces cost passes here."),
    verified=(),
)


LOOKUP = Strategy(
    "lookup",
    "Prompt lookup",
    "Finds the last words earlier in the text and guesses what came next there.",
    gist="Copies earlier text",
    settings=(
        AUTO,
        WholeNumber("k", "k", K_HELP, 8, 1, 32, fixes=NAMED_SIZE),
        NGRAM,
    ),
    build=lambda inputs: PromptLookup(inputs.draft_length(), inputs.values["ngram"]),
    equivalent=lambda values: Equivalent(lookup=values["k"], ngram=values["ngram"]),
    verified=("", "k=10,ngram=4"),
    candidates=("", "k=4", "k=16"),
)


#: Drafts that are no model's name: the one that was trained for it, and prompt lookup plus that.
TRAINED, HYBRID = "trained", "hybrid"

#: What may be promised of the text: that it is the plain one's, or that its distribution is.
TEXT, DISTRIBUTION = "text", "distribution"

#: The copy of the target that drafts where none was trained.
USUAL_COPY = "int4"


def speculative_weights(values: Values, target: Engine) -> Weights:
    """The EAGLE-3 draft or the model that `draft` stands for; None: a copy could only run beside
    the target's device, and prompt lookup goes on alone. Raises DerbyError where none was trained.
    """
    draft, spec = values["draft"], target.spec
    if draft in (TRAINED, HYBRID) and (trained := draft_for(spec)):
        return trained
    if draft == TRAINED:
        raise no_trained_draft(spec)
    if draft == HYBRID:
        copy = copy_spec(spec, USUAL_COPY)
        return copy if copy.device.upper() == spec.device.upper() else None
    if draft in all_precisions():
        return copy_spec(spec, draft)
    return eagle3_folder(draft) or replace(spec, name=draft)


def build_speculative(inputs: DrafterInputs) -> Drafter:
    length, tokenizer = inputs.draft_length(), inputs.target.tokenizer
    if inputs.draft is None:
        declined = "prompt lookup alone: no copy of the model can draft here"
        return PromptLookup(length, NGRAM.default, Decision(declined=(declined,)))
    sampler = inputs.sampler
    verifier: Verifier = KEYED
    if not lossless(inputs.values):
        verifier = DistributionVerifier()
        if sampler.sampling.temperature >= COLDEST:  # else there is nothing to draw
            sampler = IndependentSampler(inputs.sampler.sampling)
    eos_ids, vocabulary = tokenizer.eos_ids, tokenizer.vocab_size
    drafter = NetworkDrafter(inputs.draft, sampler, length, eos_ids, vocabulary, verifier)
    if inputs.values["draft"] != HYBRID:
        return drafter
    return Hybrid(PromptLookup(length, NGRAM.default), drafter, length)


def lossless(values: Values) -> bool:
    return values["promise"] == TEXT


def speculative_equivalent(values: Values) -> Equivalent:
    draft, k = values["draft"], values["k"]
    if draft == HYBRID:
        return Equivalent(lookup=k, draft=TRAINED, k=k)
    return Equivalent(draft=draft, k=k)


SPECULATIVE = Strategy(
    "speculative",
    "Speculative",
    "A draft guesses up to k tokens, and the model checks them all in one pass.",
    gist=lambda values: "Lookup plus draft" if values["draft"] == HYBRID else "A draft guesses",
    settings=(
        AUTO,
        WholeNumber("k", "k", K_HELP, 8, 1, 16, fixes=NAMED_SIZE),
        ModelChoice(
            "draft",
            "Draft",
            "What guesses; hybrid is prompt lookup plus trained, int4 and int8 are copies.",
            HYBRID,
            (HYBRID, TRAINED, "int4", "int8"),
        ),
        Choice(
            "promise",
            "Promise",
            "The text of KV reuse, or another that is just as likely, with more guesses accepted.",
            TEXT,
            (TEXT, DISTRIBUTION),
        ),
    ),
    build=build_speculative,
    weights=speculative_weights,
    equivalent=speculative_equivalent,
    lossless=lossless,
    verified=(
        "",
        "draft=trained,k=1",
        "draft=trained,k=4",
        "draft=int4,k=3",
        "draft=int4,k=8",
        "promise=distribution",
    ),
    candidates=("", "draft=trained,k=2", "draft=trained,k=4", "draft=int4,k=3"),
)


def build_lookahead(inputs: DrafterInputs) -> Drafter:
    values, seed = inputs.values, inputs.sampler.sampling.seed
    if inputs.target.guesses != "trees":
        raise DerbyError(
            f"Lookahead checks many guesses at once, and {inputs.target.spec} checks one chain of "
            "them: choose Speculative or Prompt lookup."
        )
    sizes, decision = Sizes(values["window"], values["level"], values["guesses"]), UNDECIDED
    if values["auto"]:
        sizes, decision = choose_sizes(inputs.costs.now)
    return Lookahead(sizes, seeded=values["seeded"], seed=seed, decision=decision)


def lookahead_equivalent(values: Values) -> Equivalent:
    sizes = ";".join(f"{name}={values[name]}" for name in ("window", "level", "guesses"))
    code = {"generate": "lookahead", "options": sizes}
    return Equivalent(missing="lookahead", only={"transformers": code})


LOOKAHEAD = Strategy(
    "lookahead",
    "Lookahead",
    "Guesses several tokens ahead, remembers them as n-grams and checks the likely ones.",
    gist="Checks guessed n-grams",
    settings=(
        AUTO,
        WholeNumber("window", "Window", "Tokens guessed ahead, W.", 5, 2, 32, fixes=NAMED_SIZE),
        WholeNumber("level", "Level", "Length of an n-gram, N.", 3, 2, 8, fixes=NAMED_SIZE),
        WholeNumber(
            "guesses", "Guesses", "n-grams checked per pass, G.", 5, 1, 32, fixes=NAMED_SIZE
        ),
        Flag("seeded", "Seeded", "Also use the n-grams of the text so far.", default=True),
    ),
    build=build_lookahead,
    equivalent=lookahead_equivalent,
    verified=(
        "window=5,level=3,guesses=5",
        "window=7,level=4,guesses=7,seeded=false",
        "window=15,level=5,guesses=15",
    ),
    candidates=("",),
)
