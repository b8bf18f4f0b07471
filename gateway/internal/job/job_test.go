package job

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"falcon.dev/gateway/internal/wire"
)

const uid = "11111111-1111-4111-8111-111111111111"

var start = time.Unix(1_000, 0)

func after(seconds float64) time.Time {
	return start.Add(time.Duration(seconds * float64(time.Second)))
}

// world is a job of the pods p0, p1, … with one rank each.
type world struct {
	*testing.T
	job      *Job
	sessions map[string]*Session
	next     map[string]uint64
}

func announcement(revision uint64, pods int) *wire.Announce {
	announce := &wire.Announce{Namespace: "ns", Job: "job", JobUid: uid, ProcsPerReplica: 1, Revision: revision}
	for i := range pods {
		announce.PodUids = append(announce.PodUids, fmt.Sprintf("p%d", i))
	}
	return announce
}

func newWorld(t *testing.T, pods int) *world {
	t.Helper()
	gateway := &Gateway{ID: "g", Incarnation: 7}
	return &world{t, New(gateway, announcement(1, pods), start), map[string]*Session{}, map[string]uint64{}}
}

func (w *world) join(pod string, session uint64, now time.Time) {
	w.Helper()
	joined, refusal := w.job.Join(&wire.Hello{Namespace: "ns", Job: "job", PodUid: pod, Session: session}, now)
	if refusal != nil {
		w.Fatalf("%s: %v", pod, refusal)
	}
	w.sessions[pod] = joined
	w.next[pod] = 0
}

func (w *world) report(pod, payload string, urgent bool, now time.Time) Outcome {
	w.Helper()
	w.next[pod]++
	outcome, refusal := w.sessions[pod].Report(
		&wire.Report{Sequence: w.next[pod], Urgent: urgent, Payload: []byte(payload)}, now)
	if refusal != nil {
		w.Fatalf("%s: %v", pod, refusal)
	}
	return outcome
}

// flush returns what is passed on, and says that the store took it.
func (w *world) flush(now time.Time) *Output {
	output, _ := w.job.Flush(now, true)
	if output != nil && output.ToStore {
		w.job.Written(nil)
	}
	return output
}

// newWellWorld is a world in which each pod has joined and reported at the start.
func newWellWorld(t *testing.T, pods int) *world {
	t.Helper()
	w := newWorld(t, pods)
	for i := range pods {
		w.join(fmt.Sprintf("p%d", i), 1, start)
		w.report(fmt.Sprintf("p%d", i), "well", false, start)
	}
	return w
}

func (w *world) entries(output *Output) map[string]*wire.Entry {
	w.Helper()
	entries := map[string]*wire.Entry{}
	for _, encoded := range output.Batches {
		var batch wire.Batch
		if err := proto.Unmarshal(encoded, &batch); err != nil {
			w.Fatal(err)
		}
		if batch.GetGateway() != "g" || batch.GetIncarnation() != 7 || batch.GetJobUid() != uid || batch.GetNumber() == 0 {
			w.Errorf("the batch's head: %v", &batch)
		}
		for _, entry := range batch.GetEntries() {
			entries[entry.GetPodUid()] = entry
		}
	}
	return entries
}

func reasonOf(refusal *Refusal) Reason {
	if refusal == nil {
		return ""
	}
	return refusal.Reason
}

func TestReportsOfOneMomentBecomeOneSnapshot(t *testing.T) {
	w := newWorld(t, 3)
	for i, pod := range []string{"p0", "p1", "p2"} {
		w.join(pod, 1, after(10))
		w.report(pod, "well", false, after(10+0.1*float64(i)))
	}
	if w.flush(after(10.2)) != nil {
		t.Error("it did not wait for the others")
	}
	output := w.flush(after(10.3))
	if output == nil || !output.Snapshot || len(output.Batches) != 1 || len(w.entries(output)) != 3 {
		t.Fatalf("passed on: %+v", output)
	}
	for seconds := 10.35; seconds < 60; seconds += 0.05 {
		if w.flush(after(seconds)) != nil {
			t.Fatalf("after %v s something was passed on though nothing had changed", seconds)
		}
	}
}

