package server

import (
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"falcon.dev/gateway/internal/hub"
	"falcon.dev/gateway/internal/job"
	"falcon.dev/gateway/internal/metrics"
	"falcon.dev/gateway/internal/transport"
	"falcon.dev/gateway/internal/wire"
)

// SubscriberName is the common name of the anomaly service's certificate. It is served series and nothing else.
const SubscriberName = "anomalies"

// The service computes between two reads; what it does not read meanwhile is dropped.
const subscriberTimeout = time.Minute

// Subscribers serves SeriesLink.
type Subscribers struct {
	wire.UnimplementedSeriesLinkServer
	Hub      *hub.Hub
	Draining *Draining
}

type seriesLink = grpc.BidiStreamingServer[wire.FromSubscriber, wire.ToSubscriber]

// Series serves one subscriber: each chunk that comes from now on.
func (s *Subscribers) Series(stream seriesLink) error {
	return counted(s.Hub, metrics.Unknown, s.serve(stream))
}

func (s *Subscribers) serve(stream seriesLink) error {
	client, ok := transport.ClientOf(stream.Context())
	if !ok || client.CommonName != SubscriberName {
		return status.Error(codes.PermissionDenied, "only the anomaly service is served series")
	}
	greeted, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- readSubscriber(stream, greeted) }()
	timer := time.NewTimer(helloTimeout)
	defer timer.Stop()
	select {
	case <-greeted:
	case err := <-ended:
		return err
	case <-timer.C:
		return job.Refuse(job.NoHello, codes.DeadlineExceeded, "no SubscriberHello within %v", helloTimeout)
	}
	subscriber, refusal := s.Hub.Subscribe()
	if refusal != nil {
		return refusal
	}
	defer func() { s.Hub.Unsubscribe(subscriber, time.Now()) }()
	hello := &wire.GatewayHello{Gateway: s.Hub.Gateway.ID, Incarnation: s.Hub.Gateway.Incarnation}
	if err := s.send(client, stream, &wire.ToSubscriber{Message: &wire.ToSubscriber_Hello{Hello: hello}}); err != nil {
		return err
	}
	for {
		select {
		case <-subscriber.Woken:
			for chunk := subscriber.Next(time.Now()); chunk != nil; chunk = subscriber.Next(time.Now()) {
				message := &wire.ToSubscriber{Message: &wire.ToSubscriber_Chunk{Chunk: chunk}}
				if err := s.send(client, stream, message); err != nil {
					return err
				}
			}
		case err := <-ended:
			return err
		case <-s.Draining.Now(""):
			return shuttingDown()
		}
	}
}

// readSubscriber reads the greeting, and then returns when the stream ends.
func readSubscriber(stream seriesLink, greeted chan<- struct{}) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetHello() == nil {
		return job.Refuse(job.Malformed, codes.InvalidArgument, "the first message is not SubscriberHello")
	}
	close(greeted)
	if _, err = stream.Recv(); errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		return job.Refuse(job.Malformed, codes.InvalidArgument, "nothing is expected after SubscriberHello")
	}
	return err
}

func (s *Subscribers) send(client *transport.Client, stream seriesLink, message *wire.ToSubscriber) error {
	return sendWithin(subscriberTimeout, client, func() error { return stream.Send(message) })
}
