package job

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reason is why a stream or a report is refused; the label of a metric.
type Reason string

// The reasons. gateway.proto says which codes are final.
const (
	UnknownJob   Reason = "unknown_job"
	UnknownPod   Reason = "unknown_pod"
	WrongJob     Reason = "wrong_job"
	OldSession   Reason = "old_session"
	Displaced    Reason = "displaced"
	TooLarge     Reason = "too_large"
	Malformed    Reason = "malformed"
	Protocol     Reason = "protocol"
	NoHello      Reason = "no_hello"
	Idle         Reason = "idle"
	SlowReader   Reason = "slow_reader"
	Connections  Reason = "connections"
	Handshakes   Reason = "handshakes"
	Certificate  Reason = "certificate"
	Streams      Reason = "streams"
	OldEpoch     Reason = "old_epoch"
	ShuttingDown Reason = "shutting_down"
)

// Refusal ends a stream.
type Refusal struct {
	Reason Reason
	code   codes.Code
	text   string
}

// Refuse returns a refusal with a message for the person who reads the client's log.
func Refuse(reason Reason, code codes.Code, format string, arguments ...any) *Refusal {
	return &Refusal{Reason: reason, code: code, text: fmt.Sprintf(format, arguments...)}
}

// Error returns the message.
func (r *Refusal) Error() string { return r.text }

// GRPCStatus makes gRPC end the stream with the refusal's code and message.
func (r *Refusal) GRPCStatus() *status.Status { return status.New(r.code, r.text) }
