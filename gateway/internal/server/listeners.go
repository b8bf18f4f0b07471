package server

import (
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"falcon.dev/gateway/internal/access"
	"falcon.dev/gateway/internal/budget"
	"falcon.dev/gateway/internal/config"
	"falcon.dev/gateway/internal/hub"
	"falcon.dev/gateway/internal/job"
	"falcon.dev/gateway/internal/metrics"
	"falcon.dev/gateway/internal/pages"
	"falcon.dev/gateway/internal/transport"
	"falcon.dev/gateway/internal/wire"
)

const (
	handshakeTimeout    = 5 * time.Second
	agentHandshakes     = 1500 // where a gateway ends, more agents may begin at once, and they try again
	operatorConnections = 16
	operatorHandshakes  = 64       // any pod may begin one where no plugin enforces policies
	otherConnections    = 4        // of each other name on the operator's port: none takes the operator's place
	window              = 64 << 10 // what a stream's peer may send, or leave unread, without being waited for
	buffer              = 4 << 10  // an agent's messages are small, and there are many agents
	largestHeader       = 8 << 10
	metricsPath         = "/metrics"
	firstPages          = 2 // of the listening ports: from this on, clients show no certificate
)

// Listeners are the ports of the gateway: agents, operator, pages, and metrics where they ask for a token.
type Listeners struct {
	agents, operators *grpc.Server
	pages             *http.Server
	metrics           *http.Server // by TLS, to clients with a token; nil where every client may read the pages' own
	listening         []net.Listener
	draining          *Draining
	ending            atomic.Bool
	guards            map[string]*transport.Guard // by who connects
	log               *slog.Logger
	closed            chan struct{}
}

// Listen opens the ports. Nothing is served yet.
func Listen(settings *config.Config, center *hub.Hub, log *slog.Logger) (*Listeners, error) {
	agents, err := transport.Server(settings.TLSDir, settings.JobsAuthority)
	if err != nil {
		return nil, err
	}
	operators, err := transport.Server(settings.TLSDir, filepath.Join(settings.EtcdTLSDir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	if err := center.Metrics.ShowExpiry(settings.TLSSecret, agents.Expires); err != nil {
		return nil, err
	}
	l := &Listeners{draining: NewDraining(), log: log, closed: make(chan struct{})}
	l.guards = map[string]*transport.Guard{
		"agents":   transport.NewGuard(agents, agentLimits(settings, center, log)),
		"operator": transport.NewGuard(operators, operatorLimits(settings, center)),
	}
	l.agents = grpc.NewServer(append(common(),
		grpc.Creds(l.guards["agents"]),
		grpc.MaxRecvMsgSize(budget.MaxAgentMessage),
		grpc.ReadBufferSize(buffer), grpc.WriteBufferSize(buffer),
		grpc.MaxConcurrentStreams(2), // the old stream may end after the new one has begun
	)...)
	wire.RegisterAgentLinkServer(l.agents, &Agents{Hub: center, Draining: l.draining})
	l.operators = grpc.NewServer(append(common(),
		grpc.Creds(l.guards["operator"]),
		grpc.MaxRecvMsgSize(MaxOperatorMessage),
		grpc.MaxConcurrentStreams(4),
	)...)
	wire.RegisterOperatorLinkServer(l.operators, &Operators{Hub: center, Draining: l.draining})
	wire.RegisterSeriesLinkServer(l.operators, &Subscribers{Hub: center, Draining: l.draining})
	addresses := []string{settings.AgentsListen, settings.OperatorListen, settings.PagesListen}
	shown := http.Handler(pages.NewMetrics(center.Metrics.Registry))
	if settings.MetricsReader != "" {
		if l.metrics, err = metricsByToken(settings, shown, log); err != nil {
			return nil, err
		}
		addresses = append(addresses, settings.MetricsListen)
		shown = pages.Moved(metricsPath, settings.MetricsListen)
	}
	l.pages = pages.Server(l.pagesOf(center, shown))
	for i, address := range addresses {
		listening, err := net.Listen("tcp", address)
		if err != nil {
			return nil, err
		}
		if i >= firstPages {
			listening = pages.NewListener(listening, center.Metrics.RefusePage)
		}
		l.listening = append(l.listening, listening)
	}
	return l, nil
}

// metricsByToken returns a server of metrics for the clients whose tokens the API server knows.
func metricsByToken(settings *config.Config, shown http.Handler, log *slog.Logger) (*http.Server, error) {
	security, err := transport.ForAll(settings.TLSDir)
	if err != nil {
		return nil, err
	}
	asked := &access.APIServer{URL: settings.APIServer, Account: settings.ServiceAccount}
	readers := access.New(asked.Review, settings.MetricsReader, metricsPath, log)
	served := http.NewServeMux()
	served.Handle("GET "+metricsPath, readers.Guard(shown))
	return pages.OverTLS(pages.Server(served), security), nil
}

func common() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		grpc.MaxHeaderListSize(largestHeader),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: 10 * time.Second, // no stream is open
			Time:              10 * time.Second,
			Timeout:           5 * time.Second,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}),
	}
}

