// Package replicationcheckpoints has the kind by which shards tell each other, on the cache server, up
// to which of their versions everything that they replicate is there.
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
	// Cluster is the logical cluster that the mark of each shard is in. It is on no shard.
	Cluster logicalcluster.Name = "system:checkpoints"
	// Name is the name of the mark of each shard.
	Name = "shard"
)

// Marks are the ReplicationCheckpoints of a shard, or of all of them, on the cache server.
var Checkpoints = cachekinds.Define[ReplicationCheckpoint](Kind, "replicationcheckpoints")

// ReplicationCheckpoint says how much of a shard's objects the cache server has. The shard writes it when
// its writes of replicas were acknowledged: who has seen it finds them there.
type ReplicationCheckpoint struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// Epoch is random. It changes when the shard finds that its data was set back: versions of
	// two epochs cannot be compared.
	Epoch string `json:"epoch"`
	// Number grows by one with each mark, also if nothing else changes.
	Number int64 `json:"number"`
	// Resources says how much is there, by resource and group. Of a resource that is not named
	// nothing is said.
	Resources map[string]Extent `json:"resources,omitempty"`
	// Via are the cache servers by which the replicas came here, the one that the shard pushes to
	// first. It is empty there. What is relayed is all but what stays in its region.
	Via []string `json:"via,omitempty"`
}

// Said returns what a mark says, for those who follow replicas. A version that cannot be compared
// says nothing.
func (m *ReplicationCheckpoint) Said() replicas.Checkpoint {
	versions := make(map[string]string, len(m.Resources))
	for resource, extent := range m.Resources {
		if _, err := resourceversion.CompareResourceVersion(extent.ResourceVersion, extent.ResourceVersion); err == nil {
			versions[resource] = extent.ResourceVersion
		}
	}
	return replicas.Checkpoint{Epoch: m.Epoch, Versions: versions, Partial: len(m.Via) > 0}
}

// Read reads the marks of all shards on a cache server. It is a replicas.ReadMarks.
func Read(ctx context.Context, cache *client.Factory) (map[string]replicas.Checkpoint, error) {
	list, err := Checkpoints.In(cache.Shard(request.Wildcard).Cluster(Cluster.Path())).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // a cache server of kcp
	}
	if err != nil {
		return nil, err
	}
	marks := make(map[string]replicas.Checkpoint, len(list.Items))
	for i := range list.Items {
		if mark := &list.Items[i]; mark.Name == Name {
			marks[mark.Annotations[request.ShardAnnotation]] = mark.Said()
		}
	}
	return marks, nil
}

// Extent is how much of a resource the cache server has.
type Extent struct {
	// ResourceVersion is the version of the shard up to which everything that is replicated is
	// on the cache server.
	ResourceVersion string `json:"resourceVersion"`
	// Count is how many replicas there are as of the mark.
	Count int64 `json:"count"`
	// Digest sums up the content of these.
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
