// Package replicationcheckpoints defines the kind of objects that a shard writes to the cache server to
// publish the resourceVersion up to which it has replicated its objects.
package replicationcheckpoints

import (
	"context"
	"maps"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy/cachekinds"
)

const (
	// Kind is the kind of ReplicationCheckpoints.
	Kind = "ReplicationCheckpoint"
	// Cluster is the logical cluster of all checkpoints. It does not exist on any shard.
	Cluster logicalcluster.Name = "system:checkpoints"
	// Name is the name of each shard's checkpoint.
	Name = "shard"
)

// Checkpoints is the resource of ReplicationCheckpoints, on the cache server.
var Checkpoints = cachekinds.Define[ReplicationCheckpoint](Kind, "replicationcheckpoints")

// ReplicationCheckpoint specifies how much of a shard's objects the cache server has. The shard writes it after these
// replicas were acknowledged, so that a reader of the checkpoint finds them.
type ReplicationCheckpoint struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// Epoch is random. It changes when the shard's data was restored from an older backup. Versions of different
	// epochs cannot be compared.
	Epoch string `json:"epoch"`
	// Number increases with each checkpoint, even if nothing else changes.
	Number int64 `json:"number"`
	// Resources contains the replicated data by resource and group. Nothing is known about other resources.
	Resources map[string]Extent `json:"resources,omitempty"`
	// Via lists the cache servers through which the replicas were relayed, beginning with the one that the shard
	// writes to. It is empty on the cache server that the shard writes to. Objects that stay in their region are
	// not relayed.
	Via []string `json:"via,omitempty"`
}

// Comparable returns the checkpoint for readers of replicas, without versions that cannot be compared.
func (m *ReplicationCheckpoint) Comparable() replicas.Checkpoint {
	versions := make(map[string]string, len(m.Resources))
	for resource, extent := range m.Resources {
		if _, err := resourceversion.CompareResourceVersion(extent.ResourceVersion, extent.ResourceVersion); err == nil {
			versions[resource] = extent.ResourceVersion
		}
	}
	return replicas.Checkpoint{Epoch: m.Epoch, Versions: versions, Partial: len(m.Via) > 0}
}

// Read reads the checkpoints of all shards on a cache server. It is a replicas.ReadCheckpoints.
func Read(ctx context.Context, cache *client.Factory) (map[string]replicas.Checkpoint, error) {
	list, err := Checkpoints.In(cache.Shard(request.Wildcard).Cluster(Cluster.Path())).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // kcp's cache server
	}
	if err != nil {
		return nil, err
	}
	checkpoints := make(map[string]replicas.Checkpoint, len(list.Items))
	for i := range list.Items {
		if checkpoint := &list.Items[i]; checkpoint.Name == Name {
			checkpoints[checkpoint.Annotations[request.ShardAnnotation]] = checkpoint.Comparable()
		}
	}
	return checkpoints, nil
}

// Extent describes the replicas of a resource.
type Extent struct {
	// ResourceVersion is the shard's version up to which all replicated objects are on the cache server.
	ResourceVersion string `json:"resourceVersion"`
	// Count is the number of replicas at the checkpoint, and Digest a digest of their content.
	Count  int64  `json:"count"`
	Digest string `json:"digest,omitempty"`
}

// ReplicationCheckpointList is a list of ReplicationCheckpoints.
type ReplicationCheckpointList = cachekinds.List[ReplicationCheckpoint, *ReplicationCheckpoint]

// DeepCopyObject implements runtime.Object.
func (m *ReplicationCheckpoint) DeepCopyObject() runtime.Object {
	c := *m
	m.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Resources = maps.Clone(m.Resources)
	c.Via = slices.Clone(m.Via)
	return &c
}
