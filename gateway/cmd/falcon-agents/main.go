// Command falcon-agents plays the agents of many pods towards a gateway, for benchmarks/scale.
//
// Each agent has a connection of its own (TLS 1.3, its job's certificate) and says hello, beats and reports as the
// agent's own client does (core/falcon_gateway/_agent.py). What is reported and when comes on standard input, frame by
// frame; what the gateways send goes to standard output. A file gets a line for each event, with its time.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// The kinds of frames. A frame is a header, little-endian, and a payload:
// kind (1 byte), urgent (1), agent (4), time (8, unix ns), length of the payload (4).
const (
	kindAgent   = 'A' // in: a new agent connects at that time; the payload is a JSON object, `pod`
	kindReport  = 'R' // in: an agent has a new report at that time
	kindEnd     = 'E' // in: an agent is gone at that time, its connection with it
	kindCommand = 'C' // out: an agent got a command at that time; the payload is a JSON object, `arrival`
	kindLost    = 'L' // out: an agent's stream ended; the payload says why
	kindSilent  = 'S' // out: an agent said nothing for about as long as it takes to be lost: this program stood still

	headerBytes = 18
)

type frame struct {
	kind    byte
	urgent  bool
	agent   uint32
	at      time.Time
	payload []byte
}

// pod is who an agent is, and where it finds a gateway and its certificate.
type pod struct {
	Namespace  string `json:"namespace"`
	Job        string `json:"job"`
	PodUID     string `json:"podUid"`
	Endpoint   string `json:"endpoint"`
	ServerName string `json:"serverName"`
	TLS        string `json:"tls"` // a folder with ca.crt, tls.crt, tls.key
}

// arrival is a command that an agent got. The payload is there once for all agents of a job.
type arrival struct {
	Name     string `json:"name"`
	Revision uint64 `json:"revision"`
	Payload  []byte `json:"payload,omitempty"`
}

func main() {
	path := flag.String("log", os.DevNull, "file that gets a line for each event: unix ns, agent, event, number")
	slower := flag.Float64("slower", 1, "how many times as long as it is asked for an agent waits between two beats")
	flag.Parse()
	if err := run(*path, *slower); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run plays until standard input ends.
func run(path string, slower float64) error {
	log, err := os.Create(path)
	if err != nil {
		return err
	}
	out := newOutput(os.Stdout, log)
	defer out.flush()
	go out.flushAlways()
	crowd := &crowd{out: out, slower: slower, agents: map[uint32]*agent{}, securities: map[string]*tls.Config{}, known: map[string]bool{}}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		next, err := readFrame(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := crowd.take(next); err != nil {
			return err
		}
	}
}

func readFrame(in io.Reader) (frame, error) {
	var header [headerBytes]byte
	if _, err := io.ReadFull(in, header[:]); err != nil {
		return frame{}, err
	}
	payload := make([]byte, binary.LittleEndian.Uint32(header[14:]))
	if _, err := io.ReadFull(in, payload); err != nil {
		return frame{}, fmt.Errorf("a frame is cut short: %w", err)
	}
	return frame{
		kind:    header[0],
		urgent:  header[1] != 0,
		agent:   binary.LittleEndian.Uint32(header[2:]),
		at:      time.Unix(0, int64(binary.LittleEndian.Uint64(header[6:]))),
		payload: payload,
	}, nil
}

// crowd is all agents. Frames are taken in one goroutine; commands arrive in many.
type crowd struct {
	out        *output
	slower     float64
	agents     map[uint32]*agent
	securities map[string]*tls.Config
	order      uint64 // of the newest frame

	mu    sync.Mutex
	known map[string]bool // jobs' commands whose payload was passed on
}

// take lets a frame have its effect at its time.
func (c *crowd) take(next frame) error {
	wait := time.Until(next.at)
	if next.kind == kindAgent {
		return c.add(next.agent, next.payload, wait)
	}
	a := c.agents[next.agent]
	if a == nil {
		return fmt.Errorf("there is no agent %d", next.agent)
	}
	switch next.kind {
	case kindReport:
		c.order++
		order := c.order
		time.AfterFunc(wait, func() { a.report(next.payload, next.urgent, order) })
	case kindEnd:
		time.AfterFunc(wait, func() { a.end(); c.out.log(a.number, "end", 0) })
	default:
		return fmt.Errorf("frames of kind %q are not known", next.kind)
	}
	return nil
}

func (c *crowd) add(number uint32, payload []byte, wait time.Duration) error {
	var is pod
	if err := json.Unmarshal(payload, &is); err != nil {
		return fmt.Errorf("agent %d: %w", number, err)
	}
	key := is.TLS + " " + is.ServerName
	if c.securities[key] == nil {
		credentials, err := readSecurity(is.TLS, is.ServerName)
		if err != nil {
			return fmt.Errorf("agent %d: %w", number, err)
		}
		c.securities[key] = credentials
	}
	ctx, end := context.WithCancel(context.Background())
	a := &agent{crowd: c, number: number, pod: is, security: c.securities[key], end: end, news: make(chan struct{}, 1)}
	c.agents[number] = a
	time.AfterFunc(wait, func() { a.run(ctx) })
	return nil
}

// arrived passes a command on to whoever wrote the schedule. The payload leaves before any frame that relies on it.
func (c *crowd) arrived(a *agent, command arrival) {
	key := fmt.Sprintf("%s/%s/%s/%d", a.pod.Namespace, a.pod.Job, command.Name, command.Revision)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[key] {
		command.Payload = nil
	}
	c.known[key] = true
	payload, err := json.Marshal(command)
	if err != nil {
		panic(err) // a struct of numbers and texts
	}
	c.out.log(a.number, command.Name, command.Revision)
	c.out.send(kindCommand, a.number, payload)
}

// output writes frames and the log of events.
type output struct {
	mu     sync.Mutex
	frames *bufio.Writer
	events *bufio.Writer
	urgent chan struct{}
}

func newOutput(frames, events io.Writer) *output {
	return &output{
		frames: bufio.NewWriterSize(frames, 1<<20), events: bufio.NewWriterSize(events, 1<<20), urgent: make(chan struct{}, 1),
	}
}

func (o *output) log(agent uint32, event string, number uint64) {
	now := time.Now().UnixNano()
	o.mu.Lock()
	defer o.mu.Unlock()
	fmt.Fprintf(o.events, "%d,%d,%s,%d\n", now, agent, event, number)
}

func (o *output) send(kind byte, agent uint32, payload []byte) {
	var header [headerBytes]byte
	header[0] = kind
	binary.LittleEndian.PutUint32(header[2:], agent)
	binary.LittleEndian.PutUint64(header[6:], uint64(time.Now().UnixNano()))
	binary.LittleEndian.PutUint32(header[14:], uint32(len(payload)))
	o.mu.Lock()
	_, _ = o.frames.Write(header[:])
	_, _ = o.frames.Write(payload)
	o.mu.Unlock()
	select {
	case o.urgent <- struct{}{}:
	default:
	}
}

// flushAlways passes frames on as soon as they come; those that come together leave together.
func (o *output) flushAlways() {
	for range o.urgent {
		o.flush()
	}
}

func (o *output) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.frames.Flush()
	_ = o.events.Flush()
}
