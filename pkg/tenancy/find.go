package tenancy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
)

// PathIndex is the index by path of the informers of NewTypeLookup, and TypeIndex the name of the index IndexByType.
const (
	PathIndex = "path"
	TypeIndex = "type"
)

// IndexByPath is the function of PathIndex for LogicalClusters.
func IndexByPath(lc *corev1alpha1.LogicalCluster) []string { return []string{PathOf(lc).String()} }

// IndexTypeByPath is the function of PathIndex for WorkspaceTypes: the name of the logical cluster and, if annotated,
// its path, each joined with the name of the type.
func IndexTypeByPath(wt *tenancyv1alpha1.WorkspaceType) []string {
	paths := []string{logicalcluster.From(wt).Path().Join(wt.Name).String()}
	if annotated := wt.Annotations[core.LogicalClusterPathAnnotationKey]; annotated != "" {
		paths = append(paths, logicalcluster.NewPath(annotated).Join(wt.Name).String())
	}
	return slices.Compact(paths)
}

// TypeIDs returns the paths of a WorkspaceType, each joined with its name, given the logical clusters of the shard.
func TypeIDs(clusters client.Lister[*corev1alpha1.LogicalCluster], wt *tenancyv1alpha1.WorkspaceType) []string {
	ids := IndexTypeByPath(wt)
	if lc, err := clusters.Get(client.Key{Cluster: logicalcluster.From(wt), Name: corev1alpha1.LogicalClusterName}); err == nil {
		ids = append(ids, PathOf(lc).Join(wt.Name).String())
	}
	return ids
}

// IndexByType indexes LogicalClusters by path and name of their type.
func IndexByType(lc *corev1alpha1.LogicalCluster) []string {
	if id := lc.Annotations[tenancyv1alpha1.LogicalClusterTypeAnnotationKey]; id != "" {
		return []string{id}
	}
	return nil
}

// ShardStateOf returns the state of a shard according to its Shard in root. Replicas of removed shards must be ignored,
// so it must be certain that the Shard was deleted (ShardsSynced). The empty name is the root shard's own server, whose
// objects are not replicas.
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

// ShardsSynced returns an error if it is not certain which Shards exist in root. All Shards must have been read. If
// they were read from a cache server, the informer must contain everything up to a checkpoint of the root shard.
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
	return fmt.Errorf("no checkpoint of the root shard was observed since %s", lacks[corev1alpha1.RootShard].UTC().Format(time.RFC3339))
}

// CheckpointsAnnotation is set on Shards that write checkpoints to cache servers.
//
//reference:metadata Shard | the shard
const CheckpointsAnnotation = "internal.shardplane.io/replication-checkpoints"

// WritesCheckpoints reports whether a shard writes checkpoints to caches.
func WritesCheckpoints(shard *corev1alpha1.Shard) bool {
	return shard.Annotations[CheckpointsAnnotation] != ""
}

// NewTypeLookup returns a TypeLookup for informers that have PathIndex. Two shards have a type while its logical
// cluster is migrated, and a path leads to two logical clusters while a workspace is recreated. The preferred one
// according to package replicas is the same on all shards.
func NewTypeLookup(clusters *client.Informer[*corev1alpha1.LogicalCluster], types *replicas.Dual[*tenancyv1alpha1.WorkspaceType]) TypeLookup {
	return func(path logicalcluster.Path, name tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool) {
		object := tenancyv1alpha1.ObjectName(name)
		here, local := clusterAt(clusters.Lister(), path)
		at := []string{path.Join(object).String()}
		if here != "" {
			at = append([]string{here.Path().Join(object).String()}, at...)
		}
		for _, key := range at {
			if local {
				// Replicas of a local logical cluster from other shards are outdated.
				if own, err := types.Own().Lister().ByIndex(PathIndex, key); err != nil || len(own) == 0 {
					continue
				}
			}
			if found, err := types.ByIndex(PathIndex, key); err == nil && len(found) > 0 {
				return found[0], true
			}
		}
		return nil, false
	}
}

// clusterAt returns the logical cluster at a path, or "" if it is unknown, and whether it is on this shard.
func clusterAt(clusters client.Lister[*corev1alpha1.LogicalCluster], path logicalcluster.Path) (name logicalcluster.Name, local bool) {
	found, err := clusters.ByIndex(PathIndex, path.String())
	if err == nil && len(found) > 0 {
		return logicalcluster.From(slices.MinFunc(found, func(a, b *corev1alpha1.LogicalCluster) int {
			return cmp.Or(replicas.ComparePreferred(a, b), cmp.Compare(logicalcluster.From(a), logicalcluster.From(b)))
		})), true
	}
	name, ok := path.Name()
	if !ok {
		return "", false
	}
	_, err = clusters.Get(client.Key{Cluster: name, Name: corev1alpha1.LogicalClusterName})
	return name, err == nil
}

// Slim returns the metadata that informers need: the identity and version of an object, its logical cluster, and some
// further annotations.
func Slim(from *metav1.ObjectMeta, annotations ...string) metav1.ObjectMeta {
	slim := metav1.ObjectMeta{
		Name: from.Name, Namespace: from.Namespace, UID: from.UID, ResourceVersion: from.ResourceVersion,
		CreationTimestamp: from.CreationTimestamp, DeletionTimestamp: from.DeletionTimestamp, Annotations: map[string]string{},
	}
	for _, key := range append(annotations, logicalcluster.AnnotationKey) {
		if value, ok := from.Annotations[key]; ok {
			slim.Annotations[key] = value
		}
	}
	return slim
}

// Dependencies records which keys depend on objects, which need not exist and are identified by path and name. When one
// is created or changed, these must be reconciled. The zero value is ready to use and safe for concurrent use.
type Dependencies[K comparable] struct {
	mu         sync.Mutex
	dependents map[string]map[K]bool
	ids        map[K][]string // the inverse
}

// Types returns a lookup that first records the dependency of key, so that either the type is found or it triggers key.
func (w *Dependencies[K]) Types(key K, types TypeLookup) TypeLookup {
	return func(path logicalcluster.Path, name tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool) {
		w.Remember(key, path.Join(tenancyv1alpha1.ObjectName(name)).String())
		return types(path, name)
	}
}

// Remember records that key depends on id.
func (w *Dependencies[K]) Remember(key K, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dependents[id][key] {
		return
	}
	if w.dependents == nil {
		w.dependents, w.ids = map[string]map[K]bool{}, map[K][]string{}
	}
	if w.dependents[id] == nil {
		w.dependents[id] = map[K]bool{}
	}
	w.dependents[id][key] = true
	w.ids[key] = append(w.ids[key], id)
}

// Forget removes the dependencies of key.
func (w *Dependencies[K]) Forget(key K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.ids[key] {
		if delete(w.dependents[id], key); len(w.dependents[id]) == 0 {
			delete(w.dependents, id)
		}
	}
	delete(w.ids, key)
}

// Len returns the number of keys with dependencies.
func (w *Dependencies[K]) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.ids)
}

// Of returns the keys that depend on any of ids.
func (w *Dependencies[K]) Of(ids ...string) []K {
	w.mu.Lock()
	defer w.mu.Unlock()
	var keys []K
	for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
		keys = slices.AppendSeq(keys, maps.Keys(w.dependents[id]))
	}
	return keys
}
