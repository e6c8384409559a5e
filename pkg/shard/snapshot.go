package shard

import (
	"context"
	"path/filepath"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/shardplane/shardplane/pkg/replicas/snapshot"
)

// replicaSnapshot saves the replicas of other shards in the data directory or in the external etcd. The shard can then
// start while other shards and the cache server are unreachable.
func (s *installation) replicaSnapshot() *snapshot.Snapshot {
	config := s.snapshots()
	if config.Sources = s.informers.Replicas(); len(config.Sources) > 0 {
		config.Sources = append(config.Sources, s.remoteParams) // the parameters of replicated policies
	}
	if len(s.options.Etcd.Servers) > 0 {
		config.Store = s.etcd.Blob("shardplane-replicas")
	} else {
		config.Store = snapshot.File(filepath.Join(s.snapshotDirectory(), "snapshot.json"))
	}
	return snapshot.NewReplicaSnapshot(config)
}

// cachedSnapshots saves the cached resources of consumers, but only in a data directory: tenants could fill an etcd,
// because its history contains each version for some minutes.
func (s *storedData) cachedSnapshots() *snapshot.Directory {
	if len(s.options.Etcd.Servers) > 0 {
		return nil
	}
	return &snapshot.Directory{Path: filepath.Join(s.snapshotDirectory(), "cached"), Config: s.snapshots()}
}

func (s *storedData) snapshotDirectory() string {
	return filepath.Join(s.options.Etcd.DataDir, "replicas")
}

// snapshots returns the common configuration. Objects are encrypted like those of the same resource in etcd.
func (s *storedData) snapshots() snapshot.Config {
	config := snapshot.Config{Server: s.options.Name, Data: s.dataID, MaxAge: s.options.ReplicaSnapshotMaxAge}
	if s.options.Encryption.ConfigFile == "" {
		return config
	}
	transformer := s.encryption.Transformers().TransformerForResource
	bound := func(resource schema.GroupResource) value.Context {
		return value.DefaultContext("replicas of " + resource.String() + " on " + s.options.Name)
	}
	config.Seal = func(ctx context.Context, resource schema.GroupResource, content []byte) ([]byte, error) {
		return transformer(resource).TransformToStorage(ctx, content, bound(resource))
	}
	config.Open = func(ctx context.Context, resource schema.GroupResource, content []byte) ([]byte, error) {
		plain, _, err := transformer(resource).TransformFromStorage(ctx, content, bound(resource))
		return plain, err
	}
	return config
}
