// Package store keeps batches in etcd, and learns from there which jobs and commands there are.
//
// What the operator writes and what gateways write lie under different prefixes, so that a gateway that watches the
// first does not get every report of every gateway.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	"falcon.dev/gateway/internal/job"
	"falcon.dev/gateway/internal/wire"
)

const (
	desiredPrefix  = "/falcon/v1/"         // <namespace>/<job>/<uid>/announce and …/commands/<name>
	reportsPrefix  = "/falcon/reports/v1/" // <gateway>/<namespace>/<job>/<uid>/hot and …/s<chunk>
	gatewaysPrefix = "/falcon/gateways/"   // <gateway>: its addresses and incarnation, under its lease

	leaseSeconds = 3
	renewEvery   = time.Second
	callTimeout  = 2 * time.Second
	retryAfter   = 500 * time.Millisecond
	// etcd takes 1.5 MiB a transaction; a snapshot that is larger is written in several.
	maxTransaction = 1 << 20
)

// Sink takes what the operator has written.
type Sink interface {
	Announce(announce *wire.Announce, now time.Time)
	Publish(publish *wire.Publish)
	Withdraw(jobUID string)
	Inform(complete map[string]bool)
	Owe()
}

// Etcd is a session with etcd, which is opened again whenever it ends.
type Etcd struct {
	client  *clientv3.Client
	gateway string
	value   string
	log     *slog.Logger

	mu      sync.Mutex
	lease   clientv3.LeaseID
	renewed time.Time
}

// Open returns a store that has not connected yet. `gateway` is this process's id and `value` what its key under
// /falcon/gateways/ holds.
func Open(endpoints []string, security credentials.TransportCredentials, gateway, value string, log *slog.Logger) (*Etcd, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            endpoints,
		DialTimeout:          callTimeout,
		DialKeepAliveTime:    6 * time.Second, // etcd refuses clients that ping each 5 s
		DialKeepAliveTimeout: 3 * time.Second,
		Logger:               zap.NewNop(), // the store tells of failures itself
		DialOptions: []grpc.DialOption{
			grpc.WithTransportCredentials(security), // in the place of the client's own, which would read the files once
			grpc.WithNoProxy(),                      // etcd is near; a proxy that a policy names to all pods is for the world outside
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 6 * time.Second, Timeout: 3 * time.Second}),
		},
	})
	if err != nil {
		return nil, err
	}
	return &Etcd{client: client, gateway: gateway, value: value, log: log}, nil
}

// Live says whether the lease was renewed within its life.
func (e *Etcd) Live(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lease != 0 && now.Sub(e.renewed) < leaseSeconds*time.Second
}

// Run holds sessions until the context ends.
func (e *Etcd) Run(ctx context.Context, sink Sink) {
	cleaned := false
	for ctx.Err() == nil {
		err := e.session(ctx, sink, &cleaned)
		if ctx.Err() == nil {
			e.log.Warn("the session with etcd ended; beginning another", "error", fmt.Sprint(err))
			pause(ctx, retryAfter)
		}
	}
}

// Close gives the lease back, so that the gateway's key vanishes at once.
func (e *Etcd) Close(ctx context.Context) {
	e.mu.Lock()
	lease := e.lease
	e.lease = 0
	e.mu.Unlock()
	if lease != 0 {
		_, _ = e.client.Revoke(ctx, lease) // it ends by itself, too
	}
	_ = e.client.Close()
}

// session registers the gateway, reads what the operator has written and follows it, until the lease or the watch is
// lost. A process's first session removes what an earlier process of the same id has left.
func (e *Etcd) session(ctx context.Context, sink Sink, cleaned *bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !*cleaned {
		if err := e.call(ctx, func(ctx context.Context) error {
			_, err := e.client.Delete(ctx, reportsPrefix+e.gateway+"/", clientv3.WithPrefix())
			return err
		}); err != nil {
			return err
		}
		*cleaned = true
	}
	if err := e.register(ctx); err != nil {
		return err
	}
	revision, err := e.list(ctx, sink)
	if err != nil {
		return err
	}
	sink.Inform(nil)
	sink.Owe()
	e.log.Info("session with etcd begun", "revision", revision)
	watching := make(chan error, 1)
	go func() { watching <- e.watch(ctx, revision+1, sink) }()
	return e.hold(ctx, watching)
}

func (e *Etcd) register(ctx context.Context) error {
	return e.call(ctx, func(ctx context.Context) error {
		begun := time.Now()
		granted, err := e.client.Grant(ctx, leaseSeconds)
		if err != nil {
			return err
		}
		if _, err = e.client.Put(ctx, gatewaysPrefix+e.gateway, e.value, clientv3.WithLease(granted.ID)); err != nil {
			return err
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.lease, e.renewed = granted.ID, begun
		return nil
	})
}

// hold renews the lease until it is gone or the watch has ended.
func (e *Etcd) hold(ctx context.Context, watching <-chan error) error {
	ticker := time.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-watching:
			return err
		case <-ticker.C:
		}
		err := e.renew(ctx)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			e.mu.Lock()
			e.lease = 0
			e.mu.Unlock()
			return err
		}
	}
}

