package pages

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

const (
	patience = 60 * time.Second
	health   = "GET /healthz HTTP/1.1\r\nHost: gateway\r\n\r\n"
	scrape   = "GET /metrics HTTP/1.1\r\nHost: gateway\r\n\r\n"
)

// served is a server with a large page of metrics.
type served struct {
	t        *testing.T
	listener *Listener
	refused  atomic.Int64 // for opening too fast
	address  string
}

func serve(t *testing.T) *served {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	large := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "large", Help: "A page of 8 MiB."}, []string{"job"})
	for job := range 80 {
		large.WithLabelValues(fmt.Sprint(job, strings.Repeat("x", 100<<10))).Set(1)
	}
	registry.MustRegister(large)
	handler := http.NewServeMux()
	handler.Handle("GET /metrics", NewMetrics(registry))
	handler.HandleFunc("GET /healthz", func(answer http.ResponseWriter, _ *http.Request) { _, _ = answer.Write([]byte("alive\n")) })
	s := &served{t: t, address: inner.Addr().String()}
	s.listener = NewListener(inner, func(reason string) {
		if reason == TooFast {
			s.refused.Add(1)
		}
	})
	server := Server(handler)
	go func() { _ = server.Serve(s.listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return s
}

// open connects from an address of this host and sends the beginning of a request. It returns nil where the server has
// refused the connection before the client knew of it.
func (s *served) open(from, sent string) net.Conn {
	s.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	opened, err := dialer.Dial("tcp", s.address)
	if err != nil {
		return nil
	}
	s.t.Cleanup(func() { _ = opened.Close() })
	_ = opened.SetDeadline(time.Now().Add(patience))
	_, _ = opened.Write([]byte(sent)) // a connection that was refused has been reset
	return opened
}

// answer returns what the server sends until it closes.
func (s *served) answer(from, sent string) string {
	s.t.Helper()
	opened := s.open(from, sent)
	if opened == nil {
		return ""
	}
	page, _ := io.ReadAll(opened)
	return string(page)
}

func (s *served) held() (all, most int) {
	s.listener.mu.Lock()
	defer s.listener.mu.Unlock()
	for _, connections := range s.listener.sources {
		most = max(most, len(connections))
	}
	return s.listener.open, most
}

func TestManySourcesHoldABoundedNumberAndHealthIsAnswered(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{"silent": "", "slow readers": scrape, "slow senders": "GET /metr"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			for source := range 16 {
				for range mostOfAnAddress + 4 {
					s.open(fmt.Sprintf("127.0.1.%d", source+1), sent)
				}
			}
			if answer := s.answer("127.0.0.2", health); !strings.HasSuffix(answer, "alive\n") {
				t.Errorf("the probe got %q", answer)
			}
			if all, most := s.held(); all > mostConnections || most > mostOfAnAddress {
				t.Errorf("%d connections are held, %d of one source", all, most)
			}
		})
	}
}

func TestAClientIsServedBesideSlowOnesOfItsOwnAddress(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for range mostOfAnAddress * 2 {
		s.open("127.0.0.1", scrape)
	}
	if answer := s.answer("127.0.0.1", health); !strings.HasSuffix(answer, "alive\n") {
		t.Errorf("the probe got %q", answer)
	}
}

func TestASourceThatOpensTooFastIsRefusedAlone(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for s.refused.Load() == 0 {
		s.open("127.0.0.3", "")
	}
	if answer := s.answer("127.0.0.2", health); !strings.HasSuffix(answer, "alive\n") {
		t.Errorf("another source got %q", answer)
	}
}

func TestConnectionsEndWhateverTheClientDoes(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]string{"silent": "", "slow sender": "GET /metr", "slow reader": scrape, "many requests": strings.Repeat(health, 1000)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			s.open("127.0.0.2", sent)
			for ends := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
				if held, _ := s.held(); held == 0 {
					return
				}
				if time.Now().After(ends) {
					t.Fatal("the connection is still open")
				}
			}
		})
	}
}

func TestALargePageArrivesWhole(t *testing.T) {
	t.Parallel()
	s := serve(t)
	answer := s.answer("127.0.0.2", scrape)
	if _, page, found := strings.Cut(answer, "\r\n\r\n"); !found || strings.Count(page, "\n") != 82 {
		t.Errorf("the page has %d bytes", len(answer))
	}
}

type counting struct{ gathered int }

func (c *counting) Gather() ([]*dto.MetricFamily, error) {
	c.gathered++
	return nil, nil
}

func TestAPageIsMadeOnceASecond(t *testing.T) {
	registry := &counting{}
	page, start := NewMetrics(registry), time.Unix(1_000, 0)
	for _, passed := range []time.Duration{0, time.Millisecond, 999 * time.Millisecond} {
		if _, err := page.current(start.Add(passed)); err != nil {
			t.Fatal(err)
		}
	}
	if registry.gathered != 1 {
		t.Errorf("the page was made %d times within a second", registry.gathered)
	}
	if _, err := page.current(start.Add(keptFor)); err != nil || registry.gathered != 2 {
		t.Error("the page of the second before is served")
	}
}
