package transport

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

const life = time.Hour

type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-life), NotAfter: time.Now().Add(24 * life), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	certificate, err := x509.ParseCertificate(der)
	must(t, err)
	return &authority{certificate, key}
}

// sign writes tls.crt and tls.key of a certificate that is valid for `life`.
func (a *authority) sign(t *testing.T, folder string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "leaf"},
		NotBefore: time.Now().Add(-life), NotAfter: time.Now().Add(life),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	write(t, folder, "tls.crt", block("CERTIFICATE", der))
	write(t, folder, "tls.key", block("PRIVATE KEY", private))
}

func trustIn(t *testing.T, folder string, authorities ...*authority) {
	t.Helper()
	var all []byte
	for _, each := range authorities {
		all = append(all, block("CERTIFICATE", each.certificate.Raw)...)
	}
	write(t, folder, "ca.crt", all)
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func write(t *testing.T, folder, file string, content []byte) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(folder, file), content, 0o600))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connected are both ends of one connection between folders with certificates by the same authority.
type connected struct {
	serverFolder, clientFolder string
	server                     *Listening
	client                     *EtcdCredentials
	ofServer, ofClient         net.Conn
}

func connect(t *testing.T, by *authority) *connected {
	t.Helper()
	c := &connected{serverFolder: t.TempDir(), clientFolder: t.TempDir()}
	for _, folder := range []string{c.serverFolder, c.clientFolder} {
		by.sign(t, folder)
		trustIn(t, folder, by)
	}
	var err error
	c.server, err = Server(c.serverFolder, filepath.Join(c.serverFolder, "ca.crt"))
	must(t, err)
	c.client, err = ToEtcd(c.clientFolder)
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = listener.Close() }()
	raw, err := net.Dial("tcp", listener.Addr().String())
	must(t, err)
	accepted, err := listener.Accept()
	must(t, err)
	failed := make(chan error, 1)
	go func() {
		connection, _, err := c.client.ClientHandshake(context.Background(), "localhost:2379", raw)
		c.ofClient = connection
		failed <- err
	}()
	c.ofServer, _, err = c.server.handshake(accepted)
	must(t, err)
	must(t, <-failed)
	return c
}

func look(t *testing.T, trust *trust, now time.Time) int {
	t.Helper()
	present, err := trust.files.load()
	must(t, err)
	return trust.look(present, now)
}

// over says whether a connection has ended, by reading from its other side.
func over(t *testing.T, other net.Conn) bool {
	t.Helper()
	must(t, other.SetReadDeadline(time.Now().Add(time.Second)))
	_, err := other.Read(make([]byte, 1))
	return err == io.EOF
}

func TestAConnectionEndsWhenTheAuthorityOfTheOtherSideLeaves(t *testing.T) {
	former, next := newAuthority(t), newAuthority(t)
	sides := map[string]func(*connected) (string, *trust, net.Conn){
		"server": func(c *connected) (string, *trust, net.Conn) { return c.serverFolder, c.server.trust, c.ofClient },
		"client": func(c *connected) (string, *trust, net.Conn) { return c.clientFolder, c.client.trust, c.ofServer },
	}
	for name, of := range sides {
		t.Run(name, func(t *testing.T) {
			folder, trust, other := of(connect(t, former))
			now := time.Now()
			trustIn(t, folder, next, former)
			if closed := look(t, trust, now); closed != 0 {
				t.Fatal("the former authority is still trusted")
			}
			trustIn(t, folder, next)
			if closed := look(t, trust, now); closed != 1 || !over(t, other) {
				t.Fatalf("%d connections are closed, want the one by the former authority", closed)
			}
			if len(trust.open) != 0 {
				t.Fatal("a closed connection is still held")
			}
		})
	}
}

func TestAConnectionIsRenewedSomeTimeAfterItsOwnCertificate(t *testing.T) {
	by := newAuthority(t)
	c := connect(t, by)
	now := time.Now()
	by.sign(t, c.serverFolder)
	if look(t, c.server.trust, now)+look(t, c.server.trust, now.Add(renewAfter-time.Second)) != 0 {
		t.Fatal("others may not have read the authority of the new certificate yet")
	}
	if closed := look(t, c.server.trust, now.Add(2*renewAfter)); closed != 1 || !over(t, c.ofClient) {
		t.Fatalf("%d connections are closed, want that with the replaced certificate", closed)
	}
}

func TestAConnectionEndsWhenTheCertificateOfTheOtherSideExpires(t *testing.T) {
	c := connect(t, newAuthority(t))
	if look(t, c.server.trust, time.Now().Add(life-time.Minute)) != 0 {
		t.Fatal("the certificate is valid for another minute")
	}
	if closed := look(t, c.server.trust, time.Now().Add(life+time.Minute)); closed != 1 || !over(t, c.ofClient) {
		t.Fatalf("%d connections are closed, want that whose client's certificate has expired", closed)
	}
}
