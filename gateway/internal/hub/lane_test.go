package hub

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"falcon.dev/gateway/internal/job"
	"falcon.dev/gateway/internal/metrics"
	"falcon.dev/gateway/internal/wire"
)

const uid = "11111111-1111-4111-8111-111111111111"

// dead is a store that keeps nothing.
type dead struct{}

func (dead) Live(time.Time) bool                      { return false }
func (dead) Write(context.Context, *job.Output) error { return nil }
func (dead) Remove(context.Context, job.Key) error    { return nil }

// scene is a hub with one job of one pod whose ranks may send long chunks.
type scene struct {
	*testing.T
	hub     *Hub
	session *job.Session
	now     time.Time
}

func newScene(t *testing.T) *scene {
	t.Helper()
	now := time.Unix(1_000, 0)
	hub := New(&job.Gateway{ID: "g", Incarnation: 7}, dead{}, metrics.New(), slog.New(slog.DiscardHandler), now)
	for end := now.Add(5 * time.Second); now.Before(end); now = now.Add(tickEvery) { // until it counts as on time
		hub.pulse.Tick(now)
	}
	hub.Announce(&wire.Announce{
		Namespace: "ns", Job: "job", JobUid: uid, PodUids: []string{"p0"}, ProcsPerReplica: 20_000, Revision: 1,
	}, now)
	session, refusal := hub.Job(uid).Join(&wire.Hello{Namespace: "ns", Job: "job", PodUid: "p0", Session: 1}, now)
	if refusal != nil {
		t.Fatal(refusal)
	}
	return &scene{t, hub, session, now}
}

func (s *scene) send(payload string) { s.hub.Series(s.session, []byte(payload), s.now) }

func (s *scene) subscribe() *Subscriber {
	s.Helper()
	subscriber, refusal := s.hub.Subscribe()
	if refusal != nil {
		s.Fatal(refusal)
	}
	return subscriber
}

func TestASubscriberGetsWhatComesFromThenOnInOrder(t *testing.T) {
	s := newScene(t)
	s.send("before")
	first, second := s.subscribe(), s.subscribe()
	for i := range 3 {
		s.send(fmt.Sprint(i))
	}
	for _, subscriber := range []*Subscriber{first, second} {
		for i := range 3 {
			chunk := subscriber.Next(s.now.Add(2 * time.Second))
			if string(chunk.GetPayload()) != fmt.Sprint(i) || chunk.GetJobUid() != uid || chunk.GetPodUid() != "p0" {
				t.Fatalf("chunk %d: %v", i, chunk)
			}
			if chunk.GetWaitedMs() != 2000 || chunk.GetDropped() != 0 {
				t.Errorf("chunk %d: %v", i, chunk)
			}
		}
		if chunk := subscriber.Next(s.now); chunk != nil {
			t.Errorf("one more: %v", chunk)
		}
	}
}

func TestASlowSubscriberLosesTheOldestAndIsToldHowMany(t *testing.T) {
	s := newScene(t)
	slow, quick := s.subscribe(), s.subscribe()
	const size, count = 200 << 10, 60 // 12 MB
	for i := range count {
		s.send(string(append([]byte{byte(i)}, make([]byte, size-1)...)))
		if chunk := quick.Next(s.now); chunk.GetPayload()[0] != byte(i) || chunk.GetDropped() != 0 {
			t.Fatalf("the quick one: chunk %d", i)
		}
	}
	if slow.size > maxUnread {
		t.Errorf("%d bytes wait", slow.size)
	}
	kept := maxUnread / (size + chunkFrame)
	first := slow.Next(s.now)
	if first.GetPayload()[0] != byte(count-kept) || first.GetDropped() != uint64(count-kept) {
		t.Errorf("first %d with %d dropped, not %d", first.GetPayload()[0], first.GetDropped(), count-kept)
	}
	for i := count - kept + 1; i < count; i++ {
		if chunk := slow.Next(s.now); chunk.GetPayload()[0] != byte(i) {
			t.Fatalf("chunk %d, not %d", chunk.GetPayload()[0], i)
		}
	}
	if slow.Next(s.now) != nil || slow.size != 0 {
		t.Errorf("%d bytes are left", slow.size)
	}
}

func TestSeriesStayWantedForAWhileAfterTheLastSubscriber(t *testing.T) {
	s := newScene(t)
	if s.hub.lane.wanted(s.now) {
		t.Error("wanted though no reader has come")
	}
	subscriber := s.subscribe()
	s.hub.Unsubscribe(subscriber, s.now)
	if !s.hub.lane.wanted(s.now.Add(seriesLinger - time.Millisecond)) {
		t.Error("a service that starts again turns all agents off")
	}
	if s.hub.lane.wanted(s.now.Add(seriesLinger)) {
		t.Error("still wanted")
	}
}

func TestSubscribersAreBoundedInNumber(t *testing.T) {
	s := newScene(t)
	var last *Subscriber
	for range maxSubscribers {
		last = s.subscribe()
	}
	if _, refusal := s.hub.Subscribe(); refusal == nil || refusal.Reason != job.Streams {
		t.Errorf("one more: %v", refusal)
	}
	s.hub.Unsubscribe(last, s.now)
	s.subscribe()
}
