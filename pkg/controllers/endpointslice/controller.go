// Package endpointslice updates the URLs of virtual workspaces in endpoint slices of exports and cached resources. A
// slice contains the URLs of the shards in its partition that have consumers of the export. The shard of a slice
// computes its complete status.
//
//	APIExport, CachedResource, Partition, Shards ─┐
//	ExportUses of other shards                    ├─► status of the slice
//	bindings of this shard ───────────────────────┘
//
// There is one controller for each kind of slice.
package endpointslice

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
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

// OfCached is the Kind for endpoint slices of CachedResources.
var OfCached = ofCached("cachedresourceendpointslice", apis.CachedSliceKind, kinds.CachedResourceEndpointSlices,
	func(s *cachev1alpha1.CachedResourceEndpointSlice) (Parts, *cachev1alpha1.CachedResourceEndpointSliceStatus) {
		return Parts{Path: s.Spec.APIExport.Path, Export: s.Spec.APIExport.Name, Cached: s.Spec.CachedResource.Name, Partition: s.Spec.Partition}, &s.Status
	})

// ClusterCachedSlices is the resource of the endpoint slices of ClusterCachedResources.
var ClusterCachedSlices = client.DefineResource[apis.ClusterCachedResourceEndpointSlice, apis.ClusterCachedResourceEndpointSliceList](cachev1alpha1.SchemeGroupVersion, "clustercachedresourceendpointslices")

// OfClusterCached is the Kind for endpoint slices of ClusterCachedResources.
var OfClusterCached = ofCached("clustercachedresourceendpointslice", apis.ClusterCachedSliceKind, ClusterCachedSlices,
	func(s *apis.ClusterCachedResourceEndpointSlice) (Parts, *cachev1alpha1.CachedResourceEndpointSliceStatus) {
		return Parts{Path: s.Spec.APIExport.Path, Export: s.Spec.APIExport.Name, Cached: s.Spec.ClusterCachedResource.Name, Partition: s.Spec.Partition}, &s.Status
	})

// ofCached returns a kind of slices of cached resources. of returns their common fields, without the selector, and their status.
func ofCached[T Slice, L runtime.Object](name, kind string, resource client.Resource[T, L], of func(T) (Parts, *cachev1alpha1.CachedResourceEndpointSliceStatus)) Kind[T] {
	return Kind[T]{
		Name: name,
		In:   func(s client.Scope) reconcile.Patcher[T] { return resource.In(s) },
		Of: func(s T) Parts {
			its, status := of(s)
			its.ShardSelector = &status.ShardSelector
			return its
		},
		URLs: func(s T) []string {
			_, status := of(s)
			return mapSlice(status.CachedResourceEndpoints, func(e cachev1alpha1.CachedResourceEndpoint) string { return e.URL })
		},
		SetURLs: func(s T, urls []string) {
			_, status := of(s)
			status.CachedResourceEndpoints = mapSlice(urls, func(url string) cachev1alpha1.CachedResourceEndpoint {
				return cachev1alpha1.CachedResourceEndpoint{URL: url}
			})
		},
		Path: func(s T, _ *apisv1alpha2.APIExport) []string {
			return []string{"replication", logicalcluster.From(s).String(), s.GetName()}
		},
		Invalid: func(s T, export *apisv1alpha2.APIExport) *problem { return refersBack(s, kind, export) },
	}
}

