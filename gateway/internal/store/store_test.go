package store

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"
)

func TestNoProxyOfTheEnvironmentIsUsedTowardsEtcd(t *testing.T) {
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = proxy.Close() }()
	asked := make(chan struct{}, 1)
	go func() {
		if connection, err := proxy.Accept(); err == nil {
			_ = connection.Close()
			asked <- struct{}{}
		}
	}()
	t.Setenv("HTTPS_PROXY", "http://"+proxy.Addr().String())
	t.Setenv("NO_PROXY", "")
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	etcd, err := Open([]string{"192.0.2.1:2379"}, insecure.NewCredentials(), "gateway-0", "{}", log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = etcd.client.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = etcd.client.Get(ctx, "key") // the address is nobody's
	select {
	case <-asked:
		t.Error("the proxy was asked for a way to etcd")
	default:
	}
}
