// Package endpointslice says in APIExportEndpointSlices where the views of their exports
// are: on the shards that have consumers, within the slice's partition. The shard that has
// a slice computes its whole status; no other writes to it.
//
//	APIExport, Partition, Shards ─┐
//	ExportUses of other shards    ├─► status of the slice
//	bindings of this shard ───────┘
package endpointslice

import (
	"context"
	"errors"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy/exportuses"
)

// Name is the name of the controller.
const Name = "endpointslice"

// ExportIndex is the index of endpoint slices by the path and name of their exports, as
// apis.IndexByPath has them.
const ExportIndex = "export"

// IndexByExport is the function of ExportIndex. Slices whose path may be none of those that
// an export is indexed by, such as one that starts with the name of a logical cluster, are
// under the name of the export, too.
func IndexByExport(slice *apisv1alpha1.APIExportEndpointSlice) []string {
	path := pathOf(slice)
	keys := []string{path.Join(slice.Spec.APIExport.Name).String()}
	if _, isName := path.Name(); !isName && !path.HasPrefix(core.RootCluster.Path()) {
		keys = append(keys, byName(slice.Spec.APIExport.Name))
	}
	return keys
}

// byName is the key of such slices in ExportIndex, which is no path.
func byName(export string) string { return "*:" + export }

// pathOf returns the path of the logical cluster of a slice's export.
func pathOf(slice *apisv1alpha1.APIExportEndpointSlice) logicalcluster.Path {
	if path := slice.Spec.APIExport.Path; path != "" {
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
type Config struct {
	// ShardName is the name of the shard.
	ShardName string
	// Local reaches the shard itself as system:masters.
	Local *client.Factory
	// Slices and Partitions are those of all logical clusters of the shard; Slices have
	// the index ExportIndex.
	Slices     *client.Informer[*apisv1alpha1.APIExportEndpointSlice]
	Partitions *client.Informer[*topologyv1alpha1.Partition]
	// Exports have the index apis.PathIndex.
	Exports *client.Dual[*apisv1alpha2.APIExport]
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
func New(config Config) *reconcile.Controller[client.Key] {
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
	if config.Uses != nil {
		sources = append(sources, func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
			return config.Uses.AddEventHandler(config.Uses.KeyHandler(func(key client.Key) { c.enqueue(queue, key) })).Remove, nil
		})
	}
	return reconcile.New(reconcile.Config[client.Key]{Name: Name, Reconcile: c.reconcile, Sources: sources})
}

// slicesOf returns the slices of an export.
func (c *Config) slicesOf(export *apisv1alpha2.APIExport) []client.Key {
	paths := append(apis.IndexByPath(export), byName(export.Name))
	keys := make([]client.Key, 0, len(paths))
	for _, path := range paths {
		keys = append(keys, c.Slices.Lister().KeysByIndex(ExportIndex, path)...)
	}
	return keys
}

// enqueue puts the slices of an export into the queue.
func (c *Config) enqueue(queue reconcile.Queue[client.Key], export client.Key) {
	found, err := c.Exports.Get(export.Cluster, "", export.Name)
	if err != nil {
		return // its slices say so, and are looked at when it comes
	}
	for _, key := range c.slicesOf(found) {
		queue.Add(key)
	}
}

// slicesIn returns the slices of a partition.
func (c *Config) slicesIn(partition *topologyv1alpha1.Partition) []client.Key {
	var keys []client.Key
	for _, slice := range c.Slices.Lister().Cluster(logicalcluster.From(partition)).List(nil) {
		if slice.Spec.Partition == partition.Name {
			keys = append(keys, client.KeyOf(slice))
		}
	}
	return keys
}

// shardChanges has all slices looked at when a shard comes, goes, or changes in what they
// go by.
func (c *Config) shardChanges(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
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

func (c *Config) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	slice, err := c.Slices.Lister().Get(key)
	if err != nil || slice.DeletionTimestamp != nil {
		return reconcile.Result{}, nil //nolint:nilerr // it is gone
	}
	s, err := c.stateOf(slice)
	if errors.Is(err, client.ErrIncomplete) {
		klog.FromContext(ctx).V(2).Info("Waiting for what other shards export", "reason", err.Error())
		return reconcile.Result{Backoff: true}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	_, err = reconcile.Commit(ctx, kinds.APIExportEndpointSlices.In(c.Local.Cluster(key.Cluster.Path())), slice, advance(slice, s))
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return reconcile.Result{}, err
}

// stateOf returns what the status of a slice follows from.
func (c *Config) stateOf(slice *apisv1alpha1.APIExportEndpointSlice) (s state, err error) {
	provider, err := c.Resolve(pathOf(slice), slice.Spec.APIExport.Name)
	if err != nil {
		return s, err
	}
	export := client.Key{Cluster: provider, Name: slice.Spec.APIExport.Name}
	if provider != "" {
		if s.export, err = c.Exports.Get(provider, "", export.Name); err != nil && !apierrors.IsNotFound(err) {
			return s, err
		}
		if err != nil {
			s.export = nil
			if unknown := c.Exports.Current(); unknown != nil && !c.Exports.Holds(provider) {
				return s, unknown // what was saved before the start may lack it
			}
		}
	}
	partition, err := c.Partitions.Lister().Get(client.Key{Cluster: logicalcluster.From(slice), Name: slice.Spec.Partition})
	if err == nil {
		s.partition = partition
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
