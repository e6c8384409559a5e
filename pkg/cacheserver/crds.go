package cacheserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/customresource"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/tenancy/cachekinds"
	"github.com/shardplane/shardplane/pkg/tenancy/exportuses"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

// builtIns are the built-in resources that shards replicate. Here they are custom resources.
var builtIns = []*apiextensionsv1.CustomResourceDefinition{
	builtIn(rbacv1.SchemeGroupVersion, "ClusterRole"),
	builtIn(rbacv1.SchemeGroupVersion, "ClusterRoleBinding"),
	builtIn(admissionregistrationv1.SchemeGroupVersion, "MutatingWebhookConfiguration"),
	builtIn(admissionregistrationv1.SchemeGroupVersion, "ValidatingWebhookConfiguration"),
	builtIn(admissionregistrationv1.SchemeGroupVersion, "MutatingAdmissionPolicy"),
	builtIn(admissionregistrationv1.SchemeGroupVersion, "MutatingAdmissionPolicyBinding"),
	builtIn(admissionregistrationv1.SchemeGroupVersion, "ValidatingAdmissionPolicy"),
	builtIn(admissionregistrationv1.SchemeGroupVersion, "ValidatingAdmissionPolicyBinding"),
}

// direct are the resources that shards write to cache servers directly.
var direct = []*apiextensionsv1.CustomResourceDefinition{
	builtIn(cachekinds.SchemeGroupVersion, subtrees.Kind),
	builtIn(cachekinds.SchemeGroupVersion, exportuses.Kind),
	builtIn(cachekinds.SchemeGroupVersion, replicationcheckpoints.Kind),
}

// unused are resources that kcp's cache server serves, so that clients receive an empty list instead of 404.
var unused = []*apiextensionsv1.CustomResourceDefinition{
	namespaced(builtIn(rbacv1.SchemeGroupVersion, "Role")),
	namespaced(builtIn(rbacv1.SchemeGroupVersion, "RoleBinding")),
}

func namespaced(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	crd.Spec.Scope = apiextensionsv1.NamespaceScoped
	return crd
}

// written returns the resources of direct except checkpoints, which the replication writes.
func written() []schema.GroupVersionResource {
	var all []schema.GroupVersionResource
	for _, crd := range direct {
		if crd.Spec.Names.Kind != replicationcheckpoints.Kind {
			all = append(all, schema.GroupVersionResource{Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Resource: crd.Spec.Names.Plural})
		}
	}
	return all
}

// builtIn returns the definition of a cluster-scoped resource with Go types.
func builtIn(gv schema.GroupVersion, kind string) *apiextensionsv1.CustomResourceDefinition {
	plural, singular := meta.UnsafeGuessKindToResource(gv.WithKind(kind))
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural.GroupResource().String()},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group:    gv.Group,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: plural.Resource, Singular: singular.Resource, Kind: kind, ListKind: kind + "List"},
			Scope:    apiextensionsv1.ClusterScoped,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: gv.Version, Served: true, Storage: true}},
		},
	}
	apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
	return crd
}

// served returns the definitions of all resources that shards replicate or write. They accept any content, because the
// shard of an object has validated it, and pruning would lose fields of newer releases.
func served(table []replication.Resource) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	all, err := config.SystemCRDs()
	if err != nil {
		return nil, err
	}
	byResource := make(map[schema.GroupResource]*apiextensionsv1.CustomResourceDefinition, len(all))
	for _, crd := range append(all, builtIns...) {
		byResource[schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}] = crd
	}
	selected := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(table)+len(direct)+len(unused))
	for _, resource := range table {
		crd, ok := byResource[resource.GroupResource()]
		if !ok {
			return nil, fmt.Errorf("shards replicate %s, but neither config/crds nor the table of built-in resources contains it: generate its definition or add it to the table", resource.GroupResource())
		}
		selected = append(selected, customresource.Opaque(crd))
	}
	for _, crd := range slices.Concat(direct, unused) {
		selected = append(selected, customresource.Opaque(crd))
	}
	return selected, nil
}

var (
	// scheme contains the types that a server without built-in resources needs: errors, discovery and request options.
	scheme = newScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	v1 := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(s, v1)
	s.AddUnversionedTypes(v1,
		&metav1.Status{},
		&metav1.APIVersions{},
		&metav1.APIGroupList{},
		&metav1.APIGroup{},
		&metav1.APIResourceList{},
	)
	return s
}

