package etcd

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

const (
	// defaultQuotaBytes is the database size at which etcd rejects writes. It is the maximum that etcd
	// recommends; a database of this size still opens in seconds.
	//
	//reference:limit shard --etcd-quota-backend-bytes | database of the embedded etcd | 507
	defaultQuotaBytes = 8 << 30

	// A single member cannot lose an election, so both values may be short: a start waits 1 to 5 ticks for
	// the election. But ticks are the main reason for wake-ups of an idle process. etcd requires a factor of
	// five between them.
	tickInterval    = 50 * time.Millisecond
	electionTimeout = 5 * tickInterval

	// A start reads and applies the entries since the latest snapshot. Entries are also kept in memory for slow
	// followers, which a single member does not have. But it must keep more entries than there are since a
	// snapshot: during its election, raft reads entries that were not reported as applied, and panics if
	// one is missing.
	snapshotEntries = 1000
	catchUpEntries  = 1500

	// defragThreshold is the free space in the file, in MiB, at which a start defragments it. Otherwise the
	// file never shrinks.
	defragThreshold = 512

	memberName = "shardplane"

	// peerURL is required by etcd but not used: a single member has no peers, and nothing listens there.
	peerURL = "http://127.0.0.1:2380"

	// clusterToken is etcd's default, from which it derives the cluster ID.
	clusterToken = "etcd-cluster"
)

// Options specify where a server stores its data: in an embedded etcd below DataDir or, if Servers are set, in an
// external etcd cluster.
type Options struct {
	// DataDir is the server's data directory. The data of the embedded etcd is in the subdirectory "etcd".
	DataDir string
	// Servers are the URLs of an external etcd cluster.
	Servers []string
	// Prefix is the prefix of all keys, with one or more segments: /name.
	Prefix string
	// CAFile, CertFile and KeyFile are for TLS with the external cluster.
	CAFile, CertFile, KeyFile string
	// CompactionInterval is how long history is kept; 0 disables compaction. The storage layer compacts, not etcd.
	CompactionInterval time.Duration
	// QuotaBytes is the database size at which the embedded etcd rejects writes.
	QuotaBytes int64
	// UnsafeNoFsync makes the embedded etcd lose acknowledged writes when the machine crashes. It is for tests.
	UnsafeNoFsync bool

	// flagPrefix is the default of the flag for Prefix.
	flagPrefix string
}

// Config configures the embedded etcd server.
type Config struct {
	// DataDir is the data directory. It is created if missing, and can be used by one process at a time.
	DataDir string
	// UnsafeNoFsync acknowledges writes before they are on disk, so a crash of the machine loses data. It is
	// for tests only.
	UnsafeNoFsync bool
	// QuotaBytes is the database size at which etcd rejects writes; 0 means 8 GiB.
	QuotaBytes int64
}

func (c Config) validate() error {
	if c.DataDir == "" {
		return errors.New("no data directory for etcd: set --data-dir")
	}
	if c.QuotaBytes < 0 {
		return fmt.Errorf("the etcd quota must not be negative, got %d bytes", c.QuotaBytes)
	}
	return nil
}

// embedConfig returns the configuration of a single member without listeners.
func (c Config) embedConfig(lg *zap.Logger) (*embed.Config, error) {
	peer, err := url.Parse(peerURL)
	if err != nil {
		return nil, fmt.Errorf("peer URL of the embedded etcd: %w", err)
	}
	cfg := embed.NewConfig()
	cfg.Name = memberName
	cfg.Dir = filepath.Clean(c.DataDir)
	cfg.ListenPeerUrls, cfg.ListenClientUrls = nil, nil
	cfg.AdvertisePeerUrls, cfg.AdvertiseClientUrls = []url.URL{*peer}, nil
	cfg.InitialCluster = memberName + "=" + peerURL
	cfg.InitialClusterToken = clusterToken
	cfg.TickMs = uint(tickInterval.Milliseconds())
	cfg.ElectionMs = uint(electionTimeout.Milliseconds())
	cfg.UnsafeNoFsync = c.UnsafeNoFsync
	cfg.SnapshotCount = snapshotEntries
	cfg.SnapshotCatchUpEntries = catchUpEntries
	cfg.BootstrapDefragThresholdMegabytes = defragThreshold
	cfg.QuotaBackendBytes = c.QuotaBytes
	if cfg.QuotaBackendBytes == 0 {
		cfg.QuotaBackendBytes = defaultQuotaBytes
	}
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(lg)
	return cfg, nil
}
