// Package server answers the streams of agents and of the operator.
package server

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"falcon.dev/gateway/internal/budget"
	"falcon.dev/gateway/internal/hub"
	"falcon.dev/gateway/internal/job"
	"falcon.dev/gateway/internal/liveness"
	"falcon.dev/gateway/internal/transport"
	"falcon.dev/gateway/internal/wire"
)

const (
	protocol     = 1
	helloTimeout = 3 * time.Second
	// An agent that says nothing for so long, far beyond being lost, gives its stream back.
	idleTimeout = 30 * time.Second
	idleCheck   = 5 * time.Second
	// A client that does not take a message within this time is cut off: its stream's window is full.
	sendTimeout = 10 * time.Second
)

// Agents serves AgentLink.
type Agents struct {
	wire.UnimplementedAgentLinkServer
	Hub      *hub.Hub
	Draining *Draining
}

// errEnded is the end of a stream as its client wished it.
var errEnded = errors.New("the client ended the stream")

type agentLink = grpc.BidiStreamingServer[wire.FromAgent, wire.ToAgent]

// Agent serves one agent. It sends from this goroutine and reads in another; whichever fails first ends the stream.
func (a *Agents) Agent(stream agentLink) error {
	client, ok := transport.ClientOf(stream.Context())
	if !ok {
		return status.Error(codes.Unauthenticated, "no client certificate")
	}
	if !client.MayBegin(time.Now()) {
		client.Close()
		return a.refuse(client, job.Refuse(job.Streams, codes.ResourceExhausted, "too many streams began on this connection"))
	}
	reader := &agentReader{
		agents: a, client: client, stream: stream,
		joined: make(chan *job.Session, 1), ended: make(chan error, 1),
		messages: budget.NewBucket(budget.MessagesPerSecond, budget.MessagesBurst, time.Now()),
	}
	go reader.run()
	hello := time.NewTimer(helloTimeout)
	defer hello.Stop()
	select {
	case session := <-reader.joined:
		defer session.Leave()
		return a.refuse(client, a.serve(client, stream, session, reader.ended))
	case err := <-reader.ended:
		return a.refuse(client, err)
	case <-a.Draining.Now(client.CommonName):
		return a.refuse(client, shuttingDown())
	case <-hello.C:
		return a.refuse(client, job.Refuse(job.NoHello, codes.DeadlineExceeded, "no Hello within %v", helloTimeout))
	}
}

// serve sends what the session has to send until the stream ends.
func (a *Agents) serve(client *transport.Client, stream agentLink, session *job.Session, ended <-chan error) error {
	welcome := &wire.ToAgent{Message: &wire.ToAgent_Welcome{Welcome: &wire.Welcome{
		Gateway: a.Hub.Gateway.ID, BeatMs: uint32(liveness.Beat.Milliseconds()),
		LargestReportBytes: uint32(session.Limits().LargestReport),
	}}}
	if err := send(client, func() error { return stream.Send(welcome) }); err != nil {
		return err
	}
	idle := time.NewTicker(idleCheck)
	defer idle.Stop()
	for {
		select {
		case <-session.Woken:
			messages, refusal := session.Outbox()
			if refusal != nil {
				return refusal
			}
			for _, message := range messages {
				if err := send(client, func() error { return stream.Send(message) }); err != nil {
					return err
				}
			}
		case err := <-ended:
			return err
		case now := <-idle.C:
			if spoke := session.Spoke(); now.Sub(spoke) > idleTimeout {
				return job.Refuse(job.Idle, codes.DeadlineExceeded, "nothing was said for %v", idleTimeout)
			}
		case <-a.Draining.Now(session.Pod()):
			return shuttingDown()
		}
	}
}

// refuse counts a refusal, and returns what ends the stream.
func (a *Agents) refuse(client *transport.Client, err error) error {
	return counted(a.Hub, a.Hub.Label(client.CommonName), err)
}

