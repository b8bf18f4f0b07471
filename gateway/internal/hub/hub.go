// Package hub joins the parts of the gateway: announcements and commands come from etcd and from the operator's stream,
// reports from the agents' streams, and batches leave by both ways.
package hub

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"falcon.dev/gateway/internal/job"
	"falcon.dev/gateway/internal/liveness"
	"falcon.dev/gateway/internal/metrics"
	"falcon.dev/gateway/internal/wire"
)

const (
	tickEvery  = 50 * time.Millisecond
	judgeTicks = 5
	// writers bounds the writes to etcd at one time. Each job has at most one, so no job keeps the others waiting.
	writers      = 16
	writeTimeout = 5 * time.Second
	// maxJobs bounds what a faulty operator can make the gateway hold.
	maxJobs = 10_000
)

// Store keeps batches for operators to come. etcd is one.
type Store interface {
	// Live says whether the store's session holds, so that writes are worth a try.
	Live(now time.Time) bool
	Write(ctx context.Context, output *job.Output) error
	// Remove deletes what the gateway wrote of a job.
	Remove(ctx context.Context, key job.Key) error
}

// Hub is safe for use by several goroutines at once.
type Hub struct {
	Gateway *job.Gateway
	Metrics *metrics.Metrics
	log     *slog.Logger
	store   Store
	writers chan struct{}
	writing sync.WaitGroup
	lane    *lane

	mu       sync.RWMutex
	jobs     map[string]*job.Job
	links    map[*Link]struct{}
	epoch    uint64 // the highest that an operator's stream had
	informed bool   // announcements were read at least once
	pulse    *liveness.Pulse
}

// New returns a hub that knows no job yet.
func New(gateway *job.Gateway, store Store, m *metrics.Metrics, log *slog.Logger, now time.Time) *Hub {
	return &Hub{
		Gateway: gateway,
		Metrics: m,
		log:     log,
		store:   store,
		writers: make(chan struct{}, writers),
		jobs:    map[string]*job.Job{},
		links:   map[*Link]struct{}{},
		lane:    newLane(m),
		pulse:   liveness.NewPulse(tickEvery, now),
	}
}

// Run passes on what changes until the context ends.
func (h *Hub) Run(ctx context.Context) {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for tick := 0; ; tick++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		h.mu.Lock()
		h.pulse.Tick(now)
		h.mu.Unlock()
		h.tellSeries(h.lane.wanted(now))
		judge := tick%judgeTicks == 0 && h.mayJudge(now)
		live := h.store.Live(now)
		for _, j := range h.all() {
			if judge {
				h.judge(j, now)
			}
			h.flush(j, now, live)
		}
	}
}

// Close passes on what has not been passed on yet, and waits for the writes until the context ends.
func (h *Hub) Close(ctx context.Context) {
	now := time.Now()
	live := h.store.Live(now)
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.writing.Wait()
		for _, j := range h.all() {
			if output := j.Last(now, live); output != nil {
				h.pass(j, output)
			}
		}
		h.writing.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// mayJudge says whether silence means anything: this process did not stand still, and somebody listens to it.
func (h *Hub) mayJudge(now time.Time) bool {
	return h.OnTime(now) && (h.store.Live(now) || h.OperatorLive(now))
}

// OnTime says whether this process has lately had the time that it needs.
func (h *Hub) OnTime(now time.Time) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.pulse.OnTime(now)
}

// Ticking says whether the loop of this process runs at all; it need not have run in time.
func (h *Hub) Ticking(now time.Time) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.pulse.Ticking(now)
}

// OperatorLive says whether an operator's stream is open and spoke lately.
func (h *Hub) OperatorLive(now time.Time) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for link := range h.links {
		if link.live(now) {
			return true
		}
	}
	return false
}

// Informed says whether the gateway has learned which jobs there are.
func (h *Hub) Informed() bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.informed
}

// Hurry passes on at once what is urgent of a job, as far as its last batch is old enough; else the next tick does.
func (h *Hub) Hurry(j *job.Job, now time.Time) {
	h.flush(j, now, h.store.Live(now))
}

func (h *Hub) judge(j *job.Job, now time.Time) {
	if lost := j.Judge(now); lost > 0 {
		h.Metrics.Lost.WithLabelValues(j.Key.UID).Add(float64(lost))
		h.log.Info("agents fell silent", "job", j.Key.Name, "namespace", j.Key.Namespace, "count", lost)
	}
}

func (h *Hub) flush(j *job.Job, now time.Time, live bool) {
	output, thinned := j.Flush(now, live)
	if thinned {
		h.Metrics.Thinned.WithLabelValues(j.Key.UID).Inc()
		h.log.Warn("a job is over its budget; its reports are held back", "job", j.Key.Name,
			"namespace", j.Key.Namespace, "uid", j.Key.UID)
	}
	if output != nil {
		h.pass(j, output)
	}
}

