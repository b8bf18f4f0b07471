package transport

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"falcon.dev/gateway/internal/budget"
	"falcon.dev/gateway/internal/job"
)

// handshakeBurstSeconds is how many seconds' worth of handshakes a source address may begin at once.
const handshakeBurstSeconds = 5

// Limits bound connections before their first message.
type Limits struct {
	// Connections in all.
	Connections int
	// Handshakes that have not ended. They count apart from Connections, and a newer one takes the place of an older one.
	Handshakes int
	// HandshakesPerSecond of one source address.
	HandshakesPerSecond int
	// ConnectionsOf returns how many connections the certificates of this common name may have.
	ConnectionsOf func(commonName string) int
	// Refused is called for each connection that is refused. The name is empty where it is not known.
	Refused func(reason job.Reason, commonName string)
	// Opened is called with +1 and -1.
	Opened func(change int)
}

// Guard is gRPC's TLS with limits. It closes a connection that is beyond them before it costs a handshake, where the
// limit allows that.
type Guard struct {
	credentials.TransportCredentials
	listening *Listening
	limits    Limits

	mu        sync.Mutex
	open      int
	byName    map[string]int
	addresses *budget.Addresses
	begun     *handshakes
}

// NewGuard wraps the credentials of a listener.
func NewGuard(listening *Listening, limits Limits) *Guard {
	rate := float64(limits.HandshakesPerSecond)
	return &Guard{
		TransportCredentials: credentials.NewTLS(listening.trust.files.get()), // what gRPC asks for besides handshakes
		listening:            listening,
		limits:               limits,
		byName:               map[string]int{},
		addresses:            budget.NewAddresses(rate, handshakeBurstSeconds*rate),
		begun:                newHandshakes(limits.Handshakes),
	}
}

// Client is the other end of a connection: who it is by its certificate, and the means to get rid of it.
type Client struct {
	credentials.TLSInfo
	CommonName string
	streams    *budget.Bucket
	mu         sync.Mutex
	connection net.Conn
}

// ClientOf returns the client of a stream.
func ClientOf(ctx context.Context) (*Client, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, false
	}
	client, ok := p.AuthInfo.(*Client)
	return client, ok
}

// MayBegin says whether the client may begin a stream now.
func (c *Client) MayBegin(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams.Take(1, now)
}

// Close ends the connection at once. It is for clients that do not read.
func (c *Client) Close() { _ = c.connection.Close() }

// ServerHandshake is called by gRPC for each new connection, in a goroutine of its own and with a deadline set.
func (g *Guard) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if reason := g.enter(raw, time.Now()); reason != "" {
		g.limits.Refused(reason, "")
		_ = raw.Close()
		return nil, nil, errors.New("refused: " + string(reason))
	}
	connection, tlsInfo, err := g.listening.handshake(raw)
	if err != nil {
		g.fail(raw)
		g.limits.Refused(job.Certificate, "")
		return nil, nil, err
	}
	name := tlsInfo.State.PeerCertificates[0].Subject.CommonName
	if !g.admit(raw, name) {
		g.limits.Refused(job.Connections, name)
		_ = connection.Close()
		return nil, nil, errors.New("refused: too many connections of " + name)
	}
	guarded := &guardedConn{Conn: connection, closed: func() { g.leave(name) }}
	client := &Client{
		TLSInfo:    tlsInfo,
		CommonName: name,
		streams:    budget.NewBucket(budget.StreamsPerSecond, budget.StreamsBurst, time.Now()),
		connection: guarded,
	}
	return guarded, client, nil
}

// Renew closes the connections whose trust has ended, until `stop` is closed. `to` names the clients in the log.
func (g *Guard) Renew(to string, stop <-chan struct{}, log *slog.Logger) {
	g.listening.trust.run(to, stop, log)
}

// Clone is part of gRPC's interface; a guard is shared, so that it counts all connections.
func (g *Guard) Clone() credentials.TransportCredentials { return g }

// enter gives a connection's handshake a place, unless it is beyond a limit; then it returns why.
func (g *Guard) enter(raw net.Conn, now time.Time) job.Reason {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open >= g.limits.Connections {
		return job.Connections
	}
	if source := sourceOf(raw); source.IsValid() && !g.addresses.Take(source, now) {
		return job.Handshakes
	}
	if replaced := g.begun.begin(raw); replaced != nil {
		_ = replaced.Close()
	}
	return ""
}

// fail frees the place of a handshake that came to nothing.
func (g *Guard) fail(raw net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.begun.end(raw)
}

// admit counts the client in whose handshake has ended, unless it is beyond a limit.
func (g *Guard) admit(raw net.Conn, name string) bool {
	most := g.limits.ConnectionsOf(name)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.begun.end(raw)
	if g.byName[name] >= most || g.open >= g.limits.Connections {
		return false
	}
	g.byName[name]++
	g.count(1)
	return true
}

func (g *Guard) count(change int) {
	g.open += change
	g.limits.Opened(change)
}

func (g *Guard) leave(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count(-1)
	if g.byName[name]--; g.byName[name] == 0 {
		delete(g.byName, name)
	}
}

// guardedConn says when it is closed.
type guardedConn struct {
	net.Conn
	once   sync.Once
	closed func()
}

// Close closes the connection.
func (c *guardedConn) Close() error {
	c.once.Do(c.closed)
	return c.Conn.Close()
}
