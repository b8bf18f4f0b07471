package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"falcon.dev/gateway/internal/wire"
)

const (
	streamID   = 1
	readWindow = 1 << 30 // what the gateway may send without being waited for: far more than it does
	frameBytes = 16 << 10
	readBuffer = 1 << 10 // of a connection; there are many
	prefix     = 5       // of a gRPC message: compressed or not (1 byte), length (4)
)

// stream is one call of AgentLink.Agent, and the connection that it has for itself.
//
// gRPC's own client keeps several goroutines and timers for a connection, for everything that a connection may be used
// for. Twelve thousand of them take a core, which the gateway under measurement lacks then. A stream writes the same
// bytes, and has one goroutine that reads and one that writes.
type stream struct {
	connection net.Conn
	reading    *http2.Framer
	received   bytes.Buffer // the beginning of a message

	mu       sync.Mutex
	writable *sync.Cond // the window has grown, or the stream has ended
	buffered *bufio.Writer
	writing  *http2.Framer
	window   window
	err      error
}

// window is what may be sent before the gateway makes room.
type window struct{ stream, connection int64 }

// open connects and begins the call.
func open(ctx context.Context, endpoint string, security *tls.Config) (*stream, error) {
	dialer := tls.Dialer{Config: security}
	connection, err := dialer.DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return nil, err
	}
	s := &stream{connection: connection, buffered: bufio.NewWriterSize(connection, readBuffer)}
	s.writable = sync.NewCond(&s.mu)
	s.window = window{stream: 65_535, connection: 65_535} // until the gateway says more (RFC 9113, 6.9.2)
	s.writing = http2.NewFramer(s.buffered, nil)
	s.reading = http2.NewFramer(nil, bufio.NewReaderSize(connection, readBuffer))
	s.reading.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := s.begin(endpoint); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stream) begin(endpoint string) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", "https"}, {":path", wire.AgentLink_Agent_FullMethodName},
		{":authority", endpoint}, {"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		if err := encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}); err != nil {
			return err
		}
	}
	return s.write(func() error {
		_, err := s.buffered.WriteString(http2.ClientPreface)
		return errors.Join(err,
			s.writing.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: readWindow}),
			s.writing.WriteWindowUpdate(0, readWindow),
			s.writing.WriteHeaders(http2.HeadersFrameParam{
				StreamID: streamID, BlockFragment: block.Bytes(), EndHeaders: true,
			}))
	})
}

// write lets frames leave together.
func (s *stream) write(frames func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := frames(); err != nil {
		return err
	}
	return s.buffered.Flush()
}

func (s *stream) close() { s.fail(net.ErrClosed) }

// fail ends the stream, and the writer that may wait for room.
func (s *stream) fail(err error) {
	_ = s.connection.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.writable.Broadcast()
}

// Send sends a message; it waits while the gateway has no room.
func (s *stream) Send(message *wire.FromAgent) error {
	encoded, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, prefix), message)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(encoded[1:], uint32(len(encoded)-prefix))
	for len(encoded) > 0 {
		if encoded, err = s.sendSome(encoded); err != nil {
			return err
		}
	}
	return nil
}

// sendSome sends as much as may leave in one frame, and returns the rest.
func (s *stream) sendSome(encoded []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.err == nil && min(s.window.stream, s.window.connection) <= 0 {
		s.writable.Wait()
	}
	if s.err != nil {
		return nil, s.err
	}
	size := min(int64(len(encoded)), frameBytes, s.window.stream, s.window.connection)
	s.window.stream -= size
	s.window.connection -= size
	if err := s.writing.WriteData(streamID, false, encoded[:size]); err != nil {
		return nil, err
	}
	return encoded[size:], s.buffered.Flush()
}

// Recv returns the gateway's next message, or why the stream has ended.
func (s *stream) Recv() (*wire.ToAgent, error) {
	for {
		if message, err := s.next(); message != nil || err != nil {
			return message, err
		}
		frame, err := s.reading.ReadFrame()
		if err == nil {
			err = s.take(frame)
		}
		if err != nil {
			s.fail(err)
			return nil, err
		}
	}
}

// next returns the message that has been received, nil if it is not complete.
func (s *stream) next() (*wire.ToAgent, error) {
	held := s.received.Bytes()
	if len(held) < prefix {
		return nil, nil
	}
	size := prefix + int(binary.BigEndian.Uint32(held[1:]))
	if len(held) < size {
		return nil, nil
	}
	message := &wire.ToAgent{}
	err := proto.Unmarshal(s.received.Next(size)[prefix:], message)
	return message, err
}

func (s *stream) take(frame http2.Frame) error {
	switch frame := frame.(type) {
	case *http2.DataFrame:
		s.received.Write(frame.Data())
	case *http2.MetaHeadersFrame:
		if frame.StreamEnded() {
			return ended(frame)
		}
	case *http2.RSTStreamFrame:
		return fmt.Errorf("the gateway reset the stream: %v", frame.ErrCode)
	case *http2.SettingsFrame:
		if frame.IsAck() {
			return nil
		}
		if size, given := frame.Value(http2.SettingInitialWindowSize); given {
			s.grow(window{stream: int64(size) - 65_535})
		}
		return s.write(s.writing.WriteSettingsAck)
	case *http2.PingFrame:
		if !frame.IsAck() {
			return s.write(func() error { return s.writing.WritePing(true, frame.Data) })
		}
	case *http2.WindowUpdateFrame:
		if frame.StreamID == 0 {
			s.grow(window{connection: int64(frame.Increment)})
		} else {
			s.grow(window{stream: int64(frame.Increment)})
		}
	}
	return nil
}

func (s *stream) grow(by window) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.window.stream += by.stream
	s.window.connection += by.connection
	s.writable.Broadcast()
}

// ended returns the call's end as the gateway gives it.
func ended(trailer *http2.MetaHeadersFrame) error {
	var status, message string
	for _, field := range trailer.Fields {
		switch field.Name {
		case "grpc-status":
			status = field.Value
		case "grpc-message":
			message = field.Value
		}
	}
	return fmt.Errorf("the gateway ended the stream: status %s: %s", status, message)
}
