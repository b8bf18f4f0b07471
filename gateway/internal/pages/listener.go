// Package pages serves health and metrics to clients that show no certificate. Whatever they do, they hold a bounded
// number of connections, each for a bounded time.
package pages

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"falcon.dev/gateway/internal/budget"
)

// The reasons for which a connection is closed.
const (
	Replaced = "replaced" // a newer one took its place
	TooFast  = "too_fast" // its source opens too many a second
)

const (
	mostConnections   = 128
	mostOfAnAddress   = 16
	openedPerSecond   = 20 // of one source address
	openedAtOnce      = 40
	sendBuffer        = 64 << 10 // of the kernel, which would take up to 4 MiB for each slow reader
	addressUnreadable = "0.0.0.0"
)

// Listener accepts at most so many connections, in all and of one source address. A newer connection takes the place of
// an older one: an honest request is answered within milliseconds, and so is over before its place is taken.
type Listener struct {
	net.Listener
	refused func(reason string)
	mu      sync.Mutex
	opened  *budget.Addresses
	open    int
	sources map[netip.Addr][]*connection // each the oldest first
}

// NewListener bounds the connections of a listener. It calls `refused` for each connection that it closes, with the reason.
func NewListener(inner net.Listener, refused func(reason string)) *Listener {
	return &Listener{
		Listener: inner,
		refused:  refused,
		opened:   budget.NewAddresses(openedPerSecond, openedAtOnce),
		sources:  map[netip.Addr][]*connection{},
	}
}

// Accept returns the next connection that the limits admit.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if accepted := l.admit(raw, time.Now()); accepted != nil {
			return accepted, nil
		}
		_ = drop(raw)
	}
}

// admit counts a connection in, and closes the one whose place it takes. It returns nil where the connection's source
// opens connections too fast.
func (l *Listener) admit(raw net.Conn, now time.Time) *connection {
	accepted := &connection{Conn: raw, listener: l, source: sourceOf(raw)}
	replaced, admitted := l.enter(accepted, now)
	if replaced != nil {
		l.refused(Replaced)
		_ = drop(replaced.Conn)
	}
	if !admitted {
		l.refused(TooFast)
		return nil
	}
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(sendBuffer)
	}
	return accepted
}

func (l *Listener) enter(accepted *connection, now time.Time) (replaced *connection, admitted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.opened.Take(accepted.source, now) {
		return nil, false
	}
	switch {
	case len(l.sources[accepted.source]) >= mostOfAnAddress:
		replaced = l.sources[accepted.source][0]
	case l.open >= mostConnections:
		replaced = l.sources[l.largest()][0]
	}
	if replaced != nil {
		l.remove(replaced)
	}
	l.sources[accepted.source] = append(l.sources[accepted.source], accepted)
	l.open++
	return replaced, true
}

// largest returns the source with the most connections, so that a source with one keeps it while another has two.
func (l *Listener) largest() (largest netip.Addr) {
	for source, connections := range l.sources {
		if len(connections) > len(l.sources[largest]) {
			largest = source
		}
	}
	return largest
}

// remove counts a connection out, once.
func (l *Listener) remove(gone *connection) {
	connections := l.sources[gone.source]
	for i, known := range connections {
		if known != gone {
			continue
		}
		l.sources[gone.source] = append(connections[:i:i], connections[i+1:]...)
		if len(connections) == 1 {
			delete(l.sources, gone.source)
		}
		l.open--
		return
	}
}

func sourceOf(raw net.Conn) netip.Addr {
	if tcp, ok := raw.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.MustParseAddr(addressUnreadable)
}

// connection leaves its place when it is closed.
type connection struct {
	net.Conn
	listener *Listener
	source   netip.Addr
	unread   atomic.Bool // the client has not taken what was sent
}

// Write sends a part of an answer.
func (c *connection) Write(part []byte) (int, error) {
	written, err := c.Conn.Write(part)
	if err != nil {
		c.unread.Store(true)
	}
	return written, err
}

// Close closes the connection and leaves its place.
func (c *connection) Close() error {
	c.listener.mu.Lock()
	c.listener.remove(c)
	c.listener.mu.Unlock()
	if c.unread.Load() {
		return drop(c.Conn)
	}
	return c.Conn.Close()
}

// drop closes a connection and discards what its client has not read: the kernel would hold it for minutes.
func drop(raw net.Conn) error {
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	return raw.Close()
}