func writeError(w http.ResponseWriter, r *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, codecs, schema.GroupVersion{Version: "v1"}, w, r)
}

// cachedKinds serves the resources that CachedResources replicate, as <resource>:<identity>, until the last
// CachedResource that selects them is deleted.
type cachedKinds struct {
	logger  klog.Logger
	decrypt func(key string, value []byte) ([]byte, error)

	mu sync.RWMutex
	// at are the CachedResources by key, and reading those that have been read so far by a resync.
	at, reading map[string]*cachedKind
	// served are the definitions. If CachedResources specify different kinds, the first one is used.
	served map[cachedAs]*definitions.Definition

	listeners definitions.Listeners[definitions.Change]
}

// cachedKind is the resource that a CachedResource replicates, without a kind if the CachedResource cannot be decoded.
type cachedKind struct {
	cachedAs

	kind, shard, cluster string
}

// cachedAs identifies a replicated resource.
type cachedAs struct {
	schema.GroupVersionResource

	identity string
}

func newCachedKinds(ctx context.Context, decrypt func(key string, value []byte) ([]byte, error)) *cachedKinds {
	return &cachedKinds{logger: klog.FromContext(ctx), decrypt: decrypt, served: map[cachedAs]*definitions.Definition{}}
}

// begin starts a resync. The previous resources are served until it is complete.
func (c *cachedKinds) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = map[string]*cachedKind{}
}

func (c *cachedKinds) complete() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.reading = c.reading, nil
	c.serveLocked()
}

// observe handles each stored value and each change.
func (c *cachedKinds) observe(key string, after []byte) {
	segments := strings.Split(key, "/")
	if len(segments) != 6 || segments[1] != cachev1alpha1.SchemeGroupVersion.Group || segments[2] != apis.CachedResources && segments[2] != apis.ClusterCachedResources {
		return
	}
	kind := c.read(key, after)
	if kind != nil {
		kind.shard, kind.cluster = segments[3], segments[4]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.at
	if c.reading != nil {
		at = c.reading
	}
	before := at[key]
	if kind == nil {
		delete(at, key)
	} else {
		at[key] = kind
	}
	if same := before != nil && kind != nil && *before == *kind; !same && c.reading == nil {
		c.serveLocked()
	}
}

// read returns the resource that a CachedResource replicates, or nil if it is deleted or has not specified one yet.
func (c *cachedKinds) read(key string, value []byte) *cachedKind {
	if value == nil {
		return nil
	}
	var cached cachev1alpha1.CachedResource
	plain, err := c.decrypt(key, value)
	if err == nil {
		err = utiljson.Unmarshal(plain, &cached)
	}
	if err != nil {
		c.logger.Info("A cached resource cannot be read", "key", key, "err", err)
		return &cachedKind{}
	}
	kind := cached.Annotations[apis.CachedKindAnnotation]
	if kind == "" || cached.Annotations[apis.CachedScopeAnnotation] != string(apiextensionsv1.ClusterScoped) || !request.ValidIdentity(cached.Status.IdentityHash) {
		return nil
	}
	return &cachedKind{kind: kind, cachedAs: cachedAs{
		GroupVersionResource: apis.CachedResourceOf(&cached), identity: cached.Status.IdentityHash,
	}}
}

// serveLocked serves the resources in at, and no others. A definition remains as long as a CachedResource has its kind.
func (c *cachedKinds) serveLocked() {
	kept := map[cachedAs]bool{}
	for _, kind := range c.at {
		if served := c.served[kind.cachedAs]; served != nil && served.Schema.Names().Kind == kind.kind {
			kept[kind.cachedAs] = true
		}
	}
	for as, served := range c.served {
		if !kept[as] {
			delete(c.served, as)
			c.listeners.Notify(definitions.Change{Schema: served.Schema, Identity: as.identity, Removed: true})
		}
	}
	for _, kind := range c.at {
		if kind.kind == "" || c.served[kind.cachedAs] != nil {
			continue
		}
		as, err := customresource.OpaqueSchema(kind.GroupVersionResource, kind.kind)
		if err != nil {
			c.logger.Info("Failed to serve the objects of a CachedResource", "shard", kind.shard, "logicalCluster", kind.cluster, "resource", kind.GroupVersionResource.String(), "err", err)
			continue
		}
		c.served[kind.cachedAs] = &definitions.Definition{Schema: as, Identity: kind.identity}
	}
}

// mayBeSelected reports whether a CachedResource of their shard may select replicas. It is true until a resync is
// complete.
func (c *cachedKinds) mayBeSelected(of replicas) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, kind := range c.at {
		as := apis.Identified(kind.GroupVersionResource, kind.identity).GroupResource()
		if kind.shard == of.shard && (kind.kind == "" || as.String() == of.resource) {
			return true
		}
	}
	return c.at == nil
}

