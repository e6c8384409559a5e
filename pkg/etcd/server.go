// Package etcd provides the etcd client of a server, either for an embedded etcd server in the same process or
// for an external etcd cluster.
//
// The embedded server does not listen on any port. Its client calls the RPC handlers directly, which avoids
// encoding and two socket hops for each request, and leaves no port to protect.
//
//	Start:  lock data directory → check it → etcd → in-process client → Ready
//	Stop:   close client → reject calls and wait for pending ones → etcd → unlock
//
// Before other requests, Claim checks that the data belongs to the server. Snapshot and Restore are its backup;
// package snapshot provides them for the command line.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/apiserver/pkg/storage/etcd3"
)

const (
	// defaultQuotaBytes is the maximum that etcd recommends; a database of this size still opens in seconds.
	//
	//reference:limit shard --etcd-quota-backend-bytes | database of the embedded etcd | 507
	defaultQuotaBytes = 8 << 30

	// A start waits 1 to 5 ticks for the election, which a single member cannot lose. But ticks are the main reason
	// for wake-ups of an idle process. etcd requires a factor of five between both values.
	tickInterval    = 50 * time.Millisecond
	electionTimeout = 5 * tickInterval

	// A start applies the entries since the latest snapshot. More entries than that must be kept in memory,
	// although there are no followers. During its election, raft reads entries that were not reported as applied,
	// and panics if one is missing.
	snapshotEntries = 1000
	catchUpEntries  = 1500

	// defragThreshold is the free space in MiB at which a start defragments the file, which otherwise never shrinks.
	defragThreshold = 512

	memberName = "shardplane"

	// peerURL is required by etcd but not used: a single member has no peers, and nothing listens there.
	peerURL     = "http://" + peerAddress
	peerAddress = "127.0.0.1:2380"

	// clusterToken is etcd's default, from which it derives the cluster ID.
	clusterToken = "etcd-cluster"
)

// Config configures the embedded etcd server.
type Config struct {
	// DataDir is the data directory. It is created if missing, and can be used by one process at a time.
	DataDir string
	// UnsafeNoFsync acknowledges writes before they are on disk, so a crash of the machine loses data.
	UnsafeNoFsync bool
	// QuotaBytes is the database size at which etcd rejects writes; 0 means 8 GiB.
	QuotaBytes int64
}

// embedConfig returns the configuration of a single member without listeners.
func (c Config) embedConfig(ctx context.Context) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = memberName
	cfg.Dir = filepath.Clean(c.DataDir)
	cfg.ListenPeerUrls, cfg.ListenClientUrls = nil, nil
	cfg.AdvertisePeerUrls, cfg.AdvertiseClientUrls = []url.URL{{Scheme: "http", Host: peerAddress}}, nil
	cfg.InitialCluster = memberName + "=" + peerURL
	cfg.InitialClusterToken = clusterToken
	cfg.TickMs = uint(tickInterval.Milliseconds())
	cfg.ElectionMs = uint(electionTimeout.Milliseconds())
	cfg.UnsafeNoFsync = c.UnsafeNoFsync
	cfg.SnapshotCount = snapshotEntries
	cfg.SnapshotCatchUpEntries = catchUpEntries
	cfg.BootstrapDefragThresholdMegabytes = defragThreshold
	cfg.QuotaBackendBytes = cmp.Or(c.QuotaBytes, defaultQuotaBytes)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newLogger(ctx))
	return cfg
}

// Server is an embedded etcd server.
type Server struct {
	dir    *dataDir
	etcd   *embed.Etcd
	client *kubernetes.Client
	calls  *callCounter

	stopOnce sync.Once
}

// Start starts an embedded etcd server and returns when it is ready. ctx limits the start only; Stop ends it.
func Start(ctx context.Context, cfg Config) (s *Server, err error) {
	s = &Server{calls: &callCounter{}}
	defer func() {
		if err != nil {
			s.Stop()
			s = nil
		}
	}()
	if s.dir, err = openDataDir(cfg.DataDir); err != nil {
		return s, err
	}
	if s.etcd, err = startEtcd(cfg.embedConfig(ctx)); err != nil {
		return s, err
	}
	select {
	case <-s.etcd.Server.ReadyNotify():
	case err := <-s.etcd.Err():
		return s, fmt.Errorf("the embedded etcd failed to start: %w", err)
	case <-s.etcd.Server.StopNotify():
		return s, errors.New("the embedded etcd stopped during its start: see its log with -v=5")
	case <-ctx.Done():
		return s, fmt.Errorf("the embedded etcd did not become ready: %w", context.Cause(ctx))
	}
	if err := s.dir.ready(); err != nil {
		return s, err
	}
	s.client = wrapClient(newInProcessClient(context.WithoutCancel(ctx), s.etcd.Server, s.calls))
	err = s.writable(ctx)
	return s, err
}

// writable disarms the alarm that was raised when etcd was full, because etcd never does this itself, and no other
// client can reach an embedded etcd. If there is still no space, the next write raises it again.
func (s *Server) writable(ctx context.Context) error {
	raised, err := s.client.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("listing the alarms of the embedded etcd: %w", err)
	}
	for _, alarm := range raised.Alarms {
		if alarm.Alarm != etcdserverpb.AlarmType_NOSPACE {
			continue
		}
		if _, err := s.client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(alarm)); err != nil {
			return fmt.Errorf("disarming the alarm of the embedded etcd, which was full: %w", err)
		}
	}
	return nil
}

// startEtcd starts etcd, and returns an error if etcd panics or would end the process.
func startEtcd(cfg *embed.Config) (e *embed.Etcd, err error) {
	defer func() {
		if r := recover(); r != nil {
			e, err = nil, corrupt(cfg.Dir, fmt.Errorf("etcd cannot read it: %v", r))
		}
	}()
	e, err = embed.StartEtcd(cfg)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("cannot write to the data directory %s: choose a writable --data-dir: %w", cfg.Dir, err)
	case err != nil:
		// It opens no port and reads only the directory.
		return nil, corrupt(cfg.Dir, err)
	}
	return e, nil
}

// Client returns the client of the server, which all resources share.
func (s *Server) Client() *kubernetes.Client { return s.client }

// Done is closed when the server has stopped, by Stop or after an error.
func (s *Server) Done() <-chan struct{} { return s.etcd.Server.StopNotify() }

// Stop closes the client, stops the server and unlocks the data directory. Pending calls complete. It may be repeated.
func (s *Server) Stop() {
	s.stopOnce.Do(func() {
		if s.client != nil {
			// The error comes from the context that Close cancels.
			_ = s.client.Close()
		}
		s.calls.Lock() // forever
		if s.etcd != nil {
			s.etcd.Close()
		}
		if s.dir != nil {
			s.dir.close()
		}
	})
}

// wrapClient returns a client for the storage layer. It tracks the latency of etcd for audit events and traces.
func wrapClient(c *clientv3.Client) *kubernetes.Client {
	c.KV = etcd3.NewETCDLatencyTracker(c.KV)
	wrapped := &kubernetes.Client{Client: c}
	wrapped.Kubernetes = wrapped
	return wrapped
}
