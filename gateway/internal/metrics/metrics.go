// Package metrics counts what the gateway does, and who is refused. A job's uid is a label only while the job is
// announced, so that foreign certificates cannot make series.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"falcon.dev/gateway/internal/job"
)

// Unknown is the job's label of a certificate whose job is not announced.
const Unknown = "unknown"

// Metrics are the counters of the process.
type Metrics struct {
	Registry *prometheus.Registry
	// Refused counts streams, connections and reports that were refused, by reason and job.
	Refused *prometheus.CounterVec
	// PagesRefused counts connections to the pages that were closed unanswered, by reason.
	PagesRefused *prometheus.CounterVec
	// Reports counts what became of reports, by outcome and job.
	Reports *prometheus.CounterVec
	// Series counts what became of chunks of series, by outcome and job.
	Series *prometheus.CounterVec
	// Unread counts chunks that were dropped because a subscriber read too slowly.
	Unread prometheus.Counter
	// Subscribers is the number of streams that read series.
	Subscribers prometheus.Gauge
	// Thinned counts how often a job's budget began to hold its reports back.
	Thinned *prometheus.CounterVec
	// Paused counts messages that were read later because their sender sent too fast.
	Paused *prometheus.CounterVec
	// Lost counts agents that fell silent.
	Lost *prometheus.CounterVec
	// Passed counts the bytes of batches, by job.
	Passed *prometheus.CounterVec
	// Writes counts writes to etcd by outcome.
	Writes *prometheus.CounterVec
	// Connections is the number of connections that are open.
	Connections prometheus.Gauge
	// Delay is the time from the oldest change of a batch to its sending, in seconds.
	Delay prometheus.Histogram
}

// New returns metrics in a registry of their own, beside those of the Go runtime.
func New() *Metrics {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "falcon_gateway_" + name, Help: help}, labels)
	}
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		Refused:  counters("refused_total", "Connections, streams and reports that were refused.", "reason", "job"),
		PagesRefused: counters(
			"pages_refused_total", "Connections to health and metrics that were closed for newer ones or opened too fast.", "reason",
		),
		Reports: counters("reports_total", "Reports of agents.", "outcome", "job"),
		Series:  counters("series_total", "Chunks of series.", "outcome", "job"),
		Unread: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "falcon_gateway_series_unread_total", Help: "Chunks of series dropped because a subscriber read too slowly.",
		}),
		Subscribers: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "falcon_gateway_series_subscribers", Help: "Streams that read series.",
		}),
		Thinned: counters("thinned_total", "Times that a job's budget began to hold its reports back.", "job"),
		Paused:  counters("paused_total", "Messages read later because their sender sent too fast.", "job"),
		Lost:    counters("agents_lost_total", "Agents that fell silent.", "job"),
		Passed:  counters("passed_bytes_total", "Bytes of batches passed on to operator and etcd.", "job"),
		Writes:  counters("etcd_writes_total", "Writes of batches to etcd.", "outcome"),
		Connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "falcon_gateway_connections", Help: "Open connections of agents.",
		}),
		Delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "falcon_gateway_delay_seconds",
			Help:    "From the oldest change in a batch to its sending.",
			Buckets: []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.75, 1, 2, 5, 10},
		}),
	}
	m.Registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.Refused, m.PagesRefused, m.Reports, m.Series, m.Unread, m.Subscribers, m.Thinned, m.Paused, m.Lost, m.Passed, m.Writes, m.Connections, m.Delay)
	return m
}

// ShowExpiry exports when the certificate expires that the Secret of this name holds, as the process has read it. The
// name of the metric is that of the operator's (docs/platform-engineer.md), so that one alert covers both.
func (m *Metrics) ShowExpiry(secret string, expires func() time.Time) error {
	return m.Registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "falcon_certificate_expires_timestamp_seconds", Help: "When a certificate expires, unix time.",
		ConstLabels: prometheus.Labels{"secret": secret},
	}, func() float64 { return float64(expires().Unix()) }))
}

// Refuse counts a refusal.
func (m *Metrics) Refuse(reason job.Reason, jobUID string) {
	m.Refused.WithLabelValues(string(reason), jobUID).Inc()
}

// RefusePage counts a connection to the pages that was closed unanswered.
func (m *Metrics) RefusePage(reason string) {
	m.PagesRefused.WithLabelValues(reason).Inc()
}

// Forget removes the series of a job that is gone.
func (m *Metrics) Forget(jobUID string) {
	for _, vector := range []*prometheus.CounterVec{m.Refused, m.Reports, m.Series, m.Thinned, m.Paused, m.Lost, m.Passed} {
		vector.DeletePartialMatch(prometheus.Labels{"job": jobUID})
	}
}
