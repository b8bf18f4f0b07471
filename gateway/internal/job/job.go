// Package job holds what the gateway knows of one job: which pods it has, the newest report of each, whether their
// agents are alive, the operator's commands, and what has yet to be passed on.
//
// Everything is state: a newer report or command replaces the older one, and nothing is queued. So memory is bounded
// by the announced pods, and a reader that was away needs only the newest. The package does no I/O and reads no clock:
// every method that needs the time is given it.
package job

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"falcon.dev/gateway/internal/budget"
	"falcon.dev/gateway/internal/liveness"
	"falcon.dev/gateway/internal/wire"
)

// Key is a job's identity. The uid sets a job apart from its namesake that was deleted.
type Key struct{ Namespace, Name, UID string }

// Gateway is this process as batches name it, and its counters.
type Gateway struct {
	ID          string
	Incarnation uint64 // when the process began, unix ns
	batches     atomic.Uint64
	changes     atomic.Uint64
	series      atomic.Bool // somebody reads series
}

func (g *Gateway) nextBatch() uint64  { return g.batches.Add(1) }
func (g *Gateway) nextChange() uint64 { return g.changes.Add(1) }

// WantSeries notes whether somebody reads series, and says whether that is new. The caller then wakes the jobs.
func (g *Gateway) WantSeries(wanted bool) bool { return g.series.Swap(wanted) != wanted }

// Job is safe for use by several goroutines at once.
type Job struct {
	Key     Key
	gateway *Gateway

	mu       sync.Mutex
	revision uint64 // of the newest announcement
	limits   budget.Limits
	pods     map[string]*pod
	commands map[string]*wire.Command
	output   outputState
	gone     bool
}

// pod is an announced pod. Its entry is what the operator is shown of it.
type pod struct {
	entry    *wire.Entry // nil: no agent has come yet
	encoded  []byte      // the entry
	change   uint64      // of the entry
	session  *Session    // nil: its stream has ended, or none has come
	spoke    time.Time   // when an agent of this pod last said something
	ordinary *budget.Bucket
	urgent   *budget.Bucket
	series   *budget.Bucket // bytes
}

// New returns a job as first announced.
func New(gateway *Gateway, announce *wire.Announce, now time.Time) *Job {
	j := &Job{
		Key:      Key{Namespace: announce.GetNamespace(), Name: announce.GetJob(), UID: announce.GetJobUid()},
		gateway:  gateway,
		pods:     map[string]*pod{},
		commands: map[string]*wire.Command{},
	}
	j.limits = budget.For(len(announce.GetPodUids()), int(announce.GetProcsPerReplica()))
	j.output.tokens = budget.NewBucket(j.limits.BytesPerSecond, j.limits.BurstBytes, now)
	j.Announce(announce, now)
	return j
}

// Announce takes a newer announcement; an older one changes nothing. Streams of pods that are no longer announced end.
func (j *Job) Announce(announce *wire.Announce, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if announce.GetRevision() <= j.revision && j.revision != 0 {
		return
	}
	j.revision = announce.GetRevision()
	j.limits = budget.For(len(announce.GetPodUids()), int(announce.GetProcsPerReplica()))
	j.output.tokens.Resize(j.limits.BytesPerSecond, j.limits.BurstBytes, now)
	announced := make(map[string]*pod, len(announce.GetPodUids()))
	for _, uid := range announce.GetPodUids() {
		if known := j.pods[uid]; known != nil {
			announced[uid] = known
		} else {
			announced[uid] = newPod(j.limits, now)
		}
	}
	for uid, old := range j.pods {
		if announced[uid] != nil {
			continue
		}
		j.output.stale = j.output.stale || old.entry != nil
		if old.session != nil {
			old.session.end(refuseUnknownPod(uid, j.Key))
		}
	}
	j.pods = announced
}

func newPod(limits budget.Limits, now time.Time) *pod {
	return &pod{
		ordinary: budget.NewBucket(budget.ReportsPerSecond, budget.ReportsBurst, now),
		urgent:   budget.NewBucket(budget.UrgentPerSecond, budget.UrgentBurst, now),
		series:   budget.NewBucket(limits.SeriesPerSec, limits.SeriesBurst, now),
	}
}

// Withdraw ends every stream of the job.
func (j *Job) Withdraw() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.gone = true
	for _, p := range j.pods {
		if p.session != nil {
			p.session.end(RefuseUnknownJob(j.Key.UID))
		}
	}
}

// Publish takes a command and wakes the streams that have to send it; a command that is not newer changes nothing.
func (j *Job) Publish(publish *wire.Publish) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if known := j.commands[publish.GetName()]; known != nil && known.GetRevision() >= publish.GetRevision() {
		return
	}
	j.commands[publish.GetName()] = &wire.Command{
		Name: publish.GetName(), Revision: publish.GetRevision(), Payload: publish.GetPayload(),
	}
	j.wake()
}

// Wake has every stream look at what it has to send.
func (j *Job) Wake() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.wake()
}

func (j *Job) wake() {
	for _, p := range j.pods {
		if p.session != nil {
			p.session.wake()
		}
	}
}

// Limits returns the job's limits as announced now.
func (j *Job) Limits() budget.Limits {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.limits
}

// Agents returns how many agents are alive at this gateway.
func (j *Job) Agents() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	alive := 0
	for _, p := range j.pods {
		if p.entry.GetAlive() {
			alive++
		}
	}
	return alive
}

// Judge marks the agents that have been silent for too long, and returns how many. Only a gateway that is itself
// healthy may call it.
func (j *Job) Judge(now time.Time) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	lost := 0
	for _, p := range j.pods {
		if p.entry.GetAlive() && liveness.Lost(p.spoke, now) {
			p.entry.Alive = false
			p.entry.SilentMs = uint32(now.Sub(p.spoke).Milliseconds())
			j.changed(p, true, now)
			lost++
		}
	}
	return lost
}

// reported returns the pods of which anything is known, in the order of their uids, so that a pod tends to stay in the
// same chunk.
func (j *Job) reported() []*pod {
	known := make([]*pod, 0, len(j.pods))
	for _, p := range j.pods {
		if p.entry != nil {
			known = append(known, p)
		}
	}
	slices.SortFunc(known, func(a, b *pod) int { return strings.Compare(a.entry.GetPodUid(), b.entry.GetPodUid()) })
	return known
}

// RefuseUnknownJob is retried by agents: a pod may start before the gateway has heard of its job.
func RefuseUnknownJob(uid string) *Refusal {
	return Refuse(UnknownJob, codes.Unavailable, "job %s is not announced here (yet): connect again", uid)
}

func refuseUnknownPod(uid string, key Key) *Refusal {
	return Refuse(UnknownPod, codes.NotFound, "pod %s is not announced (yet) as one of %s/%s: connect again",
		uid, key.Namespace, key.Name)
}
