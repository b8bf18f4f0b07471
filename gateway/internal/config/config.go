// Package config reads the environment. All mistakes are found at once, each with the variable's name and the remedy.
package config

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ExitCode is sysexits.h EX_CONFIG.
const ExitCode = 78

const (
	defaultAgents      = ":7443"
	defaultOperator    = ":7444"
	defaultPages       = ":8080"
	defaultMetrics     = ":8444"
	defaultConnections = 20_000
	defaultHandshakes  = 20
)

// Config is where the gateway listens and whom it trusts.
type Config struct {
	ID             string // of this gateway; no other has it
	PodIP          string // where the operator reaches it
	AgentsListen   string
	OperatorListen string
	PagesListen    string // health and metrics, plain HTTP
	MetricsReader  string // the ClusterRole whose subjects alone may read metrics; empty: every client may
	MetricsListen  string // metrics by TLS, for these
	APIServer      string // https://host:port: it is asked about the tokens of clients
	ServiceAccount string // folder of the token, and of the API server's ca.crt
	TLSDir         string // tls.crt and tls.key of both listeners
	TLSSecret      string // name of the Secret that holds them; the metrics of certificates have it
	JobsAuthority  string // signs the agents' certificates
	EtcdEndpoints  []string
	EtcdTLSDir     string // ca.crt, tls.crt and tls.key towards etcd; ca.crt signs the operator's certificate, too
	EtcdTLSSecret  string // name of the Secret that holds them

	Connections         int
	HandshakesPerSecond int // a source address
	LogLevel            slog.Level
}

// Problems are the mistakes of an environment, a line each.
type Problems []string

// Error returns the lines.
func (p Problems) Error() string { return strings.Join(p, "\n") }

// Load reads the environment with `get`, which returns "" for a variable that is not set. The error is Problems.
func Load(get func(string) string) (*Config, error) {
	r := &reader{get: get}
	config := &Config{
		ID:                  r.name("FALCON_GATEWAY_ID", "write the pod's name; it has no slash"),
		PodIP:               r.ip("FALCON_POD_IP"),
		AgentsListen:        r.address("FALCON_AGENTS_LISTEN", defaultAgents),
		OperatorListen:      r.address("FALCON_OPERATOR_LISTEN", defaultOperator),
		PagesListen:         r.address("FALCON_PAGES_LISTEN", defaultPages),
		TLSDir:              r.folder("FALCON_TLS_DIR", "tls.crt", "tls.key"),
		TLSSecret:           r.orElse("FALCON_TLS_SECRET", "gateway-tls"),
		JobsAuthority:       r.file("FALCON_JOBS_AUTHORITY"),
		EtcdEndpoints:       r.endpoints("FALCON_ETCD_ENDPOINTS"),
		EtcdTLSDir:          r.folder("FALCON_ETCD_TLS_DIR", "ca.crt", "tls.crt", "tls.key"),
		EtcdTLSSecret:       r.orElse("FALCON_ETCD_TLS_SECRET", "etcd-root"),
		Connections:         r.number("FALCON_MAX_CONNECTIONS", defaultConnections),
		HandshakesPerSecond: r.number("FALCON_HANDSHAKES_PER_SECOND", defaultHandshakes),
		LogLevel:            r.level("FALCON_LOG_LEVEL"),
	}
	if config.MetricsReader = r.value("FALCON_METRICS_READER"); config.MetricsReader != "" {
		config.MetricsListen = r.address("FALCON_METRICS_LISTEN", defaultMetrics)
		config.APIServer = r.apiServer()
		config.ServiceAccount = r.folder("FALCON_SERVICE_ACCOUNT_DIR", "ca.crt", "token")
	}
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return config, nil
}

// OperatorAddress is where the operator reaches the gateway, host:port; the host of an IPv6 address has brackets.
func (c *Config) OperatorAddress() string {
	_, port, _ := net.SplitHostPort(c.OperatorListen) // Load has checked it
	return net.JoinHostPort(c.PodIP, port)
}

