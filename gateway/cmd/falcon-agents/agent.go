package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"falcon.dev/gateway/internal/wire"
)

// As in core/falcon_gateway/_stream.py.
const (
	firstRetry   = 100 * time.Millisecond
	longestRetry = 2 * time.Second
	wayToGateway = 200 * time.Millisecond // what may pass between sending and the gateway's note of it
)

// readSecurity reads a job's certificate and what it takes to verify a gateway's.
func readSecurity(folder, serverName string) (*tls.Config, error) {
	authority, err := os.ReadFile(filepath.Join(folder, "ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s/ca.crt holds no certificate", folder)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pool, Certificates: []tls.Certificate{pair}, ServerName: serverName,
		NextProtos: []string{"h2"},
	}, nil
}

// report is the newest that the agent has to say, and whether it has been sent on the present stream.
type report struct {
	payload []byte
	urgent  bool
	sent    bool
}

// agent is one pod's connection.
type agent struct {
	crowd    *crowd
	number   uint32
	pod      pod
	security *tls.Config
	end      context.CancelFunc
	news     chan struct{}
	session  uint64

	mu        sync.Mutex
	newest    *report
	order     uint64    // of the newest frame that was played
	holdUntil time.Time // ordinary reports wait until then
}

// report takes the newest report. It replaces one that has not left yet. A report that was planned before another one
// that has been played meanwhile is void.
func (a *agent) report(payload []byte, urgent bool, order uint64) {
	a.mu.Lock()
	if order < a.order {
		a.mu.Unlock()
		return
	}
	a.order = order
	waiting := a.newest
	urgent = urgent || (waiting != nil && waiting.urgent && !waiting.sent)
	a.newest = &report{payload: payload, urgent: urgent}
	a.mu.Unlock()
	select {
	case a.news <- struct{}{}:
	default:
	}
}

// run keeps a stream open until the agent's end.
func (a *agent) run(ctx context.Context) {
	longest := firstRetry
	for ctx.Err() == nil {
		served, err := a.attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		a.crowd.out.log(a.number, "lost", 0)
		a.crowd.out.send(kindLost, a.number, []byte(err.Error()))
		if served {
			longest = firstRetry
		}
		select {
		case <-time.After(rand.N(longest)):
		case <-ctx.Done():
		}
		longest = min(2*longest, longestRetry)
	}
}

// attempt serves one stream until it ends. It returns whether the gateway welcomed the agent, and the stream's end.
func (a *agent) attempt(ctx context.Context) (served bool, err error) {
	stream, err := open(ctx, a.pod.Endpoint, a.security)
	if err != nil {
		return false, err
	}
	defer stream.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, stream.close)()
	a.session = max(uint64(time.Now().UnixNano()), a.session+1)
	hello := &wire.Hello{
		Namespace: a.pod.Namespace, Job: a.pod.Job, PodUid: a.pod.PodUID, Session: a.session, Protocol: 1,
	}
	if err := stream.Send(&wire.FromAgent{Message: &wire.FromAgent_Hello{Hello: hello}}); err != nil {
		_, err = stream.Recv() // says why
		return false, err
	}
	first, err := stream.Recv()
	if err != nil {
		return false, err
	}
	a.crowd.out.log(a.number, "welcome", 0)
	a.mu.Lock()
	if a.newest != nil {
		a.newest.sent = false
	}
	a.mu.Unlock()
	go func() {
		a.talk(ctx, stream, time.Duration(first.GetWelcome().GetBeatMs())*time.Millisecond)
		cancel()
	}()
	return true, a.read(stream)
}

func (a *agent) read(stream *stream) error {
	for {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		switch {
		case message.GetCommand() != nil:
			command := message.GetCommand()
			a.crowd.arrived(a, arrival{Name: command.GetName(), Revision: command.GetRevision(), Payload: command.GetPayload()})
		case message.GetReceipt() != nil:
			receipt := message.GetReceipt()
			event := "receipt"
			if receipt.GetThinned() {
				event = "thinned"
				a.mu.Lock()
				a.holdUntil = time.Now().Add(time.Duration(receipt.GetRetryAfterMs()) * time.Millisecond)
				a.mu.Unlock()
			}
			a.crowd.out.log(a.number, event, receipt.GetSequence())
		}
	}
}

// talk sends the newest report whenever there is one, else a beat, until the stream has ended. The gateway asks for a
// beat each `asked`, and takes an agent for lost that has said nothing for three times as long.
func (a *agent) talk(ctx context.Context, stream *stream, asked time.Duration) {
	beat := time.Duration(a.crowd.slower * float64(asked))
	silence := 3*asked - wayToGateway
	timer := time.NewTimer(beat)
	defer timer.Stop()
	spoke := time.Now()
	says := &wire.FromAgent{Message: &wire.FromAgent_Beat{Beat: &wire.Beat{}}}
	for sequence := uint64(1); ; sequence++ {
		message := says
		due := a.due()
		if due != nil {
			message = &wire.FromAgent{Message: &wire.FromAgent_Report{
				Report: &wire.Report{Sequence: sequence, Urgent: due.urgent, Payload: due.payload},
			}}
		}
		if stream.Send(message) != nil {
			return
		}
		if due != nil {
			a.crowd.out.log(a.number, "report", sequence)
		}
		now := time.Now()
		if now.Sub(spoke) > silence {
			a.crowd.out.log(a.number, "silent", uint64(now.Sub(spoke).Milliseconds()))
			a.crowd.out.send(kindSilent, a.number, nil)
		}
		spoke = now
		timer.Reset(beat)
		select {
		case <-a.news:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// due returns the report that may leave now, and notes that it was sent; nil if there is none.
func (a *agent) due() *report {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.newest == nil || a.newest.sent || (!a.newest.urgent && time.Now().Before(a.holdUntil)) {
		return nil
	}
	a.newest.sent = true
	return a.newest
}