// pass sends batches to the operators at once, and to the store by a goroutine of their own.
func (h *Hub) pass(j *job.Job, output *job.Output) {
	size := 0
	for _, batch := range output.Batches {
		size += len(batch)
		h.broadcast(batch)
	}
	h.Metrics.Passed.WithLabelValues(j.Key.UID).Add(float64(size))
	h.Metrics.Delay.Observe(output.Delay.Seconds())
	if !output.ToStore {
		return
	}
	h.writing.Add(1)
	go func() {
		defer h.writing.Done()
		h.writers <- struct{}{}
		defer func() { <-h.writers }()
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		defer cancel()
		err := h.store.Write(ctx, output)
		if err == nil && h.Job(j.Key.UID) != j { // withdrawn meanwhile
			err = h.store.Remove(ctx, j.Key)
		}
		j.Written(err)
		if err != nil {
			h.Metrics.Writes.WithLabelValues("failed").Inc()
			h.log.Warn("etcd did not take reports; they are written again", "error", err.Error())
			return
		}
		h.Metrics.Writes.WithLabelValues("written").Inc()
	}()
}

func (h *Hub) all() []*job.Job {
	h.mu.RLock()
	defer h.mu.RUnlock()
	all := make([]*job.Job, 0, len(h.jobs))
	for _, j := range h.jobs {
		all = append(all, j)
	}
	return all
}

// Job returns the announced job of this uid; nil if there is none.
func (h *Hub) Job(uid string) *job.Job {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.jobs[uid]
}

// Label returns what stands for a certificate's job in metrics.
func (h *Hub) Label(uid string) string {
	if h.Job(uid) == nil {
		return metrics.Unknown
	}
	return uid
}

// Announce takes an announcement, whichever way it came.
func (h *Hub) Announce(announce *wire.Announce, now time.Time) {
	known, added := h.find(announce, now)
	switch {
	case added:
		h.log.Info("job announced", "job", announce.GetJob(), "namespace", announce.GetNamespace(),
			"uid", announce.GetJobUid(), "pods", len(announce.GetPodUids()))
	case known == nil:
		h.log.Error("too many jobs; one is not served", "most", maxJobs, "uid", announce.GetJobUid())
	case known.Key.Namespace == announce.GetNamespace() && known.Key.Name == announce.GetJob():
		known.Announce(announce, now)
	}
}

// find returns the announced job, which it adds where there is room; then the second value is true.
func (h *Hub) find(announce *wire.Announce, now time.Time) (*job.Job, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.jobs[announce.GetJobUid()]
	if known != nil || len(h.jobs) >= maxJobs {
		return known, false
	}
	known = job.New(h.Gateway, announce, now)
	h.jobs[announce.GetJobUid()] = known
	return known, true
}

// Publish takes a command, whichever way it came. A command of an unknown job is dropped: it comes again with the
// announcement.
func (h *Hub) Publish(publish *wire.Publish) {
	if j := h.Job(publish.GetJobUid()); j != nil {
		j.Publish(publish)
	}
}

// Withdraw forgets a job.
func (h *Hub) Withdraw(uid string) {
	h.mu.Lock()
	j := h.jobs[uid]
	delete(h.jobs, uid)
	h.mu.Unlock()
	if j == nil {
		return
	}
	j.Withdraw()
	h.Metrics.Forget(uid)
	h.log.Info("job withdrawn", "job", j.Key.Name, "namespace", j.Key.Namespace, "uid", uid)
	h.writing.Add(1)
	go func() {
		defer h.writing.Done()
		ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
		defer cancel()
		if err := h.store.Remove(ctx, j.Key); err != nil { // the operator sweeps later
			h.log.Warn("reports of a job that is gone stay in etcd for now", "error", err.Error())
		}
	}()
}

// Inform notes that all announcements of one source were read. The operator's own list is complete: what is not in it
// is withdrawn. etcd's is not, since it may have lost its data; nil stands for it.
func (h *Hub) Inform(complete map[string]bool) {
	h.mu.Lock()
	h.informed = true
	var missing []string
	for uid := range h.jobs {
		if complete != nil && !complete[uid] {
			missing = append(missing, uid)
		}
	}
	h.mu.Unlock()
	for _, uid := range missing {
		h.Withdraw(uid)
	}
}

// Owe has every job written again: the store's session is new, and may have lost what it held.
func (h *Hub) Owe() {
	for _, j := range h.all() {
		j.Owe()
	}
}
