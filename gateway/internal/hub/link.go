package hub

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"falcon.dev/gateway/internal/job"
)

const (
	// An operator pings each second.
	operatorSilence = 3 * time.Second
	// maxQueued bounds what waits for a slow operator; beyond it the stream ends, and a new one begins with everything.
	maxQueued = 64 << 20
)

// Link is one operator's stream.
type Link struct {
	Woken chan struct{}
	epoch uint64

	mu     sync.Mutex
	spoke  time.Time
	queued [][]byte
	size   int
	ended  *job.Refusal
}

// Connect begins an operator's stream. Streams of lower epochs end: their operators are no longer the leader.
func (h *Hub) Connect(epoch uint64, now time.Time) (*Link, *job.Refusal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if epoch < h.epoch {
		return nil, job.Refuse(job.OldEpoch, codes.FailedPrecondition, "epoch %d is over: a leader of epoch %d has been here",
			epoch, h.epoch)
	}
	h.epoch = epoch
	for other := range h.links {
		if other.epoch < epoch {
			other.end(job.Refuse(job.OldEpoch, codes.FailedPrecondition, "a leader of epoch %d has come", epoch))
		}
	}
	link := &Link{Woken: make(chan struct{}, 1), epoch: epoch, spoke: now}
	h.links[link] = struct{}{}
	return link, nil
}

// Disconnect forgets an operator's stream.
func (h *Hub) Disconnect(link *Link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.links, link)
}

// Leads says whether the stream's operator is still the newest leader that the gateway has met.
func (h *Hub) Leads(link *Link) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return link.epoch == h.epoch
}

// Everything calls `send` with batches of all that the gateway holds, job by job, until it fails.
func (h *Hub) Everything(send func(batch []byte) error) error {
	for _, j := range h.all() {
		for _, batch := range j.Everything() {
			if err := send(batch); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *Hub) broadcast(batch []byte) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for link := range h.links {
		link.push(batch)
	}
}

// Heard notes that the operator said something.
func (l *Link) Heard(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spoke = now
}

// Take returns the batches that wait. A refusal ends the stream.
func (l *Link) Take() ([][]byte, *job.Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return nil, l.ended
	}
	queued := l.queued
	l.queued, l.size = nil, 0
	return queued, nil
}

func (l *Link) live(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended == nil && now.Sub(l.spoke) <= operatorSilence
}

func (l *Link) push(batch []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != nil {
		return
	}
	l.queued = append(l.queued, batch)
	l.size += len(batch)
	if l.size > maxQueued {
		l.queued, l.size = nil, 0
		l.ended = job.Refuse(job.SlowReader, codes.ResourceExhausted, "this operator reads too slowly: connect again")
	}
	l.wake()
}

func (l *Link) end(refusal *job.Refusal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = refusal
	l.wake()
}

func (l *Link) wake() {
	select {
	case l.Woken <- struct{}{}:
	default:
	}
}
