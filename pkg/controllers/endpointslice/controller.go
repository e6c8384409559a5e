// Package endpointslice updates the URLs of virtual workspaces in the endpoint slices of exports and of cached resources:
// those of the shards in the slice's partition that have consumers of the export. The shard of a slice computes its
// complete status.
//
//	APIExport, CachedResource, Partition, Shards ─┐
//	ExportUses of other shards                    ├─► status of the slice
//	bindings of this shard ───────────────────────┘
//
// There is one controller for each kind of slice (kinds.go).
package endpointslice

import (
	"context"
	"errors"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/tenancy/exportuses"
)

// ExportIndex is the index of endpoint slices by the path and name of their exports, compatible with apis.IndexByPath.
const ExportIndex = "export"

// IndexByExport is the index function of ExportIndex. An export may not be indexed by the path of a slice, e.g. if it
// starts with the name of a logical cluster. Such slices are also indexed by the name of the export.
func (k Kind[T]) IndexByExport(slice T) []string {
	path, export := k.pathOf(slice), k.Of(slice).Export
	keys := []string{path.Join(export).String()}
	if _, isName := path.Name(); !isName && !path.HasPrefix(core.RootCluster.Path()) {
		keys = append(keys, byName(export))
	}
	return keys
}

// byName returns the key for the name of an export, which is not a valid path.
func byName(export string) string { return "*:" + export }

func (k Kind[T]) pathOf(slice T) logicalcluster.Path {
	if path := k.Of(slice).Path; path != "" {
		return logicalcluster.NewPath(path)
	}
	return logicalcluster.From(slice).Path()
}

// Config configures a controller. The informers contain the objects of all logical clusters of the shard.
type Config[T Slice] struct {
	Kind      Kind[T]
	ShardName string
	Local     *client.Factory
	// Slices have the index ExportIndex.
	Slices     *client.Informer[T]
	Partitions *client.Informer[*topologyv1alpha1.Partition]
	// Cached are the cached resources that slices of Kind reference; it may be nil.
	Cached *client.Informer[*cachev1alpha1.CachedResource]
	// Exports have the index apis.PathIndex.
	Exports *replicas.Dual[*apisv1alpha2.APIExport]
	// Shards are the registered shards.
	Shards *client.Informer[*corev1alpha1.Shard]
	// Uses are the consumers of all shards according to the cache server, or nil without one, and Consumers those of this shard.
	Uses      *client.Informer[*exportuses.ExportUse]
	Consumers exportuses.Consumers
	// Resolve returns the logical cluster of an export by its path, or "" if it does not exist. It returns client.ErrIncomplete if
	// the export may exist on another shard.
	Resolve func(path logicalcluster.Path, export string) (logicalcluster.Name, error)
}

// NewEndpointSliceController returns a controller. Its keys are slices.
func NewEndpointSliceController[T Slice](config Config[T]) *reconcile.Controller[client.Key] {
	c := &config
	sources := []reconcile.Source[client.Key]{
		reconcile.Keys(config.Slices),
		reconcile.FromInformer(config.Exports, c.slicesOf),
		reconcile.FromInformer(config.Partitions, func(partition *topologyv1alpha1.Partition) []client.Key {
			return c.slicesWhere(logicalcluster.From(partition), func(its Parts) bool { return its.Partition == partition.Name })
		}),
		reconcile.FromChanges(config.Shards, func(old, shard *corev1alpha1.Shard) bool {
			return old.Spec.VirtualWorkspaceURL != shard.Spec.VirtualWorkspaceURL || !equality.Semantic.DeepEqual(old.Labels, shard.Labels)
		}, func() []client.Key { return reconcile.KeysOf(config.Slices.Lister().List(nil)...) }),
		func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
			return config.Consumers.FollowConsumers(func(export client.Key) { c.enqueue(queue, export) }), nil
		},
	}
	if config.Cached != nil {
		sources = append(sources, reconcile.FromInformer(config.Cached, func(cached *cachev1alpha1.CachedResource) []client.Key {
			return c.slicesWhere(logicalcluster.From(cached), func(its Parts) bool { return its.Cached == cached.Name })
		}))
	}
	if config.Uses != nil {
		sources = append(sources, func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
			return config.Uses.AddKeyHandler(func(key client.Key) { c.enqueue(queue, key) }, nil).Remove, nil
		})
	}
	return reconcile.New(reconcile.Config[client.Key]{Name: config.Kind.Name, Reconcile: c.reconcile, Sources: sources})
}

