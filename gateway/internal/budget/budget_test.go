package budget

import (
	"testing"
	"time"
)

var start = time.Unix(1_000, 0)

func after(seconds float64) time.Time {
	return start.Add(time.Duration(seconds * float64(time.Second)))
}

func TestABucketGivesItsBurstAndThenItsRate(t *testing.T) {
	bucket := NewBucket(2, 4, start)
	for range 4 {
		if !bucket.Take(1, start) {
			t.Fatal("the burst was refused")
		}
	}
	if bucket.Take(1, after(0.4)) {
		t.Error("0.8 tokens were taken for one")
	}
	if !bucket.Take(1, after(0.5)) {
		t.Error("the token of half a second was refused")
	}
	if bucket.Take(1, after(0.5)) {
		t.Error("the same token was given twice")
	}
}

func TestADebtIsPaidAtTheRate(t *testing.T) {
	bucket := NewBucket(10, 10, start)
	bucket.Spend(60, start)
	if debt := bucket.Debt(start); debt != 5*time.Second {
		t.Errorf("50 tokens at 10 a second: %v", debt)
	}
	if debt := bucket.Debt(after(5)); debt != 0 {
		t.Errorf("after 5 s: %v", debt)
	}
}

func TestAClockThatGoesBackGivesNothing(t *testing.T) {
	bucket := NewBucket(1, 1, start)
	bucket.Take(1, start)
	if bucket.Take(1, start.Add(-time.Hour)) {
		t.Error("a token for a time that has been")
	}
	if !bucket.Take(1, after(1)) {
		t.Error("the second that then passed was forgotten")
	}
}

func TestASmallerBucketKeepsItsDebt(t *testing.T) {
	bucket := NewBucket(10, 100, start)
	bucket.Spend(120, start)
	bucket.Resize(5, 10, start)
	if debt := bucket.Debt(start); debt != 4*time.Second {
		t.Errorf("20 tokens at 5 a second: %v", debt)
	}
}

func TestLimitsGrowWithWhatIsAnnounced(t *testing.T) {
	small, large := For(2, 1), For(1250, 8)
	if small.LargestReport != 64<<10 || For(1, 16).LargestReport != 80<<10 {
		t.Errorf("largest reports: %d, %d", small.LargestReport, For(1, 16).LargestReport)
	}
	if For(1, 1_000_000).LargestReport >= MaxAgentMessage {
		t.Error("a report that gRPC would refuse is allowed")
	}
	if small.Connections != 12 || large.Connections != 2508 {
		t.Errorf("connections: %d, %d", small.Connections, large.Connections)
	}
	if large.BytesPerSecond <= small.BytesPerSecond {
		t.Error("a large job has no more than a small one")
	}
}
