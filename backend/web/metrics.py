"""Figures for the operator, in Prometheus's text format: what races do, and what they take."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from backend.errors import DerbyError
from backend.racing.hosts.host import Host

if TYPE_CHECKING:
    from prometheus_client.core import Metric

#: Only programs of this machine may read the figures.
ADDRESS = "127.0.0.1"

#: Bounds in seconds for how long races waited.
WAITS = (0.1, 1, 5, 15, 60, 300, 900)


class Tally:
    """Hears of every race, and of nothing else that a visitor does. This base class ignores it."""

    def begun(self, waited: float) -> None:
        """A race's turn came after so many seconds in line."""

    def ended(self, how: str) -> None:
        """A race is over: "finished", "stopped", or "failed", when all of its columns failed."""

    def column_failed(self) -> None:
        """A column of a race failed."""

    def put_out(self, reason: str) -> None:
        """A race was ended by a limit, or left the line: "time", "absent" or "line full"."""

    def refused(self, reason: str) -> None:
        """A race was not let into the line: "line full" or "races per hour"."""


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
        self._ended = Counter("races_ended", "Races that are over, by how.", ["how"], **into)
        self._failed = Counter("columns_failed", "Columns that failed.", **into)
        self._put_out = Counter(
            "races_put_out", "Races that a limit ended or took out of line.", ["reason"], **into
        )
        self._refused = Counter(
            "races_refused", "Races that were not let into the line.", ["reason"], **into
        )
        self.registry.register(_Facts(self))

    def begun(self, waited: float) -> None:
        self._begun.inc()
        self._waited.observe(waited)

    def ended(self, how: str) -> None:
        self._ended.labels(how).inc()

    def column_failed(self) -> None:
        self._failed.inc()

    def put_out(self, reason: str) -> None:
        self._put_out.labels(reason).inc()

    def refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

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

    def facts(self) -> "Iterator[Metric]":
        """What is looked up anew each time the metrics are read."""
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


class _Facts:
    """What prometheus_client calls for figures that nobody counts up."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> "Iterator[Metric]":
        return self._metrics.facts()

    def describe(self) -> "list[Metric]":
        return []