func TestTheHotBatchHoldsWhatChangedSinceTheSnapshot(t *testing.T) {
	w := newWellWorld(t, 10)
	if output := w.flush(after(1)); !output.Snapshot {
		t.Fatal("the first batch is no snapshot")
	}
	w.report("p1", "slow", false, after(1))
	if output := w.flush(after(2)); output.Snapshot || len(w.entries(output)) != 1 {
		t.Errorf("p1 changed: %v", w.entries(output))
	}
	w.report("p2", "slow", false, after(2))
	if output := w.flush(after(3)); output.Snapshot || len(w.entries(output)) != 2 {
		t.Errorf("p1, then p2 changed: %v", w.entries(output))
	}
	if w.flush(after(10.9)) != nil {
		t.Error("a snapshot before its time")
	}
	if output := w.flush(after(11)); output == nil || !output.Snapshot || len(w.entries(output)) != 10 {
		t.Errorf("no snapshot after ten seconds: %+v", output)
	}
}

func TestTheStoreGetsOneOrdinaryBatchASecondAndTheStreamsTwo(t *testing.T) {
	w := newWellWorld(t, 10)
	if output := w.flush(after(1)); !output.ToStore {
		t.Fatal("the store did not get the first batch")
	}
	w.report("p1", "slow", false, after(1))
	if output := w.flush(after(1.5)); output == nil || output.ToStore || len(w.entries(output)) != 1 {
		t.Errorf("half a second later: %+v", output)
	}
	if w.flush(after(1.95)) != nil {
		t.Error("the store's turn came early")
	}
	if output := w.flush(after(2)); output == nil || !output.ToStore || output.Snapshot || len(w.entries(output)) != 1 {
		t.Errorf("a second later the store has its turn: %+v", output)
	}
	if w.flush(after(3.5)) != nil {
		t.Error("something was passed on though nothing had changed")
	}
}

func TestAHotBatchBeyondHalfOfTheSnapshotIsASnapshot(t *testing.T) {
	w := newWorld(t, 10)
	for i := range 10 {
		w.join(fmt.Sprintf("p%d", i), 1, start)
	}
	w.flush(after(1))
	for i := range 6 {
		w.report(fmt.Sprintf("p%d", i), "slow", false, after(1))
	}
	if output := w.flush(after(2)); !output.Snapshot {
		t.Error("six of ten pods went out as a hot batch")
	}
}

func TestUrgentReportsOfASmallJobFollowEachOtherSoonerAndTheStoreWaits(t *testing.T) {
	w := newWellWorld(t, 3)
	w.flush(after(1))
	w.report("p0", "exit 1", true, after(3))
	if output := w.flush(after(3)); output == nil || !output.ToStore {
		t.Fatalf("the first urgent report: %+v", output)
	}
	w.report("p1", "exit 1", true, after(3.01))
	if w.flush(after(3.01)) != nil {
		t.Error("two urgent batches within a hundredth of a second")
	}
	output := w.flush(after(3.016))
	if output == nil || string(w.entries(output)["p1"].GetPayload()) != "exit 1" {
		t.Fatalf("passed on: %+v", output)
	}
	if output.ToStore {
		t.Error("the store gets more urgent batches than ten a second")
	}
	if output = w.flush(after(4)); output == nil || !output.ToStore {
		t.Errorf("the store lacks p1's report: %+v", output)
	}
}

func TestAnUrgentReportWaitsForNobody(t *testing.T) {
	w := newWorld(t, 20)
	for i := range 20 {
		w.join(fmt.Sprintf("p%d", i), 1, start)
	}
	w.flush(after(1))
	w.report("p3", "exit 1", true, after(1.1))
	output := w.flush(after(1.1))
	if output == nil || len(w.entries(output)) != 1 || string(w.entries(output)["p3"].GetPayload()) != "exit 1" {
		t.Fatalf("passed on: %+v", output)
	}
	w.report("p4", "exit 1", true, after(1.15))
	if w.flush(after(1.15)) != nil {
		t.Error("two urgent batches within a tenth of a second")
	}
	if output = w.flush(after(1.2)); len(w.entries(output)) != 2 {
		t.Errorf("p4 and, since it is cumulative, p3: %v", w.entries(output))
	}
}

