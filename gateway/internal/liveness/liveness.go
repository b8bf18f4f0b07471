// Package liveness says when an agent counts as lost, and when the gateway may judge that at all. It is pure.
package liveness

import "time"

const (
	// Silence is how long an agent may say nothing. It beats three times in this time.
	Silence = 2 * time.Second
	// Beat is how often an agent has to say something.
	Beat = Silence / 3

	lateness = 500 * time.Millisecond
	stopped  = 10 * time.Second
	recovery = 2 * time.Second // after being late: what waited in the sockets is read first
)

// Pulse knows from the gateway's own ticks whether the gateway itself stood still: then agents only seem to be silent.
type Pulse struct {
	every  time.Duration
	last   time.Time
	lateAt time.Time
}

// NewPulse expects a tick each `every`, the first one at once. A process that has just begun counts as late: its
// agents have yet to come.
func NewPulse(every time.Duration, now time.Time) *Pulse {
	return &Pulse{every: every, last: now, lateAt: now}
}

// Tick is called at each tick.
func (p *Pulse) Tick(now time.Time) {
	if now.Sub(p.last) > p.every+lateness {
		p.lateAt = now
	}
	p.last = now
}

// OnTime says whether the ticks of the last two seconds came in time.
func (p *Pulse) OnTime(now time.Time) bool {
	return now.Sub(p.last) <= p.every+lateness && now.Sub(p.lateAt) > recovery
}

// Ticking says whether there was a tick lately.
func (p *Pulse) Ticking(now time.Time) bool { return now.Sub(p.last) < stopped }

// Lost says whether an agent that spoke last at `spoke` is lost, as far as a gateway on time can tell.
func Lost(spoke, now time.Time) bool { return now.Sub(spoke) > Silence }
