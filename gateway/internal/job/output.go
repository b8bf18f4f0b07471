package job

import (
	"time"

	"falcon.dev/gateway/internal/budget"
)

const (
	// Agents report at the same moment while all is well: so many reports become one batch.
	coalesce = 300 * time.Millisecond
	// Batches of a job follow each other no faster than this, ordinary and urgent ones; urgent ones of a small job, whose
	// batches are small, follow after so much for each of its pods.
	ordinaryGap  = 500 * time.Millisecond
	urgentGap    = 100 * time.Millisecond
	urgentPodGap = 5 * time.Millisecond
	// The store gets batches no faster than this, ordinary and urgent ones. The operator's streams do not wait for it.
	storeGap       = time.Second
	storeUrgentGap = 100 * time.Millisecond
	// The hot batch holds what changed since the last snapshot; a snapshot takes its place at the latest after this time.
	snapshotEvery = 10 * time.Second
)

// outputState is what has yet to be passed on. Guarded by the job.
type outputState struct {
	tokens     *budget.Bucket // bytes
	dirtySince time.Time      // of the oldest change that was not passed on; zero: there is none
	urgent     bool           // one of these changes is urgent
	flushed    time.Time
	stored     time.Time // when a batch last went to the store
	hotSince   time.Time // of the oldest change that the last snapshot lacks; zero: there is none
	newest     uint64    // the newest change of any entry
	covered    uint64    // the newest change that the last snapshot holds
	stale      bool      // the snapshot holds pods that are no longer announced
	writing    bool      // a write to the store is under way
	late       bool      // the store lacks a hot batch: the next one holds the same
	owed       bool      // the store missed a batch: only a snapshot makes it whole
	thinned    bool      // the job's budget is what it waits for
}

// Output is what a job passes on at one moment: to the operator at once, and to the store.
type Output struct {
	Key      Key
	Snapshot bool          // of all pods at this gateway; else of those that changed since the last snapshot
	Batches  [][]byte      // of a snapshot any number, else one
	ToStore  bool          // then the caller says with Written how it went
	Delay    time.Duration // since the oldest change in it; 0 where nothing changed
}

// changed gives a pod's entry its new number and notes that it has to be passed on.
func (j *Job) changed(p *pod, urgent bool, now time.Time) {
	p.change = j.gateway.nextChange()
	j.output.newest = p.change
	p.entry.Change = p.change
	p.encoded = encode(p.entry)
	if j.output.dirtySince.IsZero() {
		j.output.dirtySince = now
	}
	if j.output.hotSince.IsZero() {
		j.output.hotSince = now
	}
	j.output.urgent = j.output.urgent || urgent
}

// Flush returns what has to be passed on now, nil if nothing has to. `thinned` says that the job's budget has begun to
// hold something back.
func (j *Job) Flush(now time.Time, storeLive bool) (output *Output, thinned bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.due(now, storeLive) {
		return nil, false
	}
	if j.output.tokens.Debt(now) > 0 {
		thinned = !j.output.thinned
		j.output.thinned = true
		return nil, thinned
	}
	j.output.thinned = false
	return j.take(now, storeLive), false
}

// Last returns everything that has not been passed on, whatever the budget and the time: the process is about to end.
func (j *Job) Last(now time.Time, storeLive bool) *Output {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.output.dirtySince.IsZero() && !j.output.owed {
		return nil
	}
	return j.take(now, storeLive)
}

func (j *Job) due(now time.Time, storeLive bool) bool {
	out := &j.output
	if out.urgent && now.Sub(out.flushed) >= min(urgentGap, time.Duration(len(j.pods))*urgentPodGap) {
		return true
	}
	if now.Sub(out.flushed) < ordinaryGap {
		return false
	}
	changed := !out.dirtySince.IsZero() && now.Sub(out.dirtySince) >= coalesce
	late := out.late && now.Sub(out.stored) >= storeGap
	missed := (out.owed || late) && storeLive && !out.writing
	return changed || missed || out.stale || out.hotTooLong(now)
}

func (o *outputState) hotTooLong(now time.Time) bool {
	return !o.hotSince.IsZero() && now.Sub(o.hotSince) >= snapshotEvery
}

// take makes the batches and notes what they hold. The hot batch is cumulative, so that a reader of the store that
// skips some of its values misses nothing.
func (j *Job) take(now time.Time, storeLive bool) *Output {
	all := j.reported()
	var hot []*pod
	for _, p := range all {
		if p.change > j.output.covered {
			hot = append(hot, p)
		}
	}
	out := &j.output
	free := storeLive && !out.writing
	needed := (out.owed && free) || out.stale || len(hot) == 0 || sizeOf(hot) > packTo
	gap := storeGap
	if out.urgent {
		gap = storeUrgentGap
	}
	later := free && !needed && now.Sub(out.stored) < gap
	toStore := free && !later
	snapshot := needed || !later && (out.hotTooLong(now) || 2*sizeOf(hot) > sizeOf(all))
	pods := hot
	if snapshot {
		pods = all
		out.hotSince, out.covered, out.stale = time.Time{}, out.newest, false
	}
	var delay time.Duration
	if !out.dirtySince.IsZero() {
		delay = now.Sub(out.dirtySince)
	}
	if toStore {
		out.stored = now
	}
	out.flushed, out.dirtySince, out.urgent = now, time.Time{}, false
	out.late = later
	out.owed = !free || (out.owed && !snapshot)
	out.writing = out.writing || toStore
	batches := j.pack(pods)
	size := 0
	for _, batch := range batches {
		size += len(batch)
	}
	out.tokens.Spend(float64(size), now)
	return &Output{Key: j.Key, Snapshot: snapshot, Batches: batches, ToStore: toStore, Delay: delay}
}

// Written notes how a write to the store went.
func (j *Job) Written(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.output.writing = false
	j.output.owed = j.output.owed || err != nil
}

// Owe notes that the store may have lost what it held.
func (j *Job) Owe() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.output.owed = true
}

// Everything returns batches of all that is known, for an operator whose stream has just begun.
func (j *Job) Everything() [][]byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.pack(j.reported())
}
