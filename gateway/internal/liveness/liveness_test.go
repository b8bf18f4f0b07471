package liveness

import (
	"testing"
	"time"
)

const tick = 50 * time.Millisecond

var start = time.Unix(1_000, 0)

func run(pulse *Pulse, from time.Time, lasting time.Duration) time.Time {
	now := from
	for now.Before(from.Add(lasting)) {
		now = now.Add(tick)
		pulse.Tick(now)
	}
	return now
}

func TestAProcessThatHasJustBegunMayNotJudge(t *testing.T) {
	pulse := NewPulse(tick, start)
	if now := run(pulse, start, time.Second); pulse.OnTime(now) {
		t.Error("it judged in its first second")
	}
	if now := run(pulse, start.Add(time.Second), 1500*time.Millisecond); !pulse.OnTime(now) {
		t.Error("it did not judge after two seconds")
	}
}

func TestAfterStandingStillItReadsFirst(t *testing.T) {
	pulse := NewPulse(tick, start)
	now := run(pulse, start, 5*time.Second)
	now = now.Add(10 * time.Second)
	if pulse.OnTime(now) {
		t.Error("on time before the tick that shows the pause")
	}
	pulse.Tick(now)
	if pulse.OnTime(now) {
		t.Error("on time at the tick that shows the pause")
	}
	if now = run(pulse, now, 2*time.Second); pulse.OnTime(now) {
		t.Error("on time before two seconds without a pause")
	}
	if now = run(pulse, now, tick); !pulse.OnTime(now) {
		t.Error("not on time after two seconds without a pause")
	}
}

func TestAShortDelayIsNone(t *testing.T) {
	pulse := NewPulse(tick, start)
	now := run(pulse, start, 5*time.Second).Add(500 * time.Millisecond)
	pulse.Tick(now)
	if !pulse.OnTime(now) {
		t.Error("half a second counted as a pause")
	}
}

func TestAnAgentIsLostAfterTwoSeconds(t *testing.T) {
	if Lost(start, start.Add(2*time.Second)) {
		t.Error("lost at two seconds")
	}
	if !Lost(start, start.Add(2*time.Second+1)) {
		t.Error("not lost after two seconds")
	}
}