func (c *Config[T]) slicesOf(export *apisv1alpha2.APIExport) []client.Key {
	paths := append(apis.IndexByPath(export), byName(export.Name))
	keys := make([]client.Key, 0, len(paths))
	for _, path := range paths {
		keys = append(keys, c.Slices.Lister().KeysByIndex(ExportIndex, path)...)
	}
	return keys
}

func (c *Config[T]) enqueue(queue reconcile.Queue[client.Key], export client.Key) {
	found, err := c.Exports.Get(export.Cluster, "", export.Name)
	if err != nil {
		return // requeued when it is observed
	}
	for _, key := range c.slicesOf(found) {
		queue.Add(key)
	}
}

func (c *Config[T]) slicesWhere(cluster logicalcluster.Name, is func(Parts) bool) []client.Key {
	var keys []client.Key
	for _, slice := range c.Slices.Lister().Cluster(cluster).List(nil) {
		if is(c.Kind.Of(slice)) {
			keys = append(keys, client.KeyOf(slice))
		}
	}
	return keys
}

func (c *Config[T]) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	slice, err := c.Slices.Lister().Get(key)
	if err != nil || slice.GetDeletionTimestamp() != nil {
		return reconcile.Result{}, nil //nolint:nilerr // deleted
	}
	s, err := c.stateOf(slice)
	if errors.Is(err, client.ErrIncomplete) {
		klog.FromContext(ctx).V(2).Info("Waiting for the exports of other shards", "reason", err.Error())
		return reconcile.Result{Backoff: true}, c.commit(ctx, slice, waitingFor(slice, err))
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, c.commit(ctx, slice, c.Kind.advance(slice, s))
}

func (c *Config[T]) commit(ctx context.Context, slice, updated T) error {
	_, err := reconcile.Commit(ctx, c.Kind.In(c.Local.Cluster(logicalcluster.From(slice).Path())), slice, updated)
	return reconcile.IgnoreNotFound(err)
}

func (c *Config[T]) stateOf(slice T) (s state, err error) {
	its := c.Kind.Of(slice)
	provider, err := c.Resolve(c.Kind.pathOf(slice), its.Export)
	if err != nil {
		return s, err
	}
	export := client.Key{Cluster: provider, Name: its.Export}
	if provider != "" {
		if s.export, err = c.Exports.GetCurrent(provider, "", export.Name); err != nil && !apierrors.IsNotFound(err) {
			return s, err
		}
		if err != nil {
			s.export = nil
		}
	}
	partition, err := c.Partitions.Lister().Get(client.Key{Cluster: logicalcluster.From(slice), Name: its.Partition})
	if err == nil {
		s.partition = partition
	}
	if c.Cached != nil {
		cached, err := c.Cached.Lister().Get(client.Key{Cluster: logicalcluster.From(slice), Name: its.Cached})
		s.cached = err == nil && cached.DeletionTimestamp == nil
	}
	s.shards = c.Shards.Lister().Cluster(core.RootCluster).List(nil)
	s.consumed = func(shard string) bool {
		if shard == c.ShardName {
			return c.Consumers.Consumed(export)
		}
		if c.Uses == nil {
			return false
		}
		_, err := c.Uses.Lister().Get(client.Key{Shard: shard, Cluster: export.Cluster, Name: export.Name})
		return err == nil
	}
	return s, nil
}
