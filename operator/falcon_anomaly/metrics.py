"""Export the service's own metrics. None has a label of a job: their number does not grow with the jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from falcon_anomaly.jobs import Figures
from falcon_anomaly.prometheus.rounds import State


class Expiry(NamedTuple):
    """When the certificate expires that the service shows [unix seconds], and which Secret holds it."""

    secret: str
    unix: Callable[[], float]


class Metrics:
    """The metrics of one process. /metrics serves the text of ``registry``."""

    def __init__(
        self,
        figures: Figures,
        gateways: Callable[[], int],
        dropped: Callable[[], int],
        queries: Mapping[str, State],
        certificate: Expiry,
    ) -> None:
        self.registry = CollectorRegistry()
        self._certificate = certificate
        self._queries = queries
        self._figures = figures
        self._gateways = gateways
        self._dropped = dropped
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics. prometheus_client calls this method at each scrape."""
        figures = self._figures
        gauges = {
            "falcon_anomaly_gateways": ("Gateways whose series arrive.", float(self._gateways())),
            "falcon_anomaly_jobs": ("Jobs whose series are held.", float(figures.jobs)),
            "falcon_anomaly_kinds": ("Kinds of jobs of which something is learned.", float(figures.kinds)),
            "falcon_anomaly_series_bytes": ("Memory of all series that are held.", float(figures.bytes)),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)
        for name, (text, count) in _counters(figures, self._dropped()).items():
            yield CounterMetricFamily(name, text, value=count)
        yield _of_certificate(self._certificate)
        if self._queries:
            yield from _of_queries(self._queries)


def _of_certificate(certificate: Expiry) -> Metric:
    """Return the metric of the operator's name, so that one alert covers both."""
    name, text = "falcon_certificate_expires_timestamp_seconds", "When a certificate expires, unix time."
    family = GaugeMetricFamily(name, text, labels=["secret"])
    family.add_metric([certificate.secret], certificate.unix())
    return family


def _of_queries(queries: Mapping[str, State]) -> Iterator[Metric]:
    answers = GaugeMetricFamily(
        "falcon_anomaly_query_answers", "1 while Prometheus answers this query.", labels=["query"]
    )
    ranks = GaugeMetricFamily("falcon_anomaly_query_ranks", "Ranks to which its series belong.", labels=["query"])
    unclear = GaugeMetricFamily(
        "falcon_anomaly_query_pods_unclear", "Pods of which it is not clear which series is whose.", labels=["query"]
    )
    failures = CounterMetricFamily(
        "falcon_anomaly_query_failures", "Questions without an answer that can be used.", labels=["query"]
    )
    for name, state in queries.items():
        answers.add_metric([name], float(state.answers))
        ranks.add_metric([name], state.ranks)
        unclear.add_metric([name], state.unclear)
        failures.add_metric([name], state.failures)
    yield from (answers, ranks, unclear, failures)


def _counters(figures: Figures, dropped: int) -> dict[str, tuple[str, float]]:
    return {
        "falcon_anomaly_chunks": ("Chunks of series that gateways passed on.", figures.chunks),
        "falcon_anomaly_chunks_dropped": ("Chunks that came faster than they were read.", dropped),
        "falcon_anomaly_chunks_malformed": ("Chunks that could not be read.", figures.malformed),
        "falcon_anomaly_chunks_unwanted": ("Chunks of jobs given up, or of an earlier generation.", figures.unwanted),
        "falcon_anomaly_boards_given_up": ("Jobs whose series took too much memory.", figures.given_up),
        "falcon_anomaly_values_refused": ("Ranks, metrics and windows out of bounds.", figures.refused),
        "falcon_anomaly_looks": ("Looks at jobs.", figures.looks),
        "falcon_anomaly_looks_failed": ("Looks that ended with an error.", figures.failed),
        "falcon_anomaly_looks_postponed": ("Looks that waited for the next turn's CPU budget.", figures.postponed),
        "falcon_anomaly_overviews": ("Overviews of a job's series that users have requested.", figures.overviews),
        "falcon_anomaly_lessons": ("Lessons that the operator has given.", figures.lessons),
        "falcon_anomaly_kinds_damaged": ("Kinds of jobs whose stored text could not be read.", figures.damaged_kinds),
        "falcon_anomaly_look_cpu_seconds": ("CPU time of all looks and overviews.", figures.look_seconds),
    }
