// Command falcon-gateway stands between the agents and etcd (docs/adr/0044-a-gateway-before-etcd.md).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"falcon.dev/gateway/internal/config"
	"falcon.dev/gateway/internal/hub"
	"falcon.dev/gateway/internal/job"
	"falcon.dev/gateway/internal/metrics"
	"falcon.dev/gateway/internal/server"
	"falcon.dev/gateway/internal/store"
	"falcon.dev/gateway/internal/transport"
)

const (
	drainWithin = 2 * time.Second
	lastWrites  = 3 * time.Second
)

func main() {
	settings, err := config.Load(os.Getenv)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(config.ExitCode)
	}
	log := slog.New(slog.NewJSONHandler(os.Stdout, &slog.HandlerOptions{Level: settings.LogLevel}))
	if err := run(settings, log); err != nil {
		log.Error("the gateway ends", "error", err.Error())
		os.Exit(1)
	}
}

// run serves until SIGTERM or SIGINT, or until a listener fails.
func run(settings *config.Config, log *slog.Logger) error {
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	security, err := transport.ToEtcd(settings.EtcdTLSDir)
	if err != nil {
		return fmt.Errorf("FALCON_ETCD_TLS_DIR: %w", err)
	}
	begun := time.Now()
	gateway := &job.Gateway{ID: settings.ID, Incarnation: uint64(begun.UnixNano())}
	registration, err := json.Marshal(map[string]any{
		"operator": settings.OperatorAddress(), "incarnation": gateway.Incarnation,
	})
	if err != nil {
		return err
	}
	etcd, err := store.Open(settings.EtcdEndpoints, security, settings.ID, string(registration), log)
	if err != nil {
		return fmt.Errorf("FALCON_ETCD_ENDPOINTS: %w", err)
	}
	counters := metrics.New()
	if err := counters.ShowExpiry(settings.EtcdTLSSecret, security.Expires); err != nil {
		return fmt.Errorf("FALCON_ETCD_TLS_SECRET: %w", err)
	}
	center := hub.New(gateway, etcd, counters, log, begun)
	listeners, err := server.Listen(settings, center, log)
	if err != nil {
		return err
	}
	working, end := context.WithCancel(context.Background())
	defer end()
	go security.Renew(working.Done(), log)
	go etcd.Run(working, center)
	hubDone := make(chan struct{})
	go func() { defer close(hubDone); center.Run(working) }()
	failed := listeners.Serve()
	log.Info("serving", "gateway", settings.ID, "agents", settings.AgentsListen, "operator", settings.OperatorListen)
	select {
	case <-stop.Done():
		log.Info("asked to end: agents are sent to other gateways")
	case err = <-failed:
		err = errors.Join(errors.New("a listener failed"), err)
	}
	// Judging ends first: the agents fall silent because this gateway sends them away.
	end()
	<-hubDone
	listeners.Drain(drainWithin)
	ctx, done := context.WithTimeout(context.Background(), lastWrites)
	defer done()
	center.Close(ctx)
	etcd.Close(ctx)
	listeners.Close()
	return err
}
