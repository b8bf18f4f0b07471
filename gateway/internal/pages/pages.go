package pages

import (
	"bytes"
	"crypto/tls"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

const (
	readWithin    = 5 * time.Second  // the request, however slowly it is sent
	writeWithin   = 10 * time.Second // the answer, however slowly it is read
	keptFor       = time.Second
	largestHeader = 8 << 10
	largestBody   = 1 << 10
)

// Server returns a server for pages. A connection carries one request: nobody can queue more than one answer.
func Server(handler http.Handler) *http.Server {
	server := &http.Server{
		Handler:        http.MaxBytesHandler(handler, largestBody),
		ReadTimeout:    readWithin,
		WriteTimeout:   writeWithin,
		IdleTimeout:    readWithin,
		MaxHeaderBytes: largestHeader,
	}
	server.SetKeepAlivesEnabled(false)
	return server
}

// OverTLS lets a server answer by TLS: HTTP/1.1, since a connection of HTTP/2 carries many requests.
func OverTLS(server *http.Server, config *tls.Config) *http.Server {
	server.TLSConfig = config
	server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	return server
}

// Moved answers that a page is served by TLS at another port.
func Moved(path, address string) http.Handler {
	_, port, _ := net.SplitHostPort(address)
	return http.HandlerFunc(func(answer http.ResponseWriter, _ *http.Request) {
		answer.Header().Set("Upgrade", "TLS/1.2, HTTP/1.1")
		text := path + " is served by HTTPS at port " + port + ", to clients with a bearer token"
		http.Error(answer, text, http.StatusUpgradeRequired)
	})
}

// Metrics serves the text of a registry. It is made at most once a second, and all who read it share its memory.
type Metrics struct {
	gatherer prometheus.Gatherer
	mu       sync.Mutex
	text     []byte
	madeAt   time.Time
}

// NewMetrics returns a page of a registry.
func NewMetrics(gatherer prometheus.Gatherer) *Metrics {
	return &Metrics{gatherer: gatherer}
}

// ServeHTTP answers a scrape.
func (m *Metrics) ServeHTTP(answer http.ResponseWriter, _ *http.Request) {
	text, err := m.current(time.Now())
	if err != nil {
		http.Error(answer, "the metrics cannot be gathered: "+err.Error(), http.StatusInternalServerError)
		return
	}
	answer.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	answer.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = answer.Write(text)
}

func (m *Metrics) current(now time.Time) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.madeAt) < keptFor {
		return m.text, nil
	}
	families, err := m.gatherer.Gather()
	if err != nil {
		return nil, err
	}
	var page bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&page, family); err != nil {
			return nil, err
		}
	}
	m.text, m.madeAt = page.Bytes(), now
	return m.text, nil
}
