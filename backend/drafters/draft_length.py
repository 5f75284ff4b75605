"""How much to draft in a round: a fixed number of tokens, or as many as pay.

A round that drafts d tokens costs T(1 + d) and the drafting, and yields 1 + the expected number
of accepted tokens. Whatever earns tokens for less than they cost on average pays: with t, the
seconds that a token has cost lately, the best round maximises t * yield - cost (the marginal rule
of renewal-reward processes).
"""

from collections.abc import Sequence
from math import exp, log

from backend.costs.pass_costs import CONTEXT, Costs, PassCosts
from backend.decoding.drafter import UNDECIDED, Decision
from backend.drafters.passes import MadePass, speedup
from backend.types import Outcome, Proposal

#: Rounds that the running averages of a token's cost and of a draft's remember.
MEMORY = 30

#: After so many plain passes in a row one guess is verified whatever it seems to cost, if that cost
#: may well be lower by this share: else a single pass that was held up would deter for ever.
PATIENCE, DOUBTFUL = 16, 0.03

#: Of the rounds in which drafting does not seem to pay, one in so many drafts all the same, to see
#: whether that has changed; one in more where drafting would take over this share of their time: a
#: draft of one layer in torch took a whole plain pass each time. What a wider pass takes does not
#: count: it is learnt by that.
PROBE_EVERY, PROBE_SHARE = 16, 0.01

#: A call of the draft counts as at most so much slower or faster than believed (logarithm of the
#: ratio): other work may have held it up.
SURPRISE = log(2)


class DraftLength:
    """How much a round drafts; by itself always `k` tokens, one after another.

    `most`: tokens that a round may draft at most. `branches`: whether a draft's second best tokens
    may be verified beside the best.
    """

    branches = False

    def __init__(self, k: int) -> None:
        self.most = k

    def verify_count(self, path_probabilities: Sequence[float]) -> int:
        """How many drafted tokens to verify, given each one's chance of being accepted, the best
        first. They are there already: drafting them costs nothing more.
        """
        return len(path_probabilities)

    def gain(self, path_probabilities: Sequence[float], calls: int = 0) -> float:
        """What the best round of such guesses earns, the best first, each of which takes so many
        `calls` of the draft: only differences mean anything.
        """
        return sum(path_probabilities[: self.most])

    def padding_rows(self, drafted: int) -> int:
        """Rows to send along for nothing, because a pass of another width than the last costs more.
        They hang from the root, so there are none where the target takes no trees.
        """
        return 0

    def extends(self, drafted: int, path_probability: float) -> bool:
        """Say whether to draft a token behind `drafted` ones that are right so probably."""
        return drafted < self.most

    @property
    def pause(self) -> float:
        """Of so many rounds in a row in which drafting does not seem to pay, the last drafts."""
        return PROBE_EVERY

    def begin(self, context: int) -> None:
        """Begin a round behind so many tokens. A drafter that asks another one begins it twice."""

    def learn(self, outcome: Outcome) -> None:
        """See what a pass cost and committed; to be called once for each."""

    def summary(self) -> Decision:
        """What was decided round by round; UNDECIDED if nothing was."""
        return UNDECIDED


