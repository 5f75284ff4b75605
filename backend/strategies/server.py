"""A server elsewhere as a strategy: whatever it does, on its own clock."""

from backend.remote.lane import ANY_MODEL, server_lane
from backend.strategies.declaration import Strategy
from backend.strategies.settings import Flag, ServerChoice, TextLine

#: Where llama.cpp's server listens unless it is told otherwise.
USUAL = "http://127.0.0.1:8080"

SERVER = Strategy(
    "server",
    "Server",
    "An OpenAI-compatible server: what it writes, timed by its own clock where it sends one, else "
    "over the network. It takes no turns.",
    gist="Another server, on its own clock",
    settings=(
        ServerChoice("at", "Server", "A server that is offered here, or an address.", USUAL),
        TextLine("model", "Model", "What the server calls it; first: the first it has.", ANY_MODEL),
        Flag(
            "gaps",
            "Gaps",
            "Ask for log-probabilities: they tell tokens apart and how near a tie was; some "
            "servers take longer then.",
            default=False,
        ),
    ),
    verified=(),
    lane=server_lane,
)
