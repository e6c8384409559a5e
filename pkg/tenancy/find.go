package tenancy

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
)

// PathIndex is the index by path that the informers of NewTypeLookup have.
const PathIndex = "path"

// TypeIndex is the name of the index IndexByType.
const TypeIndex = "type"

// IndexByPath is the function of PathIndex for LogicalClusters.
func IndexByPath(lc *corev1alpha1.LogicalCluster) []string { return []string{PathOf(lc).String()} }

// IndexTypeByPath is the function of PathIndex for WorkspaceTypes: the name of
// its logical cluster, and its path where an annotation tells it, each joined with
// the name of the type.
func IndexTypeByPath(wt *tenancyv1alpha1.WorkspaceType) []string {
	paths := []string{logicalcluster.From(wt).Path().Join(wt.Name).String()}
	if annotated := wt.Annotations[core.LogicalClusterPathAnnotationKey]; annotated != "" {
		paths = append(paths, logicalcluster.NewPath(annotated).Join(wt.Name).String())
	}
	return slices.Compact(paths)
}

// TypeIDs returns the paths by which a WorkspaceType may be asked for, each joined with
// its name, given the logical clusters of the shard.
func TypeIDs(clusters client.Lister[*corev1alpha1.LogicalCluster], wt *tenancyv1alpha1.WorkspaceType) []string {
	ids := IndexTypeByPath(wt)
	if lc, err := clusters.Get(client.Key{Cluster: logicalcluster.From(wt), Name: corev1alpha1.LogicalClusterName}); err == nil {
		ids = append(ids, PathOf(lc).Join(wt.Name).String())
	}
	return ids
}

// IndexByType is an index of LogicalClusters by path and name of their type.
func IndexByType(lc *corev1alpha1.LogicalCluster) []string {
	if id := lc.Annotations[tenancyv1alpha1.LogicalClusterTypeAnnotationKey]; id != "" {
		return []string{id}
	}
	return nil
}

// Standing returns what a shard is by its Shard in root: what is left over of others counts for
// nothing. That a Shard is missing says something only when it is known which there are: when all
// were read, and, from a cache, as of a mark of root's shard. Informers of caches keep Shards until
// they see that they are deleted. The empty name is the root shard's own server, where objects are
// no replicas.
func ShardStateOf(shards *client.Informer[*corev1alpha1.Shard]) func(shard string) replicas.ShardState {
	return func(shard string) replicas.ShardState {
		if shard == "" {
			return replicas.Active
		}
		obj, err := shards.Lister().Cluster(core.RootCluster).Get("", shard)
		switch {
		case err != nil && ShardsSynced(shards) != nil:
			return replicas.Active
		case err != nil:
			return replicas.Removed
		case obj.DeletionTimestamp != nil:
			return replicas.Draining
		default:
			return replicas.Active
		}
	}
}

// ShardsKnown returns nil if it is known which Shards there are in root, and otherwise why it is not.
func ShardsSynced(shards *client.Informer[*corev1alpha1.Shard]) error {
	if !shards.HasSynced() {
		return fmt.Errorf("informer %s has not synced: %w", shards.Name(), shards.LastError())
	}
	lacks := replicas.Lacks(shards, []string{corev1alpha1.RootShard})
	if len(lacks) == 0 {
		return nil
	}
	root, err := shards.Lister().Cluster(core.RootCluster).Get("", corev1alpha1.RootShard)
	if err == nil && !WritesCheckpoints(root) {
		return nil
	}
	return fmt.Errorf("no mark of the root shard was seen since %s", lacks[corev1alpha1.RootShard].UTC().Format(time.RFC3339))
}

// MarksAnnotation is on Shards that leave marks in caches. Shards without a cache do not, and nobody
// waits for theirs.
const CheckpointsAnnotation = "internal.shardplane.io/replication-checkpoints"

// LeavesMarks reports whether a shard leaves marks in caches.
func WritesCheckpoints(shard *corev1alpha1.Shard) bool {
	return shard.Annotations[CheckpointsAnnotation] != ""
}

// NewTypeLookup looks types up, in informers that have PathIndex.
func NewTypeLookup(clusters *client.Informer[*corev1alpha1.LogicalCluster], types *replicas.Dual[*tenancyv1alpha1.WorkspaceType]) TypeLookup {
	return typeCatalogue{clusters: clusters.Lister(), types: types}.lookup
}

// typeCatalogue looks types up in informers.
type typeCatalogue struct {
	clusters client.Lister[*corev1alpha1.LogicalCluster]
	types    *replicas.Dual[*tenancyv1alpha1.WorkspaceType]
}

// lookup is a TypeLookup. While a logical cluster moves, two shards have a type,
// and when a workspace is made again, its path leads to two for a moment: that of
// replicas.Dual counts, everywhere alike.
func (c typeCatalogue) lookup(path logicalcluster.Path, name tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool) {
	object := tenancyv1alpha1.ObjectName(name)
	here, local := c.clusterAt(path)
	at := []string{path.Join(object).String()}
	if here != "" {
		at = append([]string{here.Path().Join(object).String()}, at...)
	}
	for _, key := range at {
		if local {
			// What others have of a logical cluster that is here is left over.
			if own, err := c.types.Own().Lister().ByIndex(PathIndex, key); err != nil || len(own) == 0 {
				continue
			}
		}
		if found, err := c.types.ByIndex(PathIndex, key); err == nil && len(found) > 0 {
			return found[0], true
		}
	}
	return nil, false
}

// clusterAt returns the logical cluster at a path, and whether it is on this
// shard; it is empty where that is not known.
func (c typeCatalogue) clusterAt(path logicalcluster.Path) (name logicalcluster.Name, local bool) {
	found, err := c.clusters.ByIndex(PathIndex, path.String())
	if err == nil && len(found) > 0 {
		return logicalcluster.From(slices.MinFunc(found, func(a, b *corev1alpha1.LogicalCluster) int {
			return cmp.Or(replicas.ComparePreferred(a, b), cmp.Compare(logicalcluster.From(a), logicalcluster.From(b)))
		})), true
	}
	name, ok := path.Name()
	if !ok {
		return "", false
	}
	_, err = c.clusters.Get(client.Key{Cluster: name, Name: corev1alpha1.LogicalClusterName})
	return name, err == nil
}
