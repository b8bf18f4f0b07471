package job

import (
	"time"

	"google.golang.org/grpc/codes"

	"falcon.dev/gateway/internal/budget"
	"falcon.dev/gateway/internal/wire"
)

// Outcome is what became of a report; the label of a metric.
type Outcome string

// The outcomes of reports.
const (
	Accepted  Outcome = "accepted"
	Stale     Outcome = "stale"      // a sequence that was there before: ignored
	OverRate  Outcome = "over_rate"  // kept; the agent reports too often
	OverQuota Outcome = "over_quota" // kept; the job's bytes are used up for now
)

// Outcomes of chunks of series, as well as Accepted and OverRate (the pod's own bytes are used up).
const (
	Unwanted Outcome = "unwanted" // series have no reader
	Oversize Outcome = "oversize"
	OverHalf Outcome = "over_half" // half of the job's bytes for reports are used up: series are given up first
	Behind   Outcome = "behind"    // the gateway's own ticks are late: it has no time for series
)

// reportsFirst is the share of a job's burst for reports below which its series are dropped.
const reportsFirst = 0.5

// Session is one agent's open stream. What has to be sent to the agent is state, too: the newest revision of each
// command and the newest receipt. Its fields are guarded by the job.
type Session struct {
	Woken    chan struct{} // a message that something has to be sent, or that the stream has to end
	job      *Job
	podUID   string
	id       uint64
	sequence uint64
	receipt  *wire.Receipt
	series   bool              // the agent knows that series are wanted
	sent     map[string]uint64 // revision of each command that was handed out
	ended    *Refusal
}

// Join begins a session. The session before it, if its stream is still open, ends: the newer one wins.
func (j *Job) Join(hello *wire.Hello, now time.Time) (*Session, *Refusal) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.gone {
		return nil, RefuseUnknownJob(j.Key.UID)
	}
	if hello.GetNamespace() != j.Key.Namespace || hello.GetJob() != j.Key.Name {
		return nil, Refuse(WrongJob, codes.PermissionDenied, "this certificate is of %s/%s, not of %s/%s",
			j.Key.Namespace, j.Key.Name, hello.GetNamespace(), hello.GetJob())
	}
	p := j.pods[hello.GetPodUid()]
	if p == nil {
		return nil, refuseUnknownPod(hello.GetPodUid(), j.Key)
	}
	if p.entry.GetSession() >= hello.GetSession() {
		return nil, Refuse(OldSession, codes.Aborted, "session %d of pod %s is not newer than session %d: connect again "+
			"with a newer one", hello.GetSession(), hello.GetPodUid(), p.entry.GetSession())
	}
	if p.session != nil {
		p.session.end(Refuse(Displaced, codes.Aborted, "a newer session of pod %s has begun", hello.GetPodUid()))
	}
	session := &Session{
		Woken: make(chan struct{}, 1), job: j, podUID: hello.GetPodUid(), id: hello.GetSession(), sent: map[string]uint64{},
	}
	p.session = session
	j.begin(p, session, now)
	session.wake()
	return session, nil
}

// begin shows the pod as alive in its new session. A payload of an earlier session stays until the first report.
func (j *Job) begin(p *pod, session *Session, now time.Time) {
	wasLost := p.entry != nil && !p.entry.Alive
	if p.entry == nil {
		p.entry = &wire.Entry{PodUid: session.podUID}
	}
	p.entry.Session, p.entry.Sequence = session.id, 0
	p.entry.Alive, p.entry.SilentMs = true, 0
	p.spoke = now
	j.changed(p, wasLost, now)
}

// Heard notes that the agent said something.
func (s *Session) Heard(now time.Time) {
	s.job.mu.Lock()
	defer s.job.mu.Unlock()
	if p := s.pod(); p != nil {
		s.job.heard(p, now)
	}
}

// Report takes a report and prepares its receipt.
func (s *Session) Report(report *wire.Report, now time.Time) (Outcome, *Refusal) {
	s.job.mu.Lock()
	defer s.job.mu.Unlock()
	p := s.pod()
	if p == nil {
		return Stale, nil // the stream is about to end
	}
	s.job.heard(p, now)
	if largest := s.job.limits.LargestReport; len(report.GetPayload()) > largest {
		return "", Refuse(TooLarge, codes.InvalidArgument, "a report of %d bytes: at most %d are taken of a pod of this job",
			len(report.GetPayload()), largest)
	}
	if report.GetSequence() <= s.sequence {
		return Stale, nil
	}
	s.sequence = report.GetSequence()
	urgent, outcome := s.admit(p, report.GetUrgent(), now)
	p.entry.Sequence, p.entry.Payload = report.GetSequence(), report.GetPayload()
	p.entry.ReceivedUnixNs = uint64(now.UnixNano())
	s.job.changed(p, urgent, now)
	s.receipt = &wire.Receipt{Sequence: s.sequence, Thinned: outcome != Accepted}
	if s.receipt.Thinned {
		retry := max(s.job.output.tokens.Debt(now), time.Second/budget.ReportsPerSecond)
		s.receipt.RetryAfterMs = uint32(min(retry, time.Minute).Milliseconds())
	}
	s.wake()
	return outcome, nil
}

