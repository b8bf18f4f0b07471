package hub

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"falcon.dev/gateway/internal/job"
	"falcon.dev/gateway/internal/metrics"
	"falcon.dev/gateway/internal/wire"
)

const (
	// maxSubscribers leaves room for a rolling update of the service.
	maxSubscribers = 4
	// maxUnread bounds the bytes that wait for a subscriber: minutes of a large cluster. Beyond it the oldest are dropped.
	maxUnread = 8 << 20
	// chunkFrame is what a chunk counts on top of its payload.
	chunkFrame = 256
	// Agents hear that series have no reader only when this has been so for a while: a service that starts again does
	// not turn all of them off and on.
	seriesLinger = 30 * time.Second
)

// lane passes chunks of series to whoever reads them. Nothing is kept: who is away misses them.
type lane struct {
	metrics *metrics.Metrics

	mu          sync.Mutex
	subscribers map[*Subscriber]struct{}
	wantedUntil time.Time // when the last subscriber has been away for long enough
}

func newLane(m *metrics.Metrics) *lane {
	return &lane{metrics: m, subscribers: map[*Subscriber]struct{}{}}
}

// Subscriber is one reader of series.
type Subscriber struct {
	Woken   chan struct{}
	metrics *metrics.Metrics

	mu      sync.Mutex
	unread  []unread // the oldest first
	size    int
	dropped uint64
}

type unread struct {
	chunk *wire.Chunk // shared by all subscribers: never changed
	came  time.Time
}

// Subscribe begins a subscriber's stream.
func (h *Hub) Subscribe() (*Subscriber, *job.Refusal) {
	subscriber := &Subscriber{Woken: make(chan struct{}, 1), metrics: h.Metrics}
	h.lane.mu.Lock()
	if len(h.lane.subscribers) >= maxSubscribers {
		h.lane.mu.Unlock()
		return nil, job.Refuse(job.Streams, codes.ResourceExhausted, "%d streams read series already: connect again later",
			maxSubscribers)
	}
	h.lane.subscribers[subscriber] = struct{}{}
	h.lane.mu.Unlock()
	h.Metrics.Subscribers.Inc()
	h.tellSeries(true)
	return subscriber, nil
}

// Unsubscribe forgets a subscriber.
func (h *Hub) Unsubscribe(subscriber *Subscriber, now time.Time) {
	h.lane.mu.Lock()
	defer h.lane.mu.Unlock()
	delete(h.lane.subscribers, subscriber)
	h.lane.wantedUntil = now.Add(seriesLinger)
	h.Metrics.Subscribers.Dec()
}

// Series takes a chunk of an agent's series. It never waits.
func (h *Hub) Series(session *job.Session, payload []byte, now time.Time) {
	key := session.Job().Key
	outcome := session.Series(len(payload), h.OnTime(now), now)
	h.Metrics.Series.WithLabelValues(string(outcome), h.Label(key.UID)).Inc()
	if outcome != job.Accepted {
		return
	}
	h.lane.push(unread{came: now, chunk: &wire.Chunk{
		Namespace: key.Namespace, Job: key.Name, JobUid: key.UID, PodUid: session.Pod(), Payload: payload,
	}})
}

// tellSeries lets the agents know whether series are wanted, where that has changed.
func (h *Hub) tellSeries(wanted bool) {
	if !h.Gateway.WantSeries(wanted) {
		return
	}
	for _, j := range h.all() {
		j.Wake()
	}
}

func (l *lane) wanted(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.subscribers) > 0 || now.Before(l.wantedUntil)
}

func (l *lane) push(fresh unread) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for subscriber := range l.subscribers {
		subscriber.push(fresh)
	}
}

func sizeOfUnread(chunk *wire.Chunk) int { return len(chunk.GetPayload()) + chunkFrame }

func (s *Subscriber) push(fresh unread) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread = append(s.unread, fresh)
	s.size += sizeOfUnread(fresh.chunk)
	for s.size > maxUnread {
		s.size -= sizeOfUnread(s.unread[0].chunk)
		s.unread[0] = unread{} // the array lives on
		s.unread = s.unread[1:]
		s.dropped++
		s.metrics.Unread.Inc()
	}
	select {
	case s.Woken <- struct{}{}:
	default: // it is awake already
	}
}

// Next takes the oldest chunk that waits; nil if none does.
func (s *Subscriber) Next(now time.Time) *wire.Chunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unread) == 0 {
		s.unread = nil // so that a long queue's array is given back
		return nil
	}
	oldest := s.unread[0]
	s.unread[0] = unread{}
	s.unread = s.unread[1:]
	s.size -= sizeOfUnread(oldest.chunk)
	return &wire.Chunk{
		Namespace: oldest.chunk.GetNamespace(), Job: oldest.chunk.GetJob(), JobUid: oldest.chunk.GetJobUid(),
		PodUid: oldest.chunk.GetPodUid(), Payload: oldest.chunk.GetPayload(),
		Dropped: s.dropped, WaitedMs: uint32(now.Sub(oldest.came).Milliseconds()),
	}
}