var _ definitions.Source = (*cachedKinds)(nil)

// Resolve implements definitions.Source. For all logical clusters, the request contains an identity. One logical cluster
// has one definition per resource and version.
func (c *cachedKinds) Resolve(ctx context.Context, l definitions.Lookup) (*definitions.Definition, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.at == nil {
		return nil, apierrors.NewTooManyRequests("not all CachedResources are loaded yet, try again", 1)
	}
	if l.Identity != "" {
		return c.served[cachedAs{l.Resource.WithVersion(l.Version), l.Identity}], nil
	}
	for _, kind := range c.in(ctx, l.Cluster) {
		if kind.Version == l.Version && kind.GroupResource() == l.Resource && c.served[kind.cachedAs] != nil {
			return c.served[kind.cachedAs], nil
		}
	}
	return nil, nil //nolint:nilnil // not found
}

// in returns the resources of a logical cluster in a stable order, under the lock.
func (c *cachedKinds) in(ctx context.Context, cluster request.Cluster) []*cachedKind {
	shard, _ := request.ShardFrom(ctx)
	if cluster.Wildcard {
		return nil
	}
	var all []*cachedKind
	for _, kind := range c.at {
		if kind.cluster == cluster.Name.String() && (shard.Wildcard || kind.shard == shard.Name) {
			all = append(all, kind)
		}
	}
	slices.SortFunc(all, func(a, b *cachedKind) int {
		return strings.Compare(a.String()+a.identity, b.String()+b.identity)
	})
	return all
}

func (*cachedKinds) Read(context.Context, definitions.Lookup) (*definitions.Definition, error) {
	return nil, nil //nolint:nilnil // no other server adds definitions
}

func (c *cachedKinds) List(ctx context.Context, cluster request.Cluster) ([]*definitions.Definition, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var all []*definitions.Definition
	for _, kind := range c.in(ctx, cluster) {
		if served := c.served[kind.cachedAs]; served != nil {
			all = append(all, served)
		}
	}
	return all, nil
}

func (c *cachedKinds) Subscribe(f func(definitions.Change)) (stop func()) { return c.listeners.Add(f) }

// replica identifies a replica.
type replica struct {
	replicas

	key string
}

// replicaAt parses the key of a replica, /<group>/<resource>/[:<identity>/]<shard>/<cluster>/[<namespace>/]<name>. An
// identity becomes part of the resource. It returns false for other keys.
func replicaAt(key string) (at replica, ok bool) {
	segments := strings.Split(key, "/")
	if len(segments) < 6 {
		return replica{}, false
	}
	resource := storage.ResourceOf(key)
	if strings.HasPrefix(segments[3], ":") {
		resource.Resource += segments[3]
		segments = slices.Delete(segments, 3, 4)
	}
	if len(segments) != 6 && len(segments) != 7 || !request.ValidName(segments[3]) || !request.ValidClusterName(logicalcluster.Name(segments[4])) {
		return replica{}, false
	}
	return replica{replicas{segments[3], resource.String()}, segments[4] + "|" + strings.Join(segments[5:], "/")}, true
}

// replicas identifies the replicas of one resource of one shard.
type replicas struct{ shard, resource string }

// prefixOf returns the key prefix of replicas.
func prefixOf(of replicas) string {
	resource := schema.ParseGroupResource(of.resource)
	name, identity, identified := strings.Cut(resource.Resource, ":")
	prefix := storage.ResourcePrefix(schema.GroupResource{Group: resource.Group, Resource: name}) + "/"
	if identified {
		prefix += ":" + identity + "/"
	}
	return prefix + of.shard + "/"
}