// admit says whether a report is passed on at once, and whether it is within the budgets.
func (s *Session) admit(p *pod, urgent bool, now time.Time) (bool, Outcome) {
	outcome := Accepted
	if urgent && !p.urgent.Take(1, now) {
		urgent, outcome = false, OverRate
	} else if !urgent && !p.ordinary.Take(1, now) {
		outcome = OverRate
	}
	if outcome == Accepted && s.job.output.tokens.Debt(now) > 0 {
		outcome = OverQuota
	}
	return urgent, outcome
}

// Series says what becomes of a chunk of so many bytes. `onTime`: the gateway has lately had the time that it needs.
func (s *Session) Series(size int, onTime bool, now time.Time) Outcome {
	s.job.mu.Lock()
	defer s.job.mu.Unlock()
	p := s.pod()
	if p == nil {
		return Stale // the stream is about to end
	}
	s.job.heard(p, now)
	switch {
	case !s.job.gateway.series.Load():
		return Unwanted
	case size > s.job.limits.LargestSeries:
		return Oversize
	case !onTime:
		return Behind
	case s.job.output.tokens.Left(now) < reportsFirst:
		return OverHalf
	case !p.series.Take(float64(size+budget.SeriesFrame), now):
		return OverRate
	}
	return Accepted
}

// Outbox takes what has to be sent to the agent now. A refusal ends the stream.
func (s *Session) Outbox() ([]*wire.ToAgent, *Refusal) {
	s.job.mu.Lock()
	defer s.job.mu.Unlock()
	if s.ended != nil {
		return nil, s.ended
	}
	var messages []*wire.ToAgent
	for name, command := range s.job.commands {
		if s.sent[name] < command.GetRevision() {
			s.sent[name] = command.GetRevision()
			messages = append(messages, &wire.ToAgent{Message: &wire.ToAgent_Command{Command: command}})
		}
	}
	if wanted := s.job.gateway.series.Load(); wanted != s.series {
		s.series = wanted
		messages = append(messages, &wire.ToAgent{Message: &wire.ToAgent_SeriesWanted{SeriesWanted: s.job.seriesWanted(wanted)}})
	}
	if s.receipt != nil {
		messages = append(messages, &wire.ToAgent{Message: &wire.ToAgent_Receipt{Receipt: s.receipt}})
		s.receipt = nil
	}
	return messages, nil
}

// Pod returns the uid of the session's pod.
func (s *Session) Pod() string { return s.podUID }

// Job returns the session's job.
func (s *Session) Job() *Job { return s.job }

// Limits returns the limits of the session's job.
func (s *Session) Limits() budget.Limits { return s.job.Limits() }

// Spoke returns when the agent last said something.
func (s *Session) Spoke() time.Time {
	s.job.mu.Lock()
	defer s.job.mu.Unlock()
	if p := s.pod(); p != nil {
		return p.spoke
	}
	return time.Time{}
}

// Leave notes that the stream has ended. Whether the agent is lost shows in the silence that follows.
func (s *Session) Leave() {
	s.job.mu.Lock()
	defer s.job.mu.Unlock()
	if p := s.pod(); p != nil {
		p.session = nil
	}
}

// pod returns the session's pod; nil if the pod is no longer announced or has a newer session.
func (s *Session) pod() *pod {
	if p := s.job.pods[s.podUID]; p != nil && p.session == s {
		return p
	}
	return nil
}

func (s *Session) end(refusal *Refusal) {
	if s.ended == nil {
		s.ended = refusal
	}
	s.wake()
}

func (s *Session) wake() {
	select {
	case s.Woken <- struct{}{}:
	default: // it is awake already
	}
}

func (j *Job) seriesWanted(wanted bool) *wire.SeriesWanted {
	if !wanted {
		return &wire.SeriesWanted{}
	}
	return &wire.SeriesWanted{LargestBytes: uint32(j.limits.LargestSeries)}
}

func (j *Job) heard(p *pod, now time.Time) {
	p.spoke = now
	if !p.entry.Alive {
		p.entry.Alive, p.entry.SilentMs = true, 0
		j.changed(p, true, now)
	}
}
