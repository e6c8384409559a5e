package endpointslice

import (
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// Slice is an endpoint slice.
type Slice interface {
	client.Object
	conditions.Setter
}

// Kind describes a kind of endpoint slices.
type Kind[T Slice] struct {
	// Name is the name of the controller.
	Name string
	// In returns a client for a logical cluster.
	In func(client.Scope) reconcile.Patcher[T]
	// Of returns the common fields of a slice.
	Of func(T) Parts
	// URLs returns the endpoints of a slice, and SetURLs sets them.
	URLs    func(T) []string
	SetURLs func(T, []string)
	// Path returns the path segments of the virtual workspace after /services.
	Path func(slice T, export *apisv1alpha2.APIExport) []string
	// Invalid returns a problem of the export of a slice; export is nil if it does not exist.
	Invalid func(slice T, export *apisv1alpha2.APIExport) *problem
}

// Parts are the common fields of slices.
type Parts struct {
	// Path and Export identify the APIExport with the relevant consumers.
	Path, Export string
	// Cached is the name of the cached resource, if any.
	Cached        string
	Partition     string
	ShardSelector *string
}

type problem struct{ reason, message string }

// OfExports are APIExportEndpointSlices.
var OfExports = Kind[*apisv1alpha1.APIExportEndpointSlice]{
	Name: "endpointslice",
	In: func(s client.Scope) reconcile.Patcher[*apisv1alpha1.APIExportEndpointSlice] {
		return kinds.APIExportEndpointSlices.In(s)
	},
	Of: func(s *apisv1alpha1.APIExportEndpointSlice) Parts {
		return Parts{Path: s.Spec.APIExport.Path, Export: s.Spec.APIExport.Name, Partition: s.Spec.Partition, ShardSelector: &s.Status.ShardSelector}
	},
	URLs: func(s *apisv1alpha1.APIExportEndpointSlice) []string {
		return mapSlice(s.Status.APIExportEndpoints, func(e apisv1alpha1.APIExportEndpoint) string { return e.URL })
	},
	SetURLs: func(s *apisv1alpha1.APIExportEndpointSlice, urls []string) {
		s.Status.APIExportEndpoints = mapSlice(urls, func(url string) apisv1alpha1.APIExportEndpoint {
			return apisv1alpha1.APIExportEndpoint{URL: url}
		})
	},
	Path: func(_ *apisv1alpha1.APIExportEndpointSlice, export *apisv1alpha2.APIExport) []string {
		return []string{"apiexport", logicalcluster.From(export).String(), export.Name}
	},
	Invalid: func(_ *apisv1alpha1.APIExportEndpointSlice, export *apisv1alpha2.APIExport) *problem {
		if export == nil {
			return &problem{apisv1alpha2.APIExportNotFoundReason, "The APIExport does not exist: create it, or delete the slice"}
		}
		return nil
	},
}

// OfCached are CachedResourceEndpointSlices.
var OfCached = Kind[*cachev1alpha1.CachedResourceEndpointSlice]{
	Name: "cachedresourceendpointslice",
	In: func(s client.Scope) reconcile.Patcher[*cachev1alpha1.CachedResourceEndpointSlice] {
		return kinds.CachedResourceEndpointSlices.In(s)
	},
	Of: func(s *cachev1alpha1.CachedResourceEndpointSlice) Parts {
		return Parts{Path: s.Spec.APIExport.Path, Export: s.Spec.APIExport.Name, Cached: s.Spec.CachedResource.Name, Partition: s.Spec.Partition, ShardSelector: &s.Status.ShardSelector}
	},
	URLs:    func(s *cachev1alpha1.CachedResourceEndpointSlice) []string { return urlsOf(&s.Status) },
	SetURLs: func(s *cachev1alpha1.CachedResourceEndpointSlice, urls []string) { setURLs(&s.Status, urls) },
	Path: func(s *cachev1alpha1.CachedResourceEndpointSlice, _ *apisv1alpha2.APIExport) []string {
		return replicationPath(s)
	},
	Invalid: func(s *cachev1alpha1.CachedResourceEndpointSlice, export *apisv1alpha2.APIExport) *problem {
		return refersBack(s, apis.CachedSliceKind, export)
	},
}

// OfClusterCached are ClusterCachedResourceEndpointSlices.
var OfClusterCached = Kind[*kinds.ClusterCachedResourceEndpointSlice]{
	Name: "clustercachedresourceendpointslice",
	In: func(s client.Scope) reconcile.Patcher[*kinds.ClusterCachedResourceEndpointSlice] {
		return kinds.ClusterCachedResourceEndpointSlices.In(s)
	},
	Of: func(s *kinds.ClusterCachedResourceEndpointSlice) Parts {
		return Parts{Path: s.Spec.APIExport.Path, Export: s.Spec.APIExport.Name, Cached: s.Spec.ClusterCachedResource.Name, Partition: s.Spec.Partition, ShardSelector: &s.Status.ShardSelector}
	},
	URLs:    func(s *kinds.ClusterCachedResourceEndpointSlice) []string { return urlsOf(&s.Status) },
	SetURLs: func(s *kinds.ClusterCachedResourceEndpointSlice, urls []string) { setURLs(&s.Status, urls) },
	Path: func(s *kinds.ClusterCachedResourceEndpointSlice, _ *apisv1alpha2.APIExport) []string {
		return replicationPath(s)
	},
	Invalid: func(s *kinds.ClusterCachedResourceEndpointSlice, export *apisv1alpha2.APIExport) *problem {
		return refersBack(s, apis.ClusterCachedSliceKind, export)
	},
}

func urlsOf(status *cachev1alpha1.CachedResourceEndpointSliceStatus) []string {
	return mapSlice(status.CachedResourceEndpoints, func(e cachev1alpha1.CachedResourceEndpoint) string { return e.URL })
}

func setURLs(status *cachev1alpha1.CachedResourceEndpointSliceStatus, urls []string) {
	status.CachedResourceEndpoints = mapSlice(urls, func(url string) cachev1alpha1.CachedResourceEndpoint {
		return cachev1alpha1.CachedResourceEndpoint{URL: url}
	})
}

// replicationPath returns the path segments of the virtual workspace with the replicas of a cached resource.
func replicationPath(slice client.Object) []string {
	return []string{"replication", logicalcluster.From(slice).String(), slice.GetName()}
}

// refersBack returns a problem of the export of a cached resource's slice, which must contain the resource with a reference to the
// slice.
func refersBack(slice client.Object, kind string, export *apisv1alpha2.APIExport) *problem {
	invalid := &problem{cachev1alpha1.APIExportInvalidReferenceReason, "The APIExport does not exist: create it, with a resource whose storage.virtual refers to this slice, or delete the slice"}
	if export == nil {
		return invalid
	}
	refers := func(r apisv1alpha2.ResourceSchema) bool {
		virtual := r.Storage.Virtual
		return virtual != nil && apis.CachedSliceKindOf(virtual.Reference) == kind && virtual.Reference.Name == slice.GetName()
	}
	if logicalcluster.From(export) == logicalcluster.From(slice) && slices.ContainsFunc(export.Spec.Resources, refers) {
		return nil
	}
	invalid.message = "The APIExport has no resource whose storage.virtual refers to this slice: add it to spec.resources. Both must be in one workspace"
	return invalid
}

// mapSlice maps a slice; it returns nil for an empty one.
func mapSlice[In, Out any](in []In, f func(In) Out) []Out {
	if len(in) == 0 {
		return nil
	}
	all := make([]Out, 0, len(in))
	for _, one := range in {
		all = append(all, f(one))
	}
	return all
}