// refersBack returns a problem of an export, which must contain the cached resource with a reference to its slice.
func refersBack(slice client.Object, kind string, export *apisv1alpha2.APIExport) *problem {
	message := "The APIExport does not exist: create it, with a resource whose storage.virtual refers to this slice, or delete the slice"
	refers := func(r apisv1alpha2.ResourceSchema) bool {
		virtual := r.Storage.Virtual
		return virtual != nil && apis.CachedSliceKindOf(virtual.Reference) == kind && virtual.Reference.Name == slice.GetName()
	}
	if export != nil {
		if logicalcluster.From(export) == logicalcluster.From(slice) && slices.ContainsFunc(export.Spec.Resources, refers) {
			return nil
		}
		message = "The APIExport has no resource whose storage.virtual refers to this slice: add it to spec.resources. Both must be in one workspace"
	}
	return &problem{cachev1alpha1.APIExportInvalidReferenceReason, message}
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

type state struct {
	export    *apisv1alpha2.APIExport     // nil if it does not exist
	cached    bool                        // whether the referenced cached resource exists
	partition *topologyv1alpha1.Partition // nil if it does not exist
	shards    []*corev1alpha1.Shard
	consumed  func(shard string) bool // whether the export has bindings on a shard
}

func (k Kind[T]) advance(slice T, s state) T {
	slice, _ = slice.DeepCopyObject().(T)
	its := k.Of(slice)
	selector, valid := selectorOf(slice, its.Partition, s.partition)
	if problem := k.Invalid(slice, s.export); problem == nil {
		conditions.MarkTrue(slice, apisv1alpha2.APIExportValid)
	} else {
		valid = false
		conditions.MarkFalse(slice, apisv1alpha2.APIExportValid, problem.reason, conditionsv1alpha1.ConditionSeverityError, "%s", problem.message)
	}
	switch {
	case its.Cached == "":
	case s.cached:
		conditions.MarkTrue(slice, cachev1alpha1.CachedResourceValid)
	default:
		valid = false
		conditions.MarkFalse(slice, cachev1alpha1.CachedResourceValid, cachev1alpha1.CachedResourceNotFoundReason, conditionsv1alpha1.ConditionSeverityError,
			"The cached resource %s of the slice does not exist: create it, or delete the slice", its.Cached)
	}
	if !valid {
		*its.ShardSelector = ""
		k.SetURLs(slice, nil)
		return slice
	}
	*its.ShardSelector = selector.String()
	k.SetURLs(slice, k.endpoints(slice, selector, s))
	return slice
}

// waitingForReplicas is the reason while the exports of other shards have not been observed completely.
const waitingForReplicas = "WaitingForReplicas"

// waitingFor sets the condition of a slice with an unobserved export. An existing condition does not change.
func waitingFor[T Slice](slice T, why error) T {
	if known := conditions.Get(slice, apisv1alpha2.APIExportValid); known != nil && known.Reason != waitingForReplicas {
		return slice
	}
	slice, _ = slice.DeepCopyObject().(T)
	conditions.MarkUnknown(slice, apisv1alpha2.APIExportValid, waitingForReplicas, "Waiting for the state of other shards: %v", why)
	return slice
}

func selectorOf(slice Slice, name string, partition *topologyv1alpha1.Partition) (selector labels.Selector, valid bool) {
	invalid := func(format string, args ...any) (labels.Selector, bool) {
		conditions.MarkFalse(slice, apisv1alpha1.PartitionValid, apisv1alpha1.PartitionInvalidReferenceReason, conditionsv1alpha1.ConditionSeverityError, format, args...)
		return nil, false
	}
	selector = labels.Everything()
	switch {
	case name == "":
	case partition == nil:
		return invalid("The Partition %s does not exist: create it, or remove it from spec.partition", name)
	case partition.Spec.Selector != nil:
		var err error
		if selector, err = request.LabelSelector(partition.Spec.Selector); err != nil {
			return invalid("The selector of the Partition %s is invalid: %v", name, err)
		}
	}
	conditions.MarkTrue(slice, apisv1alpha1.PartitionValid)
	return selector, true
}

// endpoints returns the endpoints of the shards with consumers that match the selector, or that already have an endpoint.
func (k Kind[T]) endpoints(slice T, selector labels.Selector, s state) []string {
	var all []string
	before := k.URLs(slice)
	shards := slices.SortedFunc(slices.Values(s.shards), func(a, b *corev1alpha1.Shard) int { return strings.Compare(a.Name, b.Name) })
	for _, shard := range shards {
		base, err := url.Parse(shard.Spec.VirtualWorkspaceURL)
		if err != nil || base.Host == "" {
			continue // it has no valid URL
		}
		endpoint := base.JoinPath(append([]string{"services"}, k.Path(slice, s.export)...)...).String()
		if !slices.Contains(all, endpoint) && s.consumed(shard.Name) && (slices.Contains(before, endpoint) || selector.Matches(labels.Set(shard.Labels))) {
			all = append(all, endpoint)
		}
	}
	return all
}