func TestUrgentReportsAreBoundedInNumber(t *testing.T) {
	w := newWorld(t, 2)
	w.join("p0", 1, start)
	outcomes := map[Outcome]int{}
	for range 100 {
		outcomes[w.report("p0", "now", true, start)]++
	}
	if outcomes[Accepted] != 20 || outcomes[OverRate] != 80 {
		t.Errorf("outcomes: %v", outcomes)
	}
	w.sessions["p0"].Leave()
	w.join("p0", 2, start)
	if w.report("p0", "now", true, start) != OverRate {
		t.Error("a new session has a new budget")
	}
}

func TestTooManyReportsAreThinnedAndTheNewestKept(t *testing.T) {
	w := newWorld(t, 2)
	w.join("p0", 1, start)
	_, _ = w.sessions["p0"].Outbox()
	var last Outcome
	for i := range 50 {
		last = w.report("p0", fmt.Sprint(i), false, start)
	}
	if last != OverRate {
		t.Errorf("fifty reports at once: %s", last)
	}
	messages, _ := w.sessions["p0"].Outbox()
	if len(messages) != 1 {
		t.Fatalf("%d messages wait for the agent", len(messages))
	}
	receipt := messages[0].GetReceipt()
	if receipt.GetSequence() != 50 || !receipt.GetThinned() || receipt.GetRetryAfterMs() == 0 {
		t.Errorf("receipt: %v", receipt)
	}
	if entry := w.entries(w.flush(after(1)))["p0"]; string(entry.GetPayload()) != "49" {
		t.Errorf("passed on: %s", entry.GetPayload())
	}
}

func TestAJobBeyondItsBytesIsHeldBackAndThenGoesOn(t *testing.T) {
	w := newWorld(t, 2)
	w.join("p0", 1, start)
	largest := string(bytes.Repeat([]byte("x"), w.job.Limits().LargestReport))
	now, passed, held := start, 0, false
	for now.Before(after(60)) {
		now = now.Add(100 * time.Millisecond)
		w.report("p0", largest, true, now)
		output, thinned := w.job.Flush(now, true)
		held = held || thinned
		if output != nil {
			w.job.Written(nil)
			passed += len(output.Batches[0])
		}
	}
	limits := w.job.Limits()
	most := limits.BurstBytes + 60*limits.BytesPerSecond + float64(2*limits.LargestReport)
	if !held || float64(passed) > most {
		t.Errorf("held back: %v; passed on %d bytes, at most %.0f", held, passed, most)
	}
	if w.report("p0", "small", false, now) != OverQuota {
		t.Error("the agent is not told")
	}
	output, _ := w.job.Flush(now.Add(10*time.Second), true)
	if output == nil || string(w.entries(output)["p0"].GetPayload()) != "small" {
		t.Error("the newest report did not follow when there was budget again")
	}
}

func TestASilentAgentIsLostAndComesBack(t *testing.T) {
	w := newWorld(t, 10)
	for i := range 10 {
		w.join(fmt.Sprintf("p%d", i), 1, start)
	}
	w.report("p0", "last words", false, start)
	w.flush(after(1))
	for i := 1; i < 10; i++ {
		w.sessions[fmt.Sprintf("p%d", i)].Heard(after(2))
	}
	if lost := w.job.Judge(after(2)); lost != 0 {
		t.Fatalf("%d lost after two seconds", lost)
	}
	if lost := w.job.Judge(after(2.25)); lost != 1 {
		t.Fatalf("%d lost", lost)
	}
	entry := w.entries(w.flush(after(2.25)))["p0"]
	if entry.GetAlive() || entry.GetSilentMs() != 2250 || string(entry.GetPayload()) != "last words" {
		t.Errorf("entry: %v", entry)
	}
	if w.job.Judge(after(3)) != 0 {
		t.Error("lost twice")
	}
	w.sessions["p0"].Heard(after(3))
	if entry = w.entries(w.flush(after(3)))["p0"]; !entry.GetAlive() || entry.GetSilentMs() != 0 {
		t.Errorf("entry: %v", entry)
	}
}

