// Package replicationmarks has the kind by which shards tell each other, on the cache server, up
// to which of their versions everything that they replicate is there.
package replicationmarks

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
	// Kind is the kind of ReplicationMarks.
	Kind = "ReplicationMark"
	// Cluster is the logical cluster that the mark of each shard is in. It is on no shard.
	Cluster logicalcluster.Name = "system:marks"
	// Name is the name of the mark of each shard.
	Name = "shard"
)

// Marks are the ReplicationMarks of a shard, or of all of them, on the cache server.
var Marks = cachekinds.Define[ReplicationMark](Kind, "replicationmarks")

// ReplicationMark says how much of a shard's objects the cache server has. The shard writes it when
// its writes of replicas were acknowledged: who has seen it finds them there.
type ReplicationMark struct {
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
func (m *ReplicationMark) Said() replicas.Mark {
	versions := make(map[string]string, len(m.Resources))
	for resource, extent := range m.Resources {
		if _, err := resourceversion.CompareResourceVersion(extent.ResourceVersion, extent.ResourceVersion); err == nil {
			versions[resource] = extent.ResourceVersion
		}
	}
	return replicas.Mark{Epoch: m.Epoch, Versions: versions, Partial: len(m.Via) > 0}
}

// Read reads the marks of all shards on a cache server. It is a replicas.ReadMarks.
func Read(ctx context.Context, cache *client.Factory) (map[string]replicas.Mark, error) {
	list, err := Marks.In(cache.Shard(request.Wildcard).Cluster(Cluster.Path())).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // a cache server of kcp
	}
	if err != nil {
		return nil, err
	}
	marks := make(map[string]replicas.Mark, len(list.Items))
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

// ReplicationMarkList is a list of ReplicationMarks.
type ReplicationMarkList = cachekinds.List[ReplicationMark, *ReplicationMark]

// DeepCopyObject implements runtime.Object.
func (m *ReplicationMark) DeepCopyObject() runtime.Object {
	c := *m
	m.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	c.Resources = maps.Clone(m.Resources)
	c.Via = slices.Clone(m.Via)
	return &c
}
