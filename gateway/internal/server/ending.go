package server

import (
	"hash/fnv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"falcon.dev/gateway/internal/job"
	"falcon.dev/gateway/internal/transport"
)

const drainGroups = 16

// Draining ends streams when the process is asked to end: a group after the other, so that another gateway does not
// get all agents in one instant.
type Draining struct {
	groups [drainGroups]chan struct{}
	once   sync.Once
}

// NewDraining returns one that has not begun.
func NewDraining() *Draining {
	d := &Draining{}
	for i := range d.groups {
		d.groups[i] = make(chan struct{})
	}
	return d
}

// Now returns a channel that is closed when the stream of this pod has to end.
func (d *Draining) Now(pod string) <-chan struct{} {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(pod))
	return d.groups[hash.Sum32()%drainGroups]
}

// Run ends all streams within the given time.
func (d *Draining) Run(within time.Duration) {
	d.once.Do(func() {
		for _, group := range d.groups {
			close(group)
			time.Sleep(within / drainGroups)
		}
	})
}

func shuttingDown() *job.Refusal {
	return job.Refuse(job.ShuttingDown, codes.Unavailable, "this gateway shuts down: connect to another")
}

// send sends a message, and cuts the connection of a client that does not take it in time.
func send(client *transport.Client, message func() error) error {
	return sendWithin(sendTimeout, client, message)
}

func sendWithin(within time.Duration, client *transport.Client, message func() error) error {
	var late atomic.Bool
	timer := time.AfterFunc(within, func() {
		late.Store(true)
		client.Close()
	})
	defer timer.Stop()
	err := message()
	if late.Load() {
		return job.Refuse(job.SlowReader, codes.ResourceExhausted, "nothing was read for %v", within)
	}
	return err
}