func agentLimits(settings *config.Config, center *hub.Hub, log *slog.Logger) transport.Limits {
	return transport.Limits{
		Connections:         settings.Connections,
		Handshakes:          agentHandshakes,
		HandshakesPerSecond: settings.HandshakesPerSecond,
		ConnectionsOf: func(commonName string) int {
			if j := center.Job(commonName); j != nil {
				return j.Limits().Connections
			}
			return budget.For(0, 0).Connections
		},
		Refused: func(reason job.Reason, commonName string) {
			center.Metrics.Refuse(reason, center.Label(commonName))
			log.Debug("connection refused", "reason", string(reason), "certificate", commonName)
		},
		Opened: func(change int) { center.Metrics.Connections.Add(float64(change)) },
	}
}

func operatorLimits(settings *config.Config, center *hub.Hub) transport.Limits {
	return transport.Limits{
		Connections:         operatorConnections + 2*otherConnections,
		Handshakes:          operatorHandshakes,
		HandshakesPerSecond: settings.HandshakesPerSecond,
		ConnectionsOf: func(commonName string) int {
			if commonName == OperatorName {
				return operatorConnections
			}
			return otherConnections
		},
		Refused: func(reason job.Reason, _ string) { center.Metrics.Refuse(reason, metrics.Unknown) },
		Opened:  func(int) {},
	}
}

// Serve serves all ports. The channel gives the first failure.
func (l *Listeners) Serve() <-chan error {
	failed := make(chan error, len(l.listening))
	go func() { failed <- l.agents.Serve(l.listening[0]) }()
	go func() { failed <- l.operators.Serve(l.listening[1]) }()
	go func() { failed <- l.pages.Serve(l.listening[firstPages]) }()
	if l.metrics != nil {
		go func() { failed <- l.metrics.ServeTLS(l.listening[firstPages+1], "", "") }()
	}
	for to, guard := range l.guards {
		go guard.Renew(to, l.closed, l.log)
	}
	return failed
}

// Drain refuses new agents, sends GOAWAY, and ends the streams within the given time.
func (l *Listeners) Drain(within time.Duration) {
	l.ending.Store(true)
	go l.agents.GracefulStop()
	go l.operators.GracefulStop()
	l.draining.Run(within)
}

// Close closes everything. It is called once.
func (l *Listeners) Close() {
	close(l.closed)
	l.agents.Stop()
	l.operators.Stop()
	_ = l.pages.Close()
	if l.metrics != nil {
		_ = l.metrics.Close()
	}
}

// pagesOf returns /healthz, /readyz and /metrics.
func (l *Listeners) pagesOf(center *hub.Hub, shown http.Handler) http.Handler {
	served := http.NewServeMux()
	served.Handle("GET "+metricsPath, shown)
	served.HandleFunc("GET /healthz", func(answer http.ResponseWriter, _ *http.Request) {
		write(answer, center.Ticking(time.Now()), "alive", "the gateway's own clock stands still")
	})
	served.HandleFunc("GET /readyz", func(answer http.ResponseWriter, _ *http.Request) {
		write(answer, center.Informed() && !l.ending.Load(), "ready", "no announcements were read yet, or the gateway ends")
	})
	return served
}

func write(answer http.ResponseWriter, well bool, yes, no string) {
	text := yes
	if !well {
		text = no
		answer.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = answer.Write([]byte(text + "\n"))
}
