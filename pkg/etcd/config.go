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
	// defaultQuotaBytes is the size at which etcd turns read-only. It is what
	// etcd recommends as the most for normal operation; a database this large
	// still opens in seconds.
	defaultQuotaBytes = 8 << 30

	// A member that is alone cannot lose an election, so both may be short: a start
	// waits for the election, 1 to 5 ticks. Nor may they be too short: ticks are most
	// of what wakes an idle process. etcd wants a factor of five between them.
	tickInterval    = 50 * time.Millisecond
	electionTimeout = 5 * tickInterval

	// The entries since the latest snapshot are what a start reads and applies again, and
	// entries are kept in memory, with their bytes, for followers that come late, of which
	// a single member has none. It keeps more than there are since a snapshot all the same: while
	// it elects itself, raft reads those that it has not been told are applied yet, and
	// panics if one of them is gone.
	snapshotEntries = 1000
	catchUpEntries  = 1500

	// defragThreshold is how much of the file must be free, in MiB, for a start to
	// give it back: a file that has grown does not shrink otherwise.
	defragThreshold = 512

	memberName = "shardplane"

	// peerURL is an address of record only: a single member has no peer, and
	// nothing listens there.
	peerURL = "http://127.0.0.1:2380"

	// clusterToken is etcd's default, of which it makes the cluster's ID.
	clusterToken = "etcd-cluster"
)

// Config says how to run the embedded etcd server.
type Config struct {
	// DataDir is the directory that the server keeps its data in. It is created
	// when missing, and used by one process at a time.
	DataDir string
	// UnsafeNoFsync lets writes be acknowledged before they are on disk. A
	// crash of the machine then loses data: for tests only.
	UnsafeNoFsync bool
	// QuotaBytes is the size of the database at which it stops accepting
	// writes; 0 means 8 GiB.
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
