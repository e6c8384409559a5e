package shard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/shardplane/shardplane/pkg/client/replicasnapshot"
)

// replicaSnapshot keeps what the shard knows of others in its data directory, so that it
// can start while they, and the cache server, are away. Shards with an external etcd keep
// nothing in files, and those that encrypt what they store nothing that is plain.
func (s *Server) replicaSnapshot() (*replicasnapshot.Snapshot, error) {
	config := replicasnapshot.Config{Server: s.options.Name, MaxAge: s.options.ReplicaSnapshotMaxAge}
	if len(s.options.Etcd.Servers) > 0 {
		return replicasnapshot.New(config), nil
	}
	config.File = filepath.Join(s.options.Etcd.DataDir, "replicas", "snapshot.json")
	if s.options.Encryption.ConfigFile == "" {
		config.Sources = s.informers.Replicas()
	} else if err := os.Remove(config.File); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("deleting what was known of other shards, which is not encrypted: %w", err)
	}
	return replicasnapshot.New(config), nil
}
