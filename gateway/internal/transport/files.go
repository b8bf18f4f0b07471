// Package transport makes connections: TLS with certificates that are replaced while the process runs, and the limits
// that hold before a client has said anything.
package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// A renewed certificate is taken up within this time.
const checkEvery = 5 * time.Second

// Listening is the TLS of a listener. Its connections end when the trust ends that they rest on.
type Listening struct{ trust *trust }

// Server returns the TLS of a listener: its certificate from `folder` (tls.crt, tls.key), its clients' by the authorities
// in the file `authority`. The files are read again after they changed.
func Server(folder, authority string) (*Listening, error) {
	load := func() (*tls.Config, error) {
		certificate, err := pair(folder)
		if err != nil {
			return nil, err
		}
		clients, err := pool(authority)
		if err != nil {
			return nil, err
		}
		return &tls.Config{
			MinVersion:             tls.VersionTLS13,
			Certificates:           []tls.Certificate{*certificate},
			ClientAuth:             tls.RequireAndVerifyClientCert,
			ClientCAs:              clients,
			SessionTicketsDisabled: true, // each connection shows its certificate
		}, nil
	}
	files, err := newCached(load, authority, filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
	if err != nil {
		return nil, err
	}
	return &Listening{newTrust(files, func(config *tls.Config) *x509.CertPool { return config.ClientCAs })}, nil
}

// Expires returns when the certificate expires that the listener shows to new connections.
func (l *Listening) Expires() time.Time { return expiry(l.trust.files.get()) }

// ForAll returns the TLS of a listener whose clients show no certificate: its own from `folder` (tls.crt, tls.key). The
// files are read again after they changed.
func ForAll(folder string) (*tls.Config, error) {
	load := func() (*tls.Certificate, error) { return pair(folder) }
	files, err := newCached(load, filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12, // what scrapers offer
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return files.get(), nil },
	}, nil
}

// handshake is the server's side of a new connection.
func (l *Listening) handshake(raw net.Conn) (net.Conn, credentials.TLSInfo, error) {
	used := l.trust.files.get()
	connection, info, err := credentials.NewTLS(used).ServerHandshake(raw)
	if err != nil {
		return nil, credentials.TLSInfo{}, err
	}
	shown, _ := info.(credentials.TLSInfo)
	return l.trust.watched(connection, used, shown.State.PeerCertificates), shown, nil
}

// EtcdCredentials are what the gateway shows to etcd, as it stands in files when a connection begins. Connections end
// when the trust ends that they rest on; the client makes them again.
type EtcdCredentials struct {
	credentials.TransportCredentials
	trust *trust
}

// ToEtcd returns the credentials towards etcd, from ca.crt, tls.crt and tls.key in `folder`. The files are read again
// after they changed.
func ToEtcd(folder string) (*EtcdCredentials, error) {
	authority := filepath.Join(folder, "ca.crt")
	load := func() (*tls.Config, error) {
		certificate, err := pair(folder)
		if err != nil {
			return nil, err
		}
		servers, err := pool(authority)
		if err != nil {
			return nil, err
		}
		return &tls.Config{
			MinVersion:   tls.VersionTLS12, // what the etcd releases in use offer
			RootCAs:      servers,
			Certificates: []tls.Certificate{*certificate},
		}, nil
	}
	files, err := newCached(load, authority, filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
	if err != nil {
		return nil, err
	}
	etcd := newTrust(files, func(config *tls.Config) *x509.CertPool { return config.RootCAs })
	return &EtcdCredentials{credentials.NewTLS(files.get()), etcd}, nil
}

// ClientHandshake is called by gRPC for each new connection.
func (e *EtcdCredentials) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	used := e.trust.files.get()
	connection, info, err := credentials.NewTLS(used).ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	shown, _ := info.(credentials.TLSInfo)
	return e.trust.watched(connection, used, shown.State.PeerCertificates), info, nil
}

// Clone is part of gRPC's interface; what is read from files can be shared.
func (e *EtcdCredentials) Clone() credentials.TransportCredentials { return e }

// Expires returns when the certificate expires that new connections show to etcd.
func (e *EtcdCredentials) Expires() time.Time { return expiry(e.trust.files.get()) }

// Renew closes the connections whose trust has ended, until `stop` is closed.
func (e *EtcdCredentials) Renew(stop <-chan struct{}, log *slog.Logger) {
	e.trust.run("etcd", stop, log)
}

func expiry(config *tls.Config) time.Time { return config.Certificates[0].Leaf.NotAfter }

func pair(folder string) (*tls.Certificate, error) {
	certificate, err := tls.LoadX509KeyPair(filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
	if err != nil {
		return nil, err
	}
	return &certificate, nil
}

func pool(file string) (*x509.CertPool, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("%s holds no certificate", file)
	}
	return authorities, nil
}

// cached is what was made from files, made again when they have changed. While they cannot be read, for example because
// they are being replaced, the old value stays.
type cached[T any] struct {
	load  func() (*T, error)
	files []string

	mu      sync.Mutex
	value   *T
	stamp   string
	checked time.Time
}

func newCached[T any](load func() (*T, error), files ...string) (*cached[T], error) {
	c := &cached[T]{load: load, files: files, stamp: stamp(files), checked: time.Now()}
	value, err := load()
	c.value = value
	return c, err
}

func (c *cached[T]) get() *T {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.checked) >= checkEvery {
		c.checked = now
		if present := stamp(c.files); present != c.stamp {
			if value, err := c.load(); err == nil {
				c.value, c.stamp = value, present
			}
		}
	}
	return c.value
}

func stamp(files []string) string {
	var all string
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			all += fmt.Sprintf("%d %d;", info.ModTime().UnixNano(), info.Size())
		}
	}
	return all
}
