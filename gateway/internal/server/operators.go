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

// OperatorName is the common name of the operator's certificate.
const OperatorName = "root"

// MaxOperatorMessage bounds what the operator sends: the plan of the largest job.
const MaxOperatorMessage = 16 << 20

// Operators serves OperatorLink.
type Operators struct {
	wire.UnimplementedOperatorLinkServer
	Hub      *hub.Hub
	Draining *Draining
}

type operatorLink = grpc.BidiStreamingServer[wire.FromOperator, wire.ToOperator]

// Operator serves one operator: first all that the gateway holds, then each batch as it is made.
func (o *Operators) Operator(stream operatorLink) error {
	return counted(o.Hub, metrics.Unknown, o.serve(stream))
}

func (o *Operators) serve(stream operatorLink) error {
	client, ok := transport.ClientOf(stream.Context())
	if !ok || client.CommonName != OperatorName {
		return status.Error(codes.PermissionDenied, "only the operator is served here")
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetHello() == nil {
		return job.Refuse(job.Malformed, codes.InvalidArgument, "the first message is not OperatorHello")
	}
	link, refusal := o.Hub.Connect(first.GetHello().GetEpoch(), time.Now())
	if refusal != nil {
		return refusal
	}
	defer o.Hub.Disconnect(link)
	reader := &operatorReader{
		hub: o.Hub, link: link, stream: stream,
		pongs: make(chan uint64, 1), ended: make(chan error, 1), announced: map[string]bool{},
	}
	go func() { reader.ended <- reader.read() }()
	sendBatch := func(batch []byte) error {
		return o.send(client, stream, &wire.ToOperator{Message: &wire.ToOperator_Batch{Batch: batch}})
	}
	hello := &wire.GatewayHello{Gateway: o.Hub.Gateway.ID, Incarnation: o.Hub.Gateway.Incarnation}
	if err := o.send(client, stream, &wire.ToOperator{Message: &wire.ToOperator_Hello{Hello: hello}}); err != nil {
		return err
	}
	if err := o.Hub.Everything(sendBatch); err != nil {
		return err
	}
	if err := o.send(client, stream, &wire.ToOperator{Message: &wire.ToOperator_AllSent{AllSent: &wire.AllSent{}}}); err != nil {
		return err
	}
	return o.follow(client, stream, link, reader, sendBatch)
}

func (o *Operators) follow(
	client *transport.Client, stream operatorLink, link *hub.Link, reader *operatorReader, sendBatch func([]byte) error,
) error {
	for {
		select {
		case <-link.Woken:
			batches, refusal := link.Take()
			if refusal != nil {
				return refusal
			}
			for _, batch := range batches {
				if err := sendBatch(batch); err != nil {
					return err
				}
			}
		case number := <-reader.pongs:
			pong := &wire.ToOperator{Message: &wire.ToOperator_Pong{Pong: &wire.Pong{Number: number}}}
			if err := o.send(client, stream, pong); err != nil {
				return err
			}
		case err := <-reader.ended:
			return err
		case <-o.Draining.Now(""):
			return shuttingDown()
		}
	}
}

func (o *Operators) send(client *transport.Client, stream operatorLink, message *wire.ToOperator) error {
	return send(client, func() error { return stream.Send(message) })
}

// operatorReader reads one operator's stream.
type operatorReader struct {
	hub       *hub.Hub
	link      *hub.Link
	stream    operatorLink
	pongs     chan uint64 // the newest ping's number
	ended     chan error
	announced map[string]bool // uids, with those spared, until all are announced; then nil
}

func (r *operatorReader) read() error {
	for {
		message, err := r.stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r.link.Heard(time.Now())
		if !r.hub.Leads(r.link) {
			continue // the stream is about to end
		}
		if refusal := r.take(message); refusal != nil {
			return refusal
		}
	}
}

func (r *operatorReader) take(message *wire.FromOperator) *job.Refusal {
	switch {
	case message.GetAnnounce() != nil:
		if r.announced != nil {
			r.announced[message.GetAnnounce().GetJobUid()] = true
		}
		r.hub.Announce(message.GetAnnounce(), time.Now())
	case message.GetAllAnnounced() != nil:
		if r.announced != nil {
			for _, uid := range message.GetAllAnnounced().GetSparedJobUids() {
				r.announced[uid] = true
			}
			r.hub.Inform(r.announced)
			r.announced = nil
		}
	case message.GetWithdraw() != nil:
		r.hub.Withdraw(message.GetWithdraw().GetJobUid())
	case message.GetPublish() != nil:
		r.hub.Publish(message.GetPublish())
	case message.GetPing() != nil:
		select {
		case <-r.pongs: // an older one that was not answered yet
		default:
		}
		r.pongs <- message.GetPing().GetNumber()
	default:
		return job.Refuse(job.Malformed, codes.InvalidArgument, "a message that this release does not know")
	}
	return nil
}
