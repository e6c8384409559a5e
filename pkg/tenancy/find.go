package tenancy

import (
	"cmp"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
)

// PathIndex is the index by path that the informers of NewTypeLookup have.
const PathIndex = "path"

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

// NewTypeLookup looks types up on the shard of that name, in informers that have
// PathIndex: types are those of the shard itself, then those of others.
func NewTypeLookup(shard string, clusters *client.Informer[*corev1alpha1.LogicalCluster], shards *client.Informer[*corev1alpha1.Shard], types ...*client.Informer[*tenancyv1alpha1.WorkspaceType]) TypeLookup {
	return typeCatalogue{self: shard, clusters: clusters.Lister(), shards: shards.Lister(), types: types}.lookup
}

// typeCatalogue looks types up in informers, in their order: those of the shard
// itself first.
type typeCatalogue struct {
	self     string
	clusters client.Lister[*corev1alpha1.LogicalCluster]
	shards   client.Lister[*corev1alpha1.Shard]
	types    []*client.Informer[*tenancyv1alpha1.WorkspaceType]
}

// lookup is a TypeLookup.
func (c typeCatalogue) lookup(path logicalcluster.Path, name tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool) {
	object := tenancyv1alpha1.ObjectName(name)
	here, local := c.clusterAt(path)
	for i, informer := range c.types {
		if local && i > 0 {
			break // what others have of a logical cluster that is here is left over
		}
		if here != "" {
			if wt, ok := c.best(informer, here.Path().Join(object)); ok {
				return wt, true
			}
		}
		if wt, ok := c.best(informer, path.Join(object)); ok {
			return wt, true
		}
	}
	return nil, false
}

// best returns the type at a path, or at the name of a logical cluster, that
// counts if there are several: while a logical cluster moves, two shards have it,
// and when a workspace is made again, its path leads to two for a moment. Replicas
// of shards that are not registered are left over, and so are those of the shard
// itself. Of the rest, one that stays counts more than one that goes, then the
// younger one, then the first by shard and logical cluster, everywhere alike.
func (c typeCatalogue) best(informer *client.Informer[*tenancyv1alpha1.WorkspaceType], at logicalcluster.Path) (*tenancyv1alpha1.WorkspaceType, bool) {
	found, err := informer.Lister().ByIndex(PathIndex, at.String())
	if err != nil {
		return nil, false
	}
	shardOf := func(wt *tenancyv1alpha1.WorkspaceType) string { return informer.KeyOf(wt).Shard }
	found = slices.DeleteFunc(found, func(wt *tenancyv1alpha1.WorkspaceType) bool {
		shard := shardOf(wt)
		return shard != "" && (shard == c.self || !c.stays(shard, false))
	})
	if len(found) == 0 {
		return nil, false
	}
	return slices.MinFunc(found, func(a, b *tenancyv1alpha1.WorkspaceType) int {
		return cmp.Or(
			compareTrue(c.stays(shardOf(a), true), c.stays(shardOf(b), true)),
			compareYounger(a, b),
			cmp.Compare(shardOf(a), shardOf(b)),
			cmp.Compare(logicalcluster.From(a), logicalcluster.From(b)),
		)
	}), true
}

// stays reports whether a shard is registered, and whether it is not on its way
// out if that matters. The empty name is the server that an informer reads.
func (c typeCatalogue) stays(shard string, matters bool) bool {
	if shard == "" {
		return true
	}
	obj, err := c.shards.Cluster(core.RootCluster).Get("", shard)
	return err == nil && (!matters || obj.DeletionTimestamp == nil)
}

// clusterAt returns the logical cluster at a path, and whether it is on this
// shard; it is empty where that is not known.
func (c typeCatalogue) clusterAt(path logicalcluster.Path) (name logicalcluster.Name, local bool) {
	found, err := c.clusters.ByIndex(PathIndex, path.String())
	if err == nil && len(found) > 0 {
		return logicalcluster.From(slices.MinFunc(found, func(a, b *corev1alpha1.LogicalCluster) int {
			return cmp.Or(compareYounger(a, b), cmp.Compare(logicalcluster.From(a), logicalcluster.From(b)))
		})), true
	}
	name, ok := path.Name()
	if !ok {
		return "", false
	}
	_, err = c.clusters.Get(client.Key{Cluster: name, Name: corev1alpha1.LogicalClusterName})
	return name, err == nil
}

// compareYounger orders what is not being deleted first, and then the younger.
func compareYounger(a, b metav1.Object) int {
	return cmp.Or(
		compareTrue(a.GetDeletionTimestamp() == nil, b.GetDeletionTimestamp() == nil),
		b.GetCreationTimestamp().Compare(a.GetCreationTimestamp().Time),
	)
}

// compareTrue orders true before false.
func compareTrue(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}
