"""Figures for the operator, in Prometheus's text format: what races do, and what they take."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from backend.errors import DerbyError
from backend.racing.hosts.host import Host

if TYPE_CHECKING:
    from prometheus_client.core import Metric

#: Only programs of this machine may read the figures.
ADDRESS = "127.0.0.1"

#: Bounds in seconds for how long races waited.
WAITS = (0.1, 1, 5, 15, 60, 300, 900)


Counted = Literal["ended", "columns failed", "put out", "refused"]

#: For each, its name for Prometheus, its help, and what it is told apart by.
COUNTED: Mapping[Counted, tuple[str, str, Sequence[str]]] = {
    "ended": ("races_ended", "Races that are over, by how.", ["how"]),
    "columns failed": ("columns_failed", "Columns that failed.", []),
    "put out": ("races_put_out", "Races that a limit ended or took out of line.", ["reason"]),
    "refused": ("races_refused", "Races that were not let into the line.", ["reason"]),
}


class Tally:
    """Hears of every race, and of nothing else that a visitor does. This base class ignores it."""

    def begun(self, waited: float) -> None:
        """A race's turn came after so many seconds in line."""

    def count(self, what: Counted, kind: str = "", times: int = 1) -> None:
        """One of `COUNTED` happened."""


class Metrics(Tally):
    """Thread-safe. A tally that a Prometheus server can read; `waiting` counts races in line."""

    def __init__(self, host: Host) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self.registry = CollectorRegistry()
        self.waiting: Callable[[], int] = lambda: 0
        self._host = host
        into = {"namespace": "decode_derby", "registry": self.registry}
        self._begun = Counter("races_begun", "Races whose turn came.", **into)
        self._waited = Histogram(
            "race_wait_seconds", "Seconds that races waited in line.", buckets=WAITS, **into
        )
        self._counted = {what: Counter(*facts, **into) for what, facts in COUNTED.items()}
        self.registry.register(self)

    def begun(self, waited: float) -> None:
        self._begun.inc()
        self._waited.observe(waited)

    def count(self, what: Counted, kind: str = "", times: int = 1) -> None:
        counter = self._counted[what]
        (counter.labels(kind) if kind else counter).inc(times)

    def serve(self, port: int) -> Callable[[], None]:
        """Answer at http://127.0.0.1:PORT/metrics from a thread; what ends it. Raises DerbyError
        if the port cannot be had.
        """
        from prometheus_client import start_http_server

        try:
            server, _ = start_http_server(port, ADDRESS, self.registry)
        except OSError as error:
            raise DerbyError(
                f"Metrics cannot be served at {ADDRESS}, port {port}: choose another port."
            ) from error

        def close() -> None:
            server.shutdown()
            server.server_close()

        return close

    def collect(self) -> "Iterator[Metric]":
        """Figures that are looked up anew each time prometheus_client reads them."""
        import psutil
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        facts = self._host.facts()
        memory = GaugeMetricFamily(
            "decode_derby_memory_bytes", "Resident memory, by process.", labels=["process"]
        )
        memory.add_metric(["page"], psutil.Process().memory_info().rss)
        memory.add_metric(["worker"], facts.worker_memory)
        restarts = CounterMetricFamily(
            "decode_derby_worker_restarts",
            "Workers replaced, by cause.",
            labels=["cause"],
        )
        for cause, count in facts.restarts.items():
            restarts.add_metric([cause], count)
        yield memory
        yield restarts
        yield GaugeMetricFamily(
            "decode_derby_races_waiting", "Races in line now.", value=self.waiting()
        )