type reader struct {
	get      func(string) string
	problems Problems
}

func (r *reader) value(variable string) string { return strings.TrimSpace(r.get(variable)) }

func (r *reader) orElse(variable, otherwise string) string {
	if value := r.value(variable); value != "" {
		return value
	}
	return otherwise
}

func (r *reader) wrong(variable, value, remedy string) {
	if value == "" {
		r.problems = append(r.problems, fmt.Sprintf("%s is not set: %s", variable, remedy))
		return
	}
	r.problems = append(r.problems, fmt.Sprintf("%s=%q: %s", variable, value, remedy))
}

func (r *reader) name(variable, remedy string) string {
	value := r.value(variable)
	if value == "" || strings.Contains(value, "/") {
		r.wrong(variable, value, remedy)
	}
	return value
}

func (r *reader) ip(variable string) string {
	value := r.value(variable)
	if _, err := netip.ParseAddr(value); err != nil {
		r.wrong(variable, value, "write the pod's address, IPv6 without brackets")
	}
	return value
}

func (r *reader) address(variable, otherwise string) string {
	value := r.orElse(variable, otherwise)
	if _, port, err := net.SplitHostPort(value); err != nil || !isPort(port) {
		r.wrong(variable, value, "write host:port")
	}
	return value
}

func isPort(text string) bool {
	port, err := strconv.ParseUint(text, 10, 16)
	return err == nil && port > 0
}

// apiServer returns the URL of the API server that Kubernetes names to each pod.
func (r *reader) apiServer() string {
	host, port := r.value("KUBERNETES_SERVICE_HOST"), r.value("KUBERNETES_SERVICE_PORT")
	if host == "" || !isPort(port) {
		r.wrong("KUBERNETES_SERVICE_HOST", host, "run in a pod, or leave FALCON_METRICS_READER empty")
	}
	return "https://" + net.JoinHostPort(host, port)
}

func (r *reader) endpoints(variable string) []string {
	value := r.value(variable)
	var endpoints []string
	for _, part := range strings.Split(value, ",") {
		endpoint := strings.TrimSpace(part)
		if _, port, err := net.SplitHostPort(endpoint); err != nil || !isPort(port) {
			r.wrong(variable, value, "write host:port, several separated by commas")
			return nil
		}
		endpoints = append(endpoints, endpoint)
	}
	return endpoints
}

func (r *reader) file(variable string) string {
	value := r.value(variable)
	if value == "" {
		r.wrong(variable, value, "write the path of a PEM file")
	} else if _, err := os.Stat(value); err != nil {
		r.wrong(variable, value, "the file does not exist: is its Secret mounted there?")
	}
	return value
}

func (r *reader) folder(variable string, files ...string) string {
	value := r.value(variable)
	if value == "" {
		r.wrong(variable, value, "write the folder of "+strings.Join(files, ", "))
		return value
	}
	for _, file := range files {
		if _, err := os.Stat(filepath.Join(value, file)); err != nil {
			r.wrong(variable, value, file+" does not exist there: is the Secret mounted?")
		}
	}
	return value
}

func (r *reader) number(variable string, otherwise int) int {
	value := r.value(variable)
	if value == "" {
		return otherwise
	}
	number, err := strconv.Atoi(value)
	if err != nil || number < 1 {
		r.wrong(variable, value, "write a whole number from 1")
	}
	return number
}

func (r *reader) level(variable string) slog.Level {
	value := r.value(variable)
	levels := map[string]slog.Level{
		"": slog.LevelInfo, "debug": slog.LevelDebug, "info": slog.LevelInfo, "warning": slog.LevelWarn, "error": slog.LevelError,
	}
	level, known := levels[value]
	if !known {
		r.wrong(variable, value, "write one of debug, info, warning, error")
	}
	return level
}