func TestAnAgentThatConnectsAnewInTimeIsNotLost(t *testing.T) {
	w := newWorld(t, 2)
	w.join("p0", 1, start)
	w.report("p0", "before", false, start)
	w.sessions["p0"].Leave()
	w.join("p0", 2, after(1.9))
	if w.job.Judge(after(3)) != 0 {
		t.Error("lost")
	}
	entry := w.entries(w.flush(after(3)))["p0"]
	if entry.GetSession() != 2 || entry.GetSequence() != 0 || string(entry.GetPayload()) != "before" {
		t.Errorf("entry: %v", entry)
	}
}

func TestTheNewerSessionWins(t *testing.T) {
	w := newWorld(t, 2)
	w.join("p0", 5, start)
	old := w.sessions["p0"]
	for _, session := range []uint64{4, 5} {
		_, refusal := w.job.Join(&wire.Hello{Namespace: "ns", Job: "job", PodUid: "p0", Session: session}, start)
		if reasonOf(refusal) != OldSession {
			t.Errorf("session %d: %v", session, refusal)
		}
	}
	w.join("p0", 6, start)
	if _, refusal := old.Outbox(); reasonOf(refusal) != Displaced {
		t.Errorf("the older stream: %v", refusal)
	}
	w.report("p0", "new", false, start)
	if outcome, _ := old.Report(&wire.Report{Sequence: 9, Payload: []byte("old")}, start); outcome != Stale {
		t.Errorf("a report of the older stream: %s", outcome)
	}
	old.Leave()
	if entry := w.entries(w.flush(after(1)))["p0"]; string(entry.GetPayload()) != "new" {
		t.Errorf("entry: %v", entry)
	}
	if w.report("p0", "newer", false, after(1)) != Accepted {
		t.Error("the end of the older stream ended the newer one")
	}
}

func TestASequenceThatWasThereIsIgnored(t *testing.T) {
	w := newWorld(t, 2)
	w.join("p0", 1, start)
	w.report("p0", "first", false, start)
	outcome, _ := w.sessions["p0"].Report(&wire.Report{Sequence: 1, Payload: []byte("again")}, start)
	if outcome != Stale {
		t.Errorf("outcome: %s", outcome)
	}
	if entry := w.entries(w.flush(after(1)))["p0"]; string(entry.GetPayload()) != "first" {
		t.Errorf("entry: %v", entry)
	}
}

func TestWhoMayNotJoin(t *testing.T) {
	w := newWorld(t, 2)
	for _, c := range []struct {
		hello  *wire.Hello
		reason Reason
		code   codes.Code
	}{
		{&wire.Hello{Namespace: "ns", Job: "other", PodUid: "p0", Session: 1}, WrongJob, codes.PermissionDenied},
		{&wire.Hello{Namespace: "else", Job: "job", PodUid: "p0", Session: 1}, WrongJob, codes.PermissionDenied},
		{&wire.Hello{Namespace: "ns", Job: "job", PodUid: "foreign", Session: 1}, UnknownPod, codes.NotFound},
		{&wire.Hello{Namespace: "ns", Job: "job", PodUid: "p0"}, OldSession, codes.Aborted},
	} {
		_, refusal := w.job.Join(c.hello, start)
		if reasonOf(refusal) != c.reason || refusal.GRPCStatus().Code() != c.code {
			t.Errorf("%v: %v", c.hello, refusal)
		}
	}
}

func TestAReportThatIsTooLargeEndsTheStream(t *testing.T) {
	w := newWorld(t, 2)
	w.join("p0", 1, start)
	huge := make([]byte, w.job.Limits().LargestReport+1)
	if _, refusal := w.sessions["p0"].Report(&wire.Report{Sequence: 1, Payload: huge}, start); reasonOf(refusal) != TooLarge {
		t.Errorf("refusal: %v", refusal)
	}
}

