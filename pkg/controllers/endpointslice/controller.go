// Package endpointslice says in endpoint slices, of exports and of cached resources, where the
// views of these are: on the shards that have consumers of the export, within the slice's
// partition. The shard that has a slice computes its whole status; no other writes to it.
//
//	APIExport, CachedResource, Partition, Shards ─┐
//	ExportUses of other shards                    ├─► status of the slice
//	bindings of this shard ───────────────────────┘
//
// There is one controller for each kind of slices (kinds.go).
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

// ExportIndex is the index of endpoint slices by the path and name of their exports, as
// apis.IndexByPath has them.
const ExportIndex = "export"

// IndexByExport is the function of ExportIndex. Slices whose path may be none of those that
// an export is indexed by, such as one that starts with the name of a logical cluster, are
// under the name of the export, too.
func (k Kind[T]) IndexByExport(slice T) []string {
	path, export := k.pathOf(slice), k.Of(slice).Export
	keys := []string{path.Join(export).String()}
	if _, isName := path.Name(); !isName && !path.HasPrefix(core.RootCluster.Path()) {
		keys = append(keys, byName(export))
	}
	return keys
}

// byName is the key of such slices in ExportIndex, which is no path.
func byName(export string) string { return "*:" + export }

// pathOf returns the path of the logical cluster of a slice's export.
func (k Kind[T]) pathOf(slice T) logicalcluster.Path {
	if path := k.Of(slice).Path; path != "" {
		return logicalcluster.NewPath(path)
	}
	return logicalcluster.From(slice).Path()
}

// Consumers says which exports have bindings on the shard.
type Consumers interface {
	// Consumed reports whether an export has any.
	Consumed(export client.Key) bool
	// FollowConsumers calls f for each export that has any, and when that changes, until
	// stop is called.
	FollowConsumers(f func(export client.Key)) (stop func())
}

// Config is what the controller needs.
type Config[T Slice] struct {
	// Kind is that of the slices.
	Kind Kind[T]
	// ShardName is the name of the shard.
	ShardName string
	// Local reaches the shard itself as system:masters.
	Local *client.Factory
	// Slices and Partitions are those of all logical clusters of the shard; Slices have
	// the index ExportIndex.
	Slices     *client.Informer[T]
	Partitions *client.Informer[*topologyv1alpha1.Partition]
	// Cached are the cached resources of the shard that slices of Kind refer to, if they do.
	Cached *client.Informer[*cachev1alpha1.CachedResource]
	// Exports have the index apis.PathIndex.
	Exports *replicas.Dual[*apisv1alpha2.APIExport]
	// Shards are those that are registered in root.
	Shards *client.Informer[*corev1alpha1.Shard]
	// Uses are those of all shards on the cache server, nil where there is none, and
	// Consumers those of this shard.
	Uses      *client.Informer[*exportuses.ExportUse]
	Consumers Consumers
	// Resolve returns the logical cluster of an export by its path, or "" if there is none.
	// The error is client.ErrIncomplete if there may be one on another shard.
	Resolve func(path logicalcluster.Path, export string) (logicalcluster.Name, error)
}

// New returns the controller. Its keys are slices.
func New[T Slice](config Config[T]) *reconcile.Controller[client.Key] {
	c := &config
	sources := []reconcile.Source[client.Key]{
		reconcile.Keys(config.Slices),
		reconcile.FromInformer(config.Exports, c.slicesOf),
		reconcile.FromInformer(config.Partitions, c.slicesIn),
		c.shardChanges,
		func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
			return config.Consumers.FollowConsumers(func(export client.Key) { c.enqueue(queue, export) }), nil
		},
	}
	if config.Cached != nil {
		sources = append(sources, reconcile.FromInformer(config.Cached, c.slicesFor))
	}
	if config.Uses != nil {
		sources = append(sources, func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
			return config.Uses.AddEventHandler(config.Uses.KeyHandler(func(key client.Key) { c.enqueue(queue, key) })).Remove, nil
		})
	}
	return reconcile.New(reconcile.Config[client.Key]{Name: config.Kind.Name, Reconcile: c.reconcile, Sources: sources})
}

// slicesOf returns the slices of an export.
func (c *Config[T]) slicesOf(export *apisv1alpha2.APIExport) []client.Key {
	paths := append(apis.IndexByPath(export), byName(export.Name))
	keys := make([]client.Key, 0, len(paths))
	for _, path := range paths {
		keys = append(keys, c.Slices.Lister().KeysByIndex(ExportIndex, path)...)
	}
	return keys
}

// enqueue puts the slices of an export into the queue.
func (c *Config[T]) enqueue(queue reconcile.Queue[client.Key], export client.Key) {
	found, err := c.Exports.Get(export.Cluster, "", export.Name)
	if err != nil {
		return // its slices say so, and are looked at when it comes
	}
	for _, key := range c.slicesOf(found) {
		queue.Add(key)
	}
}

// slicesIn returns the slices of a partition.
func (c *Config[T]) slicesIn(partition *topologyv1alpha1.Partition) []client.Key {
	return c.slicesWhere(logicalcluster.From(partition), func(its Parts) bool { return its.Partition == partition.Name })
}

// slicesFor returns the slices of a cached resource.
func (c *Config[T]) slicesFor(cached *cachev1alpha1.CachedResource) []client.Key {
	return c.slicesWhere(logicalcluster.From(cached), func(its Parts) bool { return its.Cached == cached.Name })
}

// slicesWhere returns the slices of a logical cluster of which something is true.
func (c *Config[T]) slicesWhere(cluster logicalcluster.Name, is func(Parts) bool) []client.Key {
	var keys []client.Key
	for _, slice := range c.Slices.Lister().Cluster(cluster).List(nil) {
		if is(c.Kind.Of(slice)) {
			keys = append(keys, client.KeyOf(slice))
		}
	}
	return keys
}

// shardChanges has all slices looked at when a shard comes, goes, or changes in what they
// go by.
func (c *Config[T]) shardChanges(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
	all := func() {
		for _, slice := range c.Slices.Lister().List(nil) {
			queue.Add(client.KeyOf(slice))
		}
	}
	return c.Shards.AddEventHandler(client.Handler[*corev1alpha1.Shard]{
		OnAdd: func(*corev1alpha1.Shard, bool) { all() },
		OnUpdate: func(old, obj *corev1alpha1.Shard) {
			if old.Spec.VirtualWorkspaceURL != obj.Spec.VirtualWorkspaceURL || !equality.Semantic.DeepEqual(old.Labels, obj.Labels) {
				all()
			}
		},
		OnDelete: func(*corev1alpha1.Shard, bool) { all() },
	}).Remove, nil
}

func (c *Config[T]) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	slice, err := c.Slices.Lister().Get(key)
	if err != nil || slice.GetDeletionTimestamp() != nil {
		return reconcile.Result{}, nil //nolint:nilerr // it is gone
	}
	s, err := c.stateOf(slice)
	if errors.Is(err, client.ErrIncomplete) {
		klog.FromContext(ctx).V(2).Info("Waiting for what other shards export", "reason", err.Error())
		return reconcile.Result{Backoff: true}, c.commit(ctx, slice, waitingFor(slice, err))
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, c.commit(ctx, slice, c.Kind.advance(slice, s))
}

func (c *Config[T]) commit(ctx context.Context, slice, updated T) error {
	_, err := reconcile.Commit(ctx, c.Kind.In(c.Local.Cluster(logicalcluster.From(slice).Path())), slice, updated)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// stateOf returns what the status of a slice follows from.
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
