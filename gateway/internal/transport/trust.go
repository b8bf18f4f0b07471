package transport

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// A connection whose own certificate was replaced is renewed between this time and twice as much later: by then the
// other side has read the authority of the new certificate, and not all connections begin again in one instant.
const renewAfter = 2 * time.Minute

// trust holds the connections that were made with certificates from files. It closes a connection when what it rests on
// ends: the other side's authority has left the files, the other side's certificate has expired, or the own certificate
// was replaced (docs/adr/0184-connections-end-with-the-trust-they-rest-on.md).
type trust struct {
	files *cached[tls.Config]
	// roots returns the authorities by which the other side is checked.
	roots func(*tls.Config) *x509.CertPool

	mu   sync.Mutex
	open map[*trusted]struct{}
}

// trusted is one connection.
type trusted struct {
	net.Conn
	leave func(*trusted)
	once  sync.Once
	own   []byte              // DER of the certificate that was shown
	peer  []*x509.Certificate // what the other side has shown, its own certificate first
	pool  *x509.CertPool      // by which `peer` was last found good

	renewWithin time.Duration
	replaced    time.Time // when `own` was first seen to be replaced; zero while it is not
}

func newTrust(files *cached[tls.Config], roots func(*tls.Config) *x509.CertPool) *trust {
	return &trust{files: files, roots: roots, open: map[*trusted]struct{}{}}
}

// watched returns the connection, which is closed when what it rests on ends. `used` is the configuration of its
// handshake, and `peer` what the other side has shown.
func (t *trust) watched(connection net.Conn, used *tls.Config, peer []*x509.Certificate) net.Conn {
	c := &trusted{
		Conn: connection, leave: t.forget, own: used.Certificates[0].Certificate[0], peer: peer, pool: t.roots(used),
		renewWithin: renewAfter + rand.N(renewAfter),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open[c] = struct{}{}
	return c
}

// run looks at all connections again and again, until `stop` is closed. `to` says in the log whose connections these are.
func (t *trust) run(to string, stop <-chan struct{}, log *slog.Logger) {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-ticker.C:
			if closed := t.look(t.files.get(), now); closed > 0 {
				log.Info("connections closed: a certificate was replaced, has expired, or its authority is trusted no more",
					"to", to, "connections", closed)
			}
		}
	}
}

// look closes the connections whose trust has ended, and returns how many these are.
func (t *trust) look(present *tls.Config, now time.Time) int {
	t.mu.Lock()
	known := map[string]bool{} // many agents show the same certificate
	var over []*trusted
	for c := range t.open {
		if c.isOver(present.Certificates[0].Certificate[0], t.roots(present), known, now) {
			over = append(over, c)
		}
	}
	t.mu.Unlock()
	for _, c := range over {
		go func() { _ = c.Close() }() // it may wait for seconds where the other side reads nothing
	}
	return len(over)
}

func (t *trust) forget(c *trusted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, c)
}

func (c *trusted) isOver(own []byte, roots *x509.CertPool, known map[string]bool, now time.Time) bool {
	if now.After(c.peer[0].NotAfter) {
		return true
	}
	if roots != c.pool {
		if !good(c.peer, roots, known, now) {
			return true
		}
		c.pool = roots
	}
	if bytes.Equal(own, c.own) {
		c.replaced = time.Time{}
		return false
	}
	if c.replaced.IsZero() {
		c.replaced = now
	}
	return now.Sub(c.replaced) >= c.renewWithin
}

// good says whether these authorities have signed what the other side has shown; `known` holds earlier answers.
func good(peer []*x509.Certificate, roots *x509.CertPool, known map[string]bool, now time.Time) bool {
	key := string(peer[0].Raw)
	answer, ok := known[key]
	if !ok {
		between := x509.NewCertPool()
		for _, certificate := range peer[1:] {
			between.AddCert(certificate)
		}
		_, err := peer[0].Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
		})
		answer = err == nil
		known[key] = answer
	}
	return answer
}

// Close closes the connection.
func (c *trusted) Close() error {
	c.once.Do(func() { c.leave(c) })
	return c.Conn.Close()
}
