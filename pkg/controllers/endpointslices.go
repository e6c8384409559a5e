package controllers

import (
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers/endpointslice"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// endpointSlices are the controllers of all kinds of endpoint slices.
func endpointSlices() []reconcile.Descriptor[Deps] {
	return []reconcile.Descriptor[Deps]{
		{Name: endpointslice.OfExports.Name, Placement: reconcile.OnLeader, New: newEndpointSlice},
		{Name: endpointslice.OfCached.Name, Placement: reconcile.OnLeader, New: newCachedSlice},
		{Name: endpointslice.OfClusterCached.Name, Placement: reconcile.OnLeader, New: newClusterCachedSlice},
	}
}

func newEndpointSlice(d Deps) (reconcile.Made, error) {
	return ofSlices(d, endpointslice.OfExports, d.Informers.EndpointSlices, nil), nil
}

func newCachedSlice(d Deps) (reconcile.Made, error) {
	return ofSlices(d, endpointslice.OfCached, d.Informers.CachedSlices.Own(), d.Informers.CachedResources.Own()), nil
}

func newClusterCachedSlice(d Deps) (reconcile.Made, error) {
	return ofSlices(d, endpointslice.OfClusterCached, d.Informers.ClusterCachedSlices.Own(), d.Informers.ClusterCachedResources.Own()), nil
}

// ofSlices returns the controller of a kind of endpoint slices.
func ofSlices[T endpointslice.Slice](d Deps, kind endpointslice.Kind[T], slices *client.Informer[T], cached *client.Informer[*cachev1alpha1.CachedResource]) reconcile.Made {
	i := d.Informers
	made := after(endpointslice.New(endpointslice.Config[T]{
		Kind: kind, ShardName: d.ShardName, Local: d.Local, Slices: slices, Cached: cached, Partitions: i.Partitions, Exports: i.APIExports,
		Shards: i.Shards, Uses: i.ExportUses, Consumers: d.APIs, Resolve: d.Resolve,
	}), slices, i.Partitions, i.APIExports, i.Shards, i.LogicalClusters, d.Bindings)
	if cached != nil {
		made.Needs = append(made.Needs, cached)
	}
	if i.ExportUses != nil {
		// Without it, shards with consumers would be taken out of all slices.
		made.Needs = append(made.Needs, i.ExportUses)
	}
	return made
}