// counted counts what ends a stream if it is a refusal, under the label of whoever is refused, and returns it.
func counted(center *hub.Hub, label string, err error) error {
	var refusal *job.Refusal
	if errors.As(err, &refusal) {
		center.Metrics.Refuse(refusal.Reason, label)
	}
	return err
}

// agentReader reads one agent's stream.
type agentReader struct {
	agents   *Agents
	client   *transport.Client
	stream   agentLink
	joined   chan *job.Session
	ended    chan error
	messages *budget.Bucket
	bytes    *budget.Bucket
}

func (r *agentReader) run() {
	err := r.read()
	if errors.Is(err, errEnded) {
		err = nil
	}
	r.ended <- err
}

func (r *agentReader) read() error {
	session, err := r.hello()
	if err != nil {
		return err
	}
	for {
		message, err := r.receive()
		if err != nil {
			return err
		}
		now := time.Now()
		size := 0
		switch {
		case message.GetReport() != nil:
			size = len(message.GetReport().GetPayload())
			outcome, refusal := session.Report(message.GetReport(), now)
			if refusal != nil {
				return refusal
			}
			r.agents.Hub.Metrics.Reports.WithLabelValues(string(outcome), r.label()).Inc()
			if message.GetReport().GetUrgent() && outcome == job.Accepted {
				r.agents.Hub.Hurry(session.Job(), now)
			}
		case message.GetBeat() != nil:
			session.Heard(now)
		case message.GetSeries() != nil:
			size = len(message.GetSeries().GetPayload())
			r.agents.Hub.Series(session, message.GetSeries().GetPayload(), now)
		default:
			return job.Refuse(job.Malformed, codes.InvalidArgument, "no report, no beat and no series")
		}
		if err := r.pace(size, now); err != nil {
			return err
		}
	}
}

func (r *agentReader) hello() (*job.Session, error) {
	message, err := r.receive()
	if err != nil {
		return nil, err
	}
	hello := message.GetHello()
	if hello == nil {
		return nil, job.Refuse(job.Malformed, codes.InvalidArgument, "the first message is not Hello")
	}
	if hello.GetProtocol() != protocol {
		return nil, job.Refuse(job.Protocol, codes.FailedPrecondition, "protocol %d is not known here, only %d: "+
			"are agent and gateway of one release?", hello.GetProtocol(), protocol)
	}
	j := r.agents.Hub.Job(r.client.CommonName)
	if j == nil {
		return nil, job.RefuseUnknownJob(r.client.CommonName)
	}
	now := time.Now()
	session, refusal := j.Join(hello, now)
	if refusal != nil {
		return nil, refusal
	}
	largest := float64(j.Limits().LargestReport)
	r.bytes = budget.NewBucket(budget.ReadReports*largest, budget.ReadReportsBurst*largest, now)
	r.joined <- session
	return session, nil
}

// receive returns the next message. What gRPC itself refuses (not protobuf, too large) is not what its client ended.
func (r *agentReader) receive() (*wire.FromAgent, error) {
	message, err := r.stream.Recv()
	switch {
	case err == nil:
		return message, nil
	case errors.Is(err, io.EOF):
		return nil, errEnded
	case status.Code(err) == codes.ResourceExhausted:
		return nil, job.Refuse(job.TooLarge, codes.InvalidArgument, "a message of more than %d bytes", budget.MaxAgentMessage)
	case status.Code(err) == codes.Internal:
		return nil, job.Refuse(job.Malformed, codes.InvalidArgument, "a message that cannot be read")
	}
	return nil, err
}

// pace waits until a client that sends too fast has waited long enough. Meanwhile its window fills, so that it stops.
func (r *agentReader) pace(size int, now time.Time) error {
	r.messages.Spend(1, now)
	r.bytes.Spend(float64(size), now)
	wait := max(r.messages.Debt(now), r.bytes.Debt(now))
	if wait == 0 {
		return nil
	}
	r.agents.Hub.Metrics.Paused.WithLabelValues(r.label()).Inc()
	return sleep(r.stream.Context(), wait)
}

func (r *agentReader) label() string { return r.agents.Hub.Label(r.client.CommonName) }

func sleep(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