class AdaptiveDraftLength(DraftLength):
    """Up to `k` tokens a chain, as long as they pay. `costs` are the target's, which may change
    from round to round, `draft` is what a call of the draft takes in seconds, to begin with: what
    calls then take corrects it.

    What to draft is decided by the least that a pass may well cost: so widths that nobody has tried
    are tried, and then known.
    """

    def __init__(self, costs: Costs, draft: float, k: int, *, branches: bool = True) -> None:
        """`branches`: the target can verify trees."""
        super().__init__(k)
        self.branches = branches
        self._costs = costs
        self._draft = draft
        self._drafts = 1  # rounds that told what a call takes, what was given being one
        self._asked = 0.0  # seconds of the last draft, all its calls together
        self._rows = 1  # of the last pass
        self._alone = 0  # passes in a row over one row
        self._context = CONTEXT
        self._plain_steps = self._tokens = float(MEMORY)  # that so many tokens cost lately
        self._began = False  # a round whose outcome is not known yet
        self._account = _Account()

    def _cost(self, drafted: int) -> float:
        """What such a pass costs in the long run: a change of width, sooner or later, twice."""
        return self._costs.hoped(1 + drafted, self._context) + 2 * self._change(drafted)

    def _change(self, drafted: int) -> float:
        return self._costs.now.width_change if 1 + drafted != self._rows else 0.0

    @property
    def _seconds_per_token(self) -> float:
        """What a token would cost on the machine as it is now: it may have been slower or faster
        when the passes that are counted ran.
        """
        return self._costs.now.one_row * self._plain_steps / self._tokens

    def verify_count(self, path_probabilities: Sequence[float]) -> int:
        gains = self._gains(path_probabilities)
        best = max(range(len(gains)), key=gains.__getitem__)
        return best or (1 if path_probabilities and self._probes() else 0)

    def gain(self, path_probabilities: Sequence[float], calls: int = 0) -> float:
        """In seconds, over a round that takes no time and yields no guess."""
        return max(self._gains(path_probabilities[: self.most], calls))

    def _gains(self, path_probabilities: Sequence[float], calls: int = 0) -> list[float]:
        """Of drafting none of them, the first, the first two, and so on."""
        token, saved = self._seconds_per_token, 0.0
        gains = [-self._cost(0)]
        for drafted, path_probability in enumerate(path_probabilities, 1):
            saved += token * path_probability - calls * self._draft
            gains.append(saved - self._cost(drafted))
        return gains

    def _probes(self) -> bool:
        """Whether to find out what a pass over two rows costs."""
        costs = self._costs
        return self._alone >= PATIENCE and costs.hoped(2) < (1 - DOUBTFUL) * costs.now(2)

    def padding_rows(self, drafted: int) -> int:
        more = self._rows - (1 + drafted)
        if not self.branches or drafted == 0 or more <= 0:
            return 0
        return more if self._cost(drafted + more) < self._cost(drafted) else 0

    def extends(self, drafted: int, path_probability: float) -> bool:
        if drafted >= self.most:
            return False
        # The slope over a few rows: T(k) rises in steps, and a single one may be flat or steep.
        rows = 1 + drafted
        costs, context = self._costs.hoped, self._context
        slope = (costs(rows + 4, context) - costs(rows, context)) / 4
        return self._seconds_per_token * path_probability > self._draft + slope

    @property
    def pause(self) -> float:
        """See DraftLength. A draft that was not asked for long has more to read."""
        spent = max(self._asked, self._draft)
        return max(PROBE_EVERY, spent / (PROBE_SHARE * self._costs.now.one_row))

    def begin(self, context: int) -> None:
        self._context = context
        self._began = True

    def learn(self, outcome: Outcome) -> None:
        fade, proposal, now = 1 - 1 / MEMORY, outcome.proposal, self._costs.now
        self._learn_draft(proposal.calls, outcome.draft_seconds)
        rows, tokens = 1 + len(proposal.tokens), len(outcome.tokens)
        made = MadePass(rows, self._context, rows != self._rows, proposal.calls, tokens)
        self._plain_steps = fade * self._plain_steps + made.seconds(now, self._draft) / now.one_row
        self._tokens = fade * self._tokens + tokens
        self._rows = rows
        self._alone = self._alone + 1 if rows == 1 else 0
        if self._began and not proposal.forced:
            self._account.add(proposal, made)
        self._began = False

    def _learn_draft(self, calls: int, seconds: float) -> None:
        """See what drafting took: it was timed when the draft was loaded, at another moment."""
        if not (calls and seconds and self._draft):
            return
        surprise = log(seconds / calls / self._draft)
        self._drafts = min(self._drafts + 1, MEMORY)
        self._asked = seconds
        self._draft *= exp(max(-SURPRISE, min(surprise, SURPRISE)) / self._drafts)

    def summary(self) -> Decision:
        return self._account.decision(self._costs.now, self._draft)


class _Account:
    """What the rounds that could draft came to. Neither the step that reads the prompt nor one
    in which a grammar forced tokens is among them.
    """

    def __init__(self) -> None:
        self._passes: list[MadePass] = []
        self._rounds = 0  # passes that verified a draft
        self._depth = 0  # of those drafts together: tokens of the longest chain of each

    def add(self, proposal: Proposal, made: MadePass) -> None:
        self._passes.append(made)
        self._rounds += proposal.drafted > 0
        self._depth += _depth(proposal)

    def decision(self, costs: PassCosts, draft: float) -> Decision:
        """By what passes are known to cost by now."""
        if not self._passes:
            return UNDECIDED
        predicted = speedup(self._passes, costs, draft) if costs.known else 0.0
        if not self._rounds:
            declined = ("no guess was worth its time",)
            return Decision({}, predicted, "plain decoding", declined, plain=True)
        k = max(1, round(self._depth / self._rounds))
        times = f"in {self._rounds} of {len(self._passes)} passes"
        why = f"auto guessed {k} tokens ahead on average, {times}"
        return Decision({"k": k}, predicted, why)


def _depth(proposal: Proposal) -> int:
    """Tokens of the longest chain in it that is to be verified."""
    depths: list[int] = []
    for parent in proposal.parents[: proposal.drafted]:
        depths.append(1 + depths[parent] if parent >= 0 else 1)
    return max(depths, default=0)
