"""A server elsewhere as a strategy: whatever it does, on its own clock."""

from backend.remote.lane import ANY_MODEL, server_lane
from backend.strategies.declaration import Strategy
from backend.strategies.settings import Flag, ServerChoice, TextLine

#: Where llama.cpp's server listens unless it is told otherwise.
USUAL = "http://127.0.0.1:8080"

SERVER = Strategy(
    "server",
    "Server",
    "An OpenAI-compatible server, timed by its own clock if it sends one, else over the network. "
    "It does not take turns with other columns.",
    gist="Another server, on its own clock",
    settings=(
        ServerChoice("at", "Server", "A server from this page's list, or an address.", USUAL),
        TextLine(
            "model", "Model", "The model's name on the server; first: the first listed.", ANY_MODEL
        ),
        Flag(
            "gaps",
            "Gaps",
            "Ask for log-probabilities, to compare texts token by token. Some servers are slower "
            "then.",
            default=False,
        ),
    ),
    verified=(),
    lane=server_lane,
)