func TestCommandsAreStateAndTheHigherRevisionWins(t *testing.T) {
	w := newWorld(t, 2)
	w.job.Publish(&wire.Publish{Name: "plan", Revision: 2, Payload: []byte("two")})
	w.join("p0", 1, start)
	payloads := func() []string {
		messages, _ := w.sessions["p0"].Outbox()
		var all []string
		for _, message := range messages {
			all = append(all, string(message.GetCommand().GetPayload()))
		}
		return all
	}
	if got := payloads(); len(got) != 1 || got[0] != "two" {
		t.Errorf("at the beginning: %v", got)
	}
	w.job.Publish(&wire.Publish{Name: "plan", Revision: 1, Payload: []byte("one")})
	w.job.Publish(&wire.Publish{Name: "plan", Revision: 2, Payload: []byte("two again")})
	if got := payloads(); len(got) != 0 {
		t.Errorf("older and equal revisions: %v", got)
	}
	w.job.Publish(&wire.Publish{Name: "plan", Revision: 3, Payload: []byte("three")})
	w.job.Publish(&wire.Publish{Name: "plan", Revision: 4, Payload: []byte("four")})
	if got := payloads(); len(got) != 1 || got[0] != "four" {
		t.Errorf("a reader that was away needs only the newest: %v", got)
	}
}

func TestAPodThatIsNoLongerAnnouncedGoes(t *testing.T) {
	w := newWorld(t, 2)
	w.join("p0", 1, start)
	w.join("p1", 1, start)
	w.flush(after(1))
	w.job.Announce(announcement(3, 1), after(1))
	if _, refusal := w.sessions["p1"].Outbox(); reasonOf(refusal) != UnknownPod {
		t.Errorf("its stream: %v", refusal)
	}
	if output := w.flush(after(2)); output == nil || !output.Snapshot || len(w.entries(output)) != 1 {
		t.Errorf("the snapshot: %+v", output)
	}
	w.job.Announce(announcement(2, 2), after(2))
	if _, refusal := w.job.Join(&wire.Hello{Namespace: "ns", Job: "job", PodUid: "p1", Session: 2}, after(2)); refusal == nil {
		t.Error("an older announcement was taken")
	}
}

func TestWhatTheStoreMissedIsOwed(t *testing.T) {
	w := newWorld(t, 10)
	for i := range 10 {
		w.join(fmt.Sprintf("p%d", i), 1, start)
	}
	w.flush(after(1))
	w.report("p0", "slow", false, after(1))
	output, _ := w.job.Flush(after(2), true)
	if output.Snapshot || !output.ToStore {
		t.Fatalf("passed on: %+v", output)
	}
	w.report("p1", "slow", false, after(2))
	if output, _ = w.job.Flush(after(3), true); output == nil || output.ToStore {
		t.Fatalf("while a write is under way: %+v", output)
	}
	w.job.Written(errors.New("etcd is away"))
	if output, _ = w.job.Flush(after(4), false); output != nil {
		t.Errorf("the store is not live: %+v", output)
	}
	if output, _ = w.job.Flush(after(5), true); output == nil || !output.Snapshot || !output.ToStore {
		t.Errorf("no snapshot for a store that is back: %+v", output)
	}
}

func TestBatchesStayBelowEtcdsBound(t *testing.T) {
	w := newWorld(t, 200)
	now := start
	for i := range 200 {
		pod := fmt.Sprintf("p%d", i)
		w.join(pod, 1, now)
		w.report(pod, string(make([]byte, 60_000)), false, now)
	}
	output := w.flush(after(1))
	if len(w.entries(output)) != 200 {
		t.Errorf("%d pods", len(w.entries(output)))
	}
	for _, batch := range output.Batches {
		if len(batch) >= MaxValue {
			t.Errorf("a batch of %d bytes", len(batch))
		}
	}
}

func TestAWithdrawnJobEndsItsStreams(t *testing.T) {
	w := newWorld(t, 1)
	w.join("p0", 1, start)
	w.job.Withdraw()
	if _, refusal := w.sessions["p0"].Outbox(); reasonOf(refusal) != UnknownJob {
		t.Errorf("its stream: %v", refusal)
	}
	if _, refusal := w.job.Join(&wire.Hello{Namespace: "ns", Job: "job", PodUid: "p0", Session: 2}, start); refusal == nil {
		t.Error("a stream began in a job that is gone")
	}
}