// renew counts a renewal from before it was asked for: etcd's own clock for the lease starts no earlier.
func (e *Etcd) renew(ctx context.Context) error {
	e.mu.Lock()
	lease := e.lease
	e.mu.Unlock()
	return e.call(ctx, func(ctx context.Context) error {
		begun := time.Now()
		if _, err := e.client.KeepAliveOnce(ctx, lease); err != nil {
			return err
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.renewed = begun
		return nil
	})
}

func (e *Etcd) list(ctx context.Context, sink Sink) (int64, error) {
	var revision int64
	key, end := desiredPrefix, clientv3.GetPrefixRangeEnd(desiredPrefix)
	var commands []*mvccpb.KeyValue
	for {
		var page *clientv3.GetResponse
		err := e.call(ctx, func(ctx context.Context) (err error) {
			page, err = e.client.Get(ctx, key, clientv3.WithRange(end), clientv3.WithLimit(200), clientv3.WithRev(revision))
			return err
		})
		if err != nil {
			return 0, err
		}
		if revision == 0 { // every page is read as of the first one
			revision = page.Header.Revision
		}
		for _, kv := range page.Kvs {
			if parse(string(kv.Key)).command != "" {
				commands = append(commands, kv) // after all announcements
				continue
			}
			e.put(kv, sink)
		}
		if !page.More {
			break
		}
		key = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
	for _, kv := range commands {
		e.put(kv, sink)
	}
	return revision, nil
}

// watch follows the operator's keys. It ends when etcd has compacted what it missed; the next session lists again.
func (e *Etcd) watch(ctx context.Context, revision int64, sink Sink) error {
	events := e.client.Watch(clientv3.WithRequireLeader(ctx), desiredPrefix, clientv3.WithPrefix(), clientv3.WithRev(revision))
	for response := range events {
		if err := response.Err(); err != nil {
			return err
		}
		for _, event := range response.Events {
			if event.Type == mvccpb.PUT {
				e.put(event.Kv, sink)
			} else if name := parse(string(event.Kv.Key)); name.announce {
				sink.Withdraw(name.uid)
			}
		}
	}
	return errors.New("the watch ended")
}

func (e *Etcd) put(kv *mvccpb.KeyValue, sink Sink) {
	name := parse(string(kv.Key))
	switch {
	case name.announce:
		var announce wire.Announce
		if err := proto.Unmarshal(kv.Value, &announce); err != nil || !name.is(&announce) {
			e.log.Warn("an announcement that does not fit its key is ignored", "key", string(kv.Key))
			return
		}
		sink.Announce(&announce, time.Now())
	case name.command != "":
		var publish wire.Publish
		if err := proto.Unmarshal(kv.Value, &publish); err != nil || publish.GetJobUid() != name.uid ||
			publish.GetName() != name.command {
			e.log.Warn("a command that does not fit its key is ignored", "key", string(kv.Key))
			return
		}
		sink.Publish(&publish)
	}
}

// Write writes a snapshot or the hot batch. A snapshot that fits into one transaction replaces all in one instant; a
// larger one is written chunk by chunk, and the hot batch goes last: whatever a reader finds in between, the newest
// entry of each pod is among it.
func (e *Etcd) Write(ctx context.Context, output *job.Output) error {
	folder := e.folder(output.Key)
	if !output.Snapshot {
		_, err := e.client.Put(ctx, folder+"hot", string(output.Batches[0]))
		return err
	}
	var pending []clientv3.Op
	size := 0
	for i, batch := range output.Batches {
		if size += len(batch); size > maxTransaction && len(pending) > 0 {
			if err := e.commit(ctx, pending); err != nil {
				return err
			}
			pending, size = nil, len(batch)
		}
		pending = append(pending, clientv3.OpPut(chunk(folder, i), string(batch)))
	}
	// hot < s0000 < t: what no longer belongs to the snapshot
	pending = append(pending, clientv3.OpDelete(folder+"hot"),
		clientv3.OpDelete(chunk(folder, len(output.Batches)), clientv3.WithRange(folder+"t")))
	return e.commit(ctx, pending)
}

func (e *Etcd) commit(ctx context.Context, operations []clientv3.Op) error {
	_, err := e.client.Txn(ctx).Then(operations...).Commit()
	return err
}

// Remove deletes what this gateway wrote of a job.
func (e *Etcd) Remove(ctx context.Context, key job.Key) error {
	_, err := e.client.Delete(ctx, e.folder(key), clientv3.WithPrefix())
	return err
}

func (e *Etcd) folder(key job.Key) string {
	return reportsPrefix + e.gateway + "/" + key.Namespace + "/" + key.Name + "/" + key.UID + "/"
}

func chunk(folder string, index int) string { return fmt.Sprintf("%ss%04d", folder, index) }

func (e *Etcd) call(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx)
}

// desired is a parsed key of the operator's.
type desired struct {
	namespace, job, uid string
	announce            bool
	command             string
}

func parse(key string) desired {
	parts := strings.Split(strings.TrimPrefix(key, desiredPrefix), "/")
	switch {
	case len(parts) == 4 && parts[3] == "announce":
		return desired{namespace: parts[0], job: parts[1], uid: parts[2], announce: true}
	case len(parts) == 5 && parts[3] == "commands":
		return desired{namespace: parts[0], job: parts[1], uid: parts[2], command: parts[4]}
	}
	return desired{}
}

func (d desired) is(announce *wire.Announce) bool {
	return d.namespace == announce.GetNamespace() && d.job == announce.GetJob() && d.uid == announce.GetJobUid()
}

func pause(ctx context.Context, duration time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(duration):
	}
}
