// Package transport makes connections: TLS with certificates that are replaced while the process runs, and the limits
// that hold before a client has said anything.
package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// A renewed certificate is taken up within this time.
const checkEvery = 5 * time.Second

// Server returns the TLS configuration of a listener: its certificate from `folder` (tls.crt, tls.key), its clients'
// from the authority in the file `authority`. The files are read again after they changed.
func Server(folder, authority string) (*tls.Config, error) {
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
			NextProtos:             []string{"h2"},
			SessionTicketsDisabled: true, // each connection shows its certificate
		}, nil
	}
	cached, err := newCached(load, authority, filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key"))
	if err != nil {
		return nil, err
	}
	config, _ := load()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return cached.get(), nil }
	return config, nil
}

// ToEtcd returns the credentials towards etcd, from ca.crt, tls.crt and tls.key in `folder`. The files are read again
// after they changed, for the connections that begin from then on.
func ToEtcd(folder string) (credentials.TransportCredentials, error) {
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
	return &reloaded{credentials.NewTLS(files.get()), files}, nil
}

// reloaded are a client's credentials as they stand in files when a connection begins.
type reloaded struct {
	credentials.TransportCredentials
	files *cached[tls.Config]
}

// ClientHandshake is called by gRPC for each new connection.
func (r *reloaded) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(r.files.get()).ClientHandshake(ctx, authority, raw)
}

// Clone is part of gRPC's interface; what is read from files can be shared.
func (r *reloaded) Clone() credentials.TransportCredentials { return r }

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
