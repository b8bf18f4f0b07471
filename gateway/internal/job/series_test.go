package job

import (
	"testing"
	"time"

	"falcon.dev/gateway/internal/budget"
	"falcon.dev/gateway/internal/wire"
)

func newReadWorld(t *testing.T, pods int) *world {
	t.Helper()
	w := newWellWorld(t, pods)
	w.job.gateway.WantSeries(true)
	return w
}

func (w *world) wanted(pod string) *wire.SeriesWanted {
	w.Helper()
	messages, refusal := w.sessions[pod].Outbox()
	if refusal != nil {
		w.Fatal(refusal)
	}
	for _, message := range messages {
		if message.GetSeriesWanted() != nil {
			return message.GetSeriesWanted()
		}
	}
	return nil
}

func TestAgentsAreToldOnceWhetherSeriesAreWanted(t *testing.T) {
	w := newWellWorld(t, 2)
	if told := w.wanted("p0"); told != nil {
		t.Errorf("sent before a service reads: %v", told)
	}
	if !w.job.gateway.WantSeries(true) || w.job.gateway.WantSeries(true) {
		t.Error("only the first is new")
	}
	w.job.Wake()
	for _, pod := range []string{"p0", "p1"} {
		select {
		case <-w.sessions[pod].Woken:
		default:
			t.Errorf("%s was not woken", pod)
		}
		if told := w.wanted(pod); told.GetLargestBytes() != uint32(w.job.Limits().LargestSeries) {
			t.Errorf("%s: %v", pod, told)
		}
		if told := w.wanted(pod); told != nil {
			t.Errorf("%s got the same message twice: %v", pod, told)
		}
	}
	w.join("p0", 9, after(3)) // a new stream knows nothing
	if told := w.wanted("p0"); told.GetLargestBytes() == 0 {
		t.Errorf("a new stream: %v", told)
	}
	w.job.gateway.WantSeries(false)
	if told := w.wanted("p0"); told == nil || told.GetLargestBytes() != 0 {
		t.Errorf("when no service reads any longer: %v", told)
	}
}

func TestSeriesOfAnHonestAgentAreTaken(t *testing.T) {
	w := newReadWorld(t, 1)
	for minute := range 60 {
		now := start.Add(time.Duration(minute) * time.Minute)
		if outcome := w.sessions["p0"].Series(2<<10, true, now); outcome != Accepted {
			t.Fatalf("minute %d: %s", minute, outcome)
		}
	}
}

func TestAPodThatSendsTooManySeriesLosesItsOwn(t *testing.T) {
	w := newReadWorld(t, 2)
	largest := w.job.Limits().LargestSeries
	outcomes := map[Outcome]int{}
	for range 100 {
		outcomes[w.sessions["p0"].Series(largest, true, after(10))]++
	}
	if outcomes[Accepted] != 2 || outcomes[OverRate] != 98 {
		t.Errorf("a burst of four minutes is two of the largest chunks: %v", outcomes)
	}
	if outcome := w.sessions["p1"].Series(largest, true, after(10)); outcome != Accepted {
		t.Errorf("the pod beside it: %s", outcome)
	}
	if outcome := w.report("p0", "news", false, after(10)); outcome != Accepted {
		t.Errorf("its report: %s", outcome)
	}
	if outcome := w.sessions["p0"].Series(largest, true, after(130)); outcome != Accepted {
		t.Errorf("two minutes later: %s", outcome)
	}
}

func TestEmptyChunksAreTakenAtARateAsWell(t *testing.T) {
	w := newReadWorld(t, 1)
	taken := 0
	for range 10_000 {
		if w.sessions["p0"].Series(0, true, after(10)) == Accepted {
			taken++
		}
	}
	if most := int(w.job.Limits().SeriesBurst) / budget.SeriesFrame; taken != most {
		t.Errorf("%d chunks of nothing were taken at once, %d expected", taken, most)
	}
}

func TestSeriesAreGivenUpBeforeReports(t *testing.T) {
	w := newReadWorld(t, 1)
	limits := w.job.Limits()
	w.job.output.tokens.Spend(0.6*limits.BurstBytes, after(10))
	if outcome := w.sessions["p0"].Series(100, true, after(10)); outcome != OverHalf {
		t.Errorf("with 40 %% of the bytes left: %s", outcome)
	}
	if outcome := w.report("p0", "news", false, after(10)); outcome != Accepted {
		t.Errorf("a report meanwhile: %s", outcome)
	}
	if outcome := w.sessions["p0"].Series(100, true, after(15)); outcome != Accepted {
		t.Errorf("when the bytes have come back: %s", outcome)
	}
}

func TestSeriesThatAreNotPassedOnAreTold(t *testing.T) {
	w := newReadWorld(t, 1)
	session := w.sessions["p0"]
	if outcome := session.Series(w.job.Limits().LargestSeries+1, true, after(10)); outcome != Oversize {
		t.Errorf("too large: %s", outcome)
	}
	if outcome := session.Series(1, false, after(10)); outcome != Behind {
		t.Errorf("a gateway that is late: %s", outcome)
	}
	w.job.gateway.WantSeries(false)
	if outcome := session.Series(1, true, after(10)); outcome != Unwanted {
		t.Errorf("no service reads: %s", outcome)
	}
	w.join("p0", 9, after(11))
	if outcome := session.Series(1, true, after(11)); outcome != Stale {
		t.Errorf("of a stream that was displaced: %s", outcome)
	}
}

func TestSeriesReachNeitherTheStoreNorTheOperator(t *testing.T) {
	w := newReadWorld(t, 1)
	before := w.job.gateway.changes.Load()
	for second := range 20 {
		w.sessions["p0"].Series(1000, true, after(10+float64(second)))
	}
	if changes := w.job.gateway.changes.Load(); changes != before {
		t.Errorf("%d changes of entries", changes-before)
	}
}

func TestSeriesAreASignOfLife(t *testing.T) {
	w := newReadWorld(t, 1)
	w.sessions["p0"].Series(1000, true, after(30))
	if lost := w.job.Judge(after(31)); lost != 0 {
		t.Errorf("%d lost", lost)
	}
}

func TestLimitsOfSeriesGrowWithTheRanksOfAPod(t *testing.T) {
	small, large := budget.For(1, 1), budget.For(1, 8)
	if small.LargestSeries != 6<<10 || large.LargestSeries != 20<<10 {
		t.Errorf("largest chunks: %d, %d", small.LargestSeries, large.LargestSeries)
	}
	if huge := budget.For(1, 1_000_000).LargestSeries; huge >= budget.MaxAgentMessage {
		t.Errorf("a chunk of %d bytes would be refused by gRPC", huge)
	}
}
