package bindings

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/background"
)

const (
	deadline = 30 * time.Second
	tick     = time.Millisecond
)

var (
	widgets  = schema.GroupResource{Group: "example.org", Resource: "widgets"}
	gadgets  = schema.GroupResource{Group: "example.org", Resource: "gadgets"}
	wildcard = request.Cluster{Wildcard: true}
)

// shard is an index, and a server with its bindings.
type shard struct {
	*Index
	t      *testing.T
	server *clienttest.Server

	mu      sync.Mutex
	changes []definitions.Change
	exports map[client.Key]*apisv1alpha2.APIExport
}

func newShard(t *testing.T) *shard {
	t.Helper()
	w := &shard{t: t, server: clienttest.New(t, kinds.Scheme), exports: map[client.Key]*apisv1alpha2.APIExport{}}
	factory, err := client.NewFactory(w.server.ClientConfig())
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	defined := func(context.Context, logicalcluster.Name, schema.GroupResource) bool { return true }
	w.Index, err = NewBindingIndex(Alone(Config{Local: factory, Defined: defined, WaitForExports: func(context.Context) error { return nil }, Export: func(key client.Key) (*apisv1alpha2.APIExport, error) {
		if e := w.exports[key]; e != nil {
			return e, nil
		}
		return nil, apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}}))
	require.NoError(t, err)
	stop := w.Subscribe(func(c definitions.Change) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.changes = append(w.changes, c)
	})
	t.Cleanup(stop)
	return w
}

func (w *shard) run() *shard {
	w.t.Helper()
	background.Run(w.t.Context(), w.t, w.Informer().Run)
	background.Run(w.t.Context(), w.t, w.Run)
	require.NoError(w.t, w.Informer().WaitForSync(w.t.Context()))
	return w
}

// schema adds a schema of a resource with a property.
func (w *shard) schema(uid types.UID, resource schema.GroupResource, property string, created int64) {
	w.t.Helper()
	props := fmt.Sprintf(`{"type":"object","properties":{%q:{"type":"string"}}}`, property)
	copied := &BoundSchema{Original: string(uid), Created: metav1.Unix(created, 0)}
	w.add(copied, resource, "Namespaced", "K"+resource.Resource, props, "v1")
}

func bindingOf(cluster, name string, resources ...apisv1alpha2.BoundAPIResource) *apisv1alpha2.APIBinding {
	return &apisv1alpha2.APIBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: cluster}},
		Spec:       apisv1alpha2.APIBindingSpec{Reference: apisv1alpha2.BindingReference{Export: &apisv1alpha2.ExportBindingReference{Name: "e"}}},
		Status:     apisv1alpha2.APIBindingStatus{APIExportClusterName: "provider", BoundResources: resources},
	}
}

func boundTo(resource schema.GroupResource, uid, identity string) apisv1alpha2.BoundAPIResource {
	return apisv1alpha2.BoundAPIResource{Group: resource.Group, Resource: resource.Resource, StorageVersions: []string{"v1"}, Schema: apisv1alpha2.BoundAPIResourceSchema{Name: uid, UID: uid, IdentityHash: identity}}
}

// put writes a binding, and waits until the index has it.
func (w *shard) put(b *apisv1alpha2.APIBinding) {
	w.t.Helper()
	b = b.DeepCopy()
	b.ResourceVersion = w.server.Put(w.t, kinds.APIBindings.GroupVersionResource, b)
	require.NoError(w.t, w.WaitFor(w.t.Context(), b))
}

func (w *shard) remove(cluster, name string) {
	w.t.Helper()
	w.server.Delete(w.t, kinds.APIBindings.GroupVersionResource, "", logicalcluster.Name(cluster), "", name)
	// The informer calls the index after it has removed the binding.
	require.Eventually(w.t, func() bool {
		return !slices.ContainsFunc(w.records(logicalcluster.Name(cluster)), func(r *record) bool { return r.name == name })
	}, deadline, tick)
}

func (w *shard) resolve(l definitions.Lookup) *definitions.Definition {
	w.t.Helper()
	if l.Version == "" {
		l.Version = "v1"
	}
	d, err := w.Resolve(w.t.Context(), l)
	require.NoError(w.t, err)
	return d
}

func in(cluster string) request.Cluster { return request.Cluster{Name: logicalcluster.Name(cluster)} }

// TestServed: bound resources are served in the logical cluster with their identity, and to wildcards with the newest schema.
func TestServed(t *testing.T) {
	w := newShard(t).run()
	w.schema("one", widgets, "size", 1)
	w.schema("two", widgets, "weight", 2)
	w.put(bindingOf("a", "x", boundTo(widgets, "one", "h")))
	w.put(bindingOf("b", "x", boundTo(widgets, "two", "h")))
	w.put(bindingOf("c", "x", boundTo(widgets, "one", "other")))

	d := w.resolve(definitions.Lookup{Cluster: in("a"), Resource: widgets})
	require.Equal(t, w.schemas.cached("one").Schema, d.Schema)
	require.Equal(t, "h", d.Identity)
	require.Equal(t, `APIBinding "x"`, d.Owner)
	require.Nil(t, w.resolve(definitions.Lookup{Cluster: in("a"), Resource: gadgets}))
	require.Nil(t, w.resolve(definitions.Lookup{Cluster: in("provider"), Resource: widgets}))
	require.Equal(t, d, w.resolve(definitions.Lookup{Cluster: in("a"), Resource: widgets, Identity: "h"}))
	require.Nil(t, w.resolve(definitions.Lookup{Cluster: in("a"), Resource: widgets, Identity: "other"}))

	all := w.resolve(definitions.Lookup{Cluster: wildcard, Resource: widgets, Identity: "h"})
	require.Equal(t, w.schemas.cached("two").Schema, all.Schema)
	require.Equal(t, "h", all.Identity)
	require.False(t, all.MetadataOnly)
	require.Equal(t, w.schemas.cached("one").Schema, w.resolve(definitions.Lookup{Cluster: wildcard, Resource: widgets, Identity: "other"}).Schema)
	require.Nil(t, w.resolve(definitions.Lookup{Cluster: wildcard, Resource: widgets, Identity: "none"}))
	metadata := w.resolve(definitions.Lookup{Cluster: wildcard, Resource: widgets})
	require.True(t, metadata.MetadataOnly)
	require.Empty(t, metadata.Identity)
	require.Nil(t, w.resolve(definitions.Lookup{Cluster: wildcard, Resource: widgets, Version: "v2"}))

	list, err := w.List(t.Context(), in("a"))
	require.NoError(t, err)
	require.Len(t, list, 1)
	deleting := bindingOf("a", "x", boundTo(widgets, "one", "h"))
	deleting.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	w.put(deleting)
	require.True(t, w.resolve(definitions.Lookup{Cluster: in("a"), Resource: widgets}).Terminating)
	w.remove("a", "x")
	require.Nil(t, w.resolve(definitions.Lookup{Cluster: in("a"), Resource: widgets}))
}

// TestServedOfTheSystem: bound system resources are served with the server's schema and without an identity, even if the
// shard has no copy of the schema.
func TestServedOfTheSystem(t *testing.T) {
	w := newShard(t)
	w.schema("own", gadgets, "size", 1)
	own := &definitions.Definition{Schema: w.schemas.cached("own").Schema}
	w.config.System = func(resource schema.GroupResource) *definitions.Definition {
		if resource == gadgets {
			return own
		}
		return nil
	}
	w.config.SystemBound = func(cluster logicalcluster.Name) bool { return cluster != "old" }
	w.run()
	w.put(bindingOf("a", "x", boundTo(gadgets, "unknown", "h")))
	w.put(bindingOf("old", "x", boundTo(gadgets, "unknown", "h")))
	for _, identity := range []string{"", "h"} {
		require.Equal(t, &definitions.Definition{Schema: own.Schema, Owner: `APIBinding "x"`}, w.resolve(definitions.Lookup{Cluster: in("a"), Resource: gadgets, Identity: identity}))
	}
	require.Nil(t, w.resolve(definitions.Lookup{Cluster: in("b"), Resource: gadgets}))
	d, err := w.Definition(t.Context(), new(boundTo(gadgets, "unknown", "h")))
	require.NoError(t, err)
	require.Equal(t, own, d)
	w.remove("old", "x")
	w.remove("a", "x")
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.changes) > 0
	}, deadline, tick)
	require.Equal(t, []definitions.Change{{Schema: own.Schema, Cluster: in("a"), Removed: true}}, w.changes, "no change if the API is served without a binding")
}

// TestReadsStoredBindings: an index that is not up to date finds a binding in storage.
func TestReadsStoredBindings(t *testing.T) {
	w := newShard(t)
	w.schema("one", widgets, "size", 1)
	w.server.Put(t, kinds.APIBindings.GroupVersionResource, bindingOf("a", "x", boundTo(widgets, "one", "h")))
	for cluster, served := range map[string]bool{"a": true, "b": false} {
		d, err := w.Read(t.Context(), definitions.Lookup{Cluster: in(cluster), Resource: widgets, Version: "v1"})
		require.NoError(t, err)
		require.Equal(t, served, d != nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := w.Resolve(ctx, definitions.Lookup{Cluster: in("a"), Resource: widgets})
	require.ErrorIs(t, err, errNotSynced)
	require.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
	seconds, _ := apierrors.SuggestsClientDelay(err)
	require.Equal(t, 1, seconds)
}

// TestChanges: listeners are notified of relevant changes, and only of these.
func TestChanges(t *testing.T) {
	w := newShard(t).run()
	w.schema("one", widgets, "size", 1)
	w.schema("same", widgets, "size", 2)
	w.schema("two", widgets, "weight", 3)
	w.schema("gadgets", gadgets, "size", 1)
	w.put(bindingOf("a", "x", boundTo(widgets, "one", "h"), boundTo(gadgets, "gadgets", "h")))
	w.put(bindingOf("b", "x", boundTo(widgets, "one", "h")))
	requireChanges := func(want ...string) {
		t.Helper()
		require.Eventually(t, func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			var got []string
			for _, c := range w.changes {
				got = append(got, fmt.Sprint(c.Cluster.Wildcard, c.Cluster.Name, " ", c.Schema.Resource.Resource, " ", c.Identity, " ", c.Removed))
			}
			slices.Sort(got)
			// A wildcard is notified of each added or removed schema, a logical cluster once.
			got = slices.CompactFunc(got, func(a, b string) bool { return a == b && strings.HasPrefix(a, "true") })
			return slices.Equal(got, want)
		}, deadline, tick, "%v", want)
		w.mu.Lock()
		w.changes = nil
		w.mu.Unlock()
	}
	requireChanges() // nothing was served
	w.put(bindingOf("a", "x", boundTo(widgets, "same", "h"), boundTo(gadgets, "gadgets", "h")))
	w.put(bindingOf("a", "x", boundTo(widgets, "two", "h"), boundTo(gadgets, "gadgets", "h")))
	requireChanges("falsea widgets h false", "true widgets h false")
	w.put(bindingOf("a", "x", boundTo(widgets, "two", "h")))
	requireChanges("falsea gadgets h true", "true gadgets h true")
	w.remove("b", "x")
	requireChanges("falseb widgets h true", "true widgets h false") // as if there were watches with the schema of b
}

// TestFree: bindings compete for names with each other.
func TestFree(t *testing.T) {
	w := newShard(t).run()
	w.schema("one", widgets, "size", 1)
	w.schema("two", widgets, "weight", 2)
	w.schema("gadgets", gadgets, "size", 1)
	w.put(bindingOf("a", "x", boundTo(widgets, "one", "h")))
	names, requested := &allNames{}, 0
	for _, tc := range []struct {
		binding string
		schemas []types.UID
		by      string
	}{
		{"y", []types.UID{"gadgets"}, ""},
		{"y", []types.UID{"gadgets", "two"}, `APIBinding "x"`},
		{"x", []types.UID{"gadgets", "two"}, ""},
	} {
		release, conflict, err := w.Reserve(t.Context(), names, "a", tc.binding, tc.schemas)
		require.NoError(t, err)
		if tc.by == "" {
			require.Nil(t, conflict)
			require.Equal(t, 1, names.held)
			release()
		} else {
			require.Equal(t, &definitions.Conflict{Group: "example.org", Name: "widgets", By: tc.by}, conflict)
			require.Equal(t, requested, names.requested, "conflicts in the index must not cause requests")
		}
		requested = names.requested
		require.Zero(t, names.held)
	}
}

// TestFreeIsReadFromStorage: names that a former leader has assigned to a binding are in use, even if this server has not
// observed the binding.
func TestFreeIsReadFromStorage(t *testing.T) {
	w := newShard(t)
	w.schema("one", widgets, "size", 1)
	w.schema("two", widgets, "weight", 2)
	w.server.Put(t, kinds.APIBindings.GroupVersionResource, bindingOf("a", "x", boundTo(widgets, "one", "h")))
	names := &allNames{}
	release, conflict, err := w.Reserve(t.Context(), names, "a", "y", []types.UID{"two"})
	require.NoError(t, err)
	require.Nil(t, release)
	require.Equal(t, &definitions.Conflict{Group: "example.org", Name: "widgets", By: `APIBinding "x"`}, conflict)
	require.Equal(t, 1, names.requested, "names must be reserved before bindings are read")
	require.Zero(t, names.held)
	for cluster, binding := range map[string]string{"b": "y", "a": "x"} {
		release, conflict, err = w.Reserve(t.Context(), names, logicalcluster.Name(cluster), binding, []types.UID{"two"})
		require.NoError(t, err)
		require.Nil(t, conflict)
		release()
	}
}

// TestYield: definitions must yield the names that a binding has bound, if there are definitions in its groups.
func TestYield(t *testing.T) {
	w := newShard(t).run()
	w.schema("one", widgets, "size", 1)
	w.put(bindingOf("a", "x", boundTo(widgets, "one", "h")))
	names := &allNames{}
	require.NoError(t, w.Yield(t.Context(), names, "a", "x"))
	require.Empty(t, names.yielded)
	names.defines = widgets.Group
	require.NoError(t, w.Yield(t.Context(), names, "a", "y"))
	require.Empty(t, names.yielded)
	require.NoError(t, w.Yield(t.Context(), names, "a", "x"))
	require.Len(t, names.yielded, 1)
	require.Equal(t, widgets.Resource, names.yielded[0].Names.Plural)
}

// allNames grants all names.
type allNames struct {
	requested, held int
	defines         string // a group
	yielded         []definitions.Wanted
}

func (e *allNames) Defines(_ logicalcluster.Name, group string) bool { return group == e.defines }

func (e *allNames) Yield(_ context.Context, _ logicalcluster.Name, wanted []definitions.Wanted) error {
	e.yielded = append(e.yielded, wanted...)
	return nil
}

func (e *allNames) Reserve(context.Context, logicalcluster.Name, string, definitions.Source, []definitions.Wanted) (func(), *definitions.Conflict, error) {
	e.requested++
	e.held++
	return func() { e.held-- }, nil, nil
}

// TestModel: after any sequence of writes, the index agrees with the bindings and keeps nothing of deleted ones.
func TestModel(t *testing.T) {
	w := newShard(t).run()
	random := rand.New(rand.NewPCG(1, 2))
	model := map[string]*apisv1alpha2.APIBinding{}
	clusters, names := []string{"a", "b", "c"}, []string{"x", "y"}
	for _, uid := range []types.UID{"w1", "w2"} {
		w.schema(uid, widgets, string(uid), 1)
	}
	w.schema("g1", gadgets, "size", 1)
	for range 300 {
		cluster, name := clusters[random.IntN(3)], names[random.IntN(2)]
		key := cluster + "/" + name
		if model[key] != nil && random.IntN(3) == 0 {
			w.remove(cluster, name)
			delete(model, key)
			continue
		}
		var resources []apisv1alpha2.BoundAPIResource
		if random.IntN(2) == 0 {
			resources = append(resources, boundTo(widgets, fmt.Sprint("w", 1+random.IntN(2)), fmt.Sprint("h", random.IntN(2))))
		}
		if random.IntN(2) == 0 {
			resources = append(resources, boundTo(gadgets, "g1", "h0"))
		}
		model[key] = bindingOf(cluster, name, resources...)
		w.put(model[key])

		identities := map[string]bool{}
		for _, cluster := range clusters {
			served := map[schema.GroupResource]bool{}
			for _, name := range names {
				b := model[cluster+"/"+name]
				if b == nil {
					continue
				}
				for _, r := range b.Status.BoundResources {
					served[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = true
					identities[r.Resource+r.Schema.IdentityHash] = true
				}
			}
			for _, resource := range []schema.GroupResource{widgets, gadgets} {
				require.Equal(t, served[resource], w.resolve(definitions.Lookup{Cluster: in(cluster), Resource: resource}) != nil)
			}
		}
		for _, identity := range []string{"h0", "h1"} {
			for _, resource := range []schema.GroupResource{widgets, gadgets} {
				require.Equal(t, identities[resource.Resource+identity], w.resolve(definitions.Lookup{Cluster: wildcard, Resource: resource, Identity: identity}) != nil)
			}
		}
	}
	for _, cluster := range clusters {
		for _, name := range names {
			if model[cluster+"/"+name] != nil {
				w.remove(cluster, name)
			}
		}
	}
	w.Index.table.mu.RLock()
	defer w.Index.table.mu.RUnlock()
	require.Empty(t, w.clusters)
	require.Empty(t, w.lists)
	require.Empty(t, w.identities)
}

// TestMaximalPermission: the provider permits the requests that its roles allow for the prefixed user.
func TestMaximalPermission(t *testing.T) {
	w := newShard(t).run()
	w.schema("one", widgets, "size", 1)
	w.put(bindingOf("a", "x", boundTo(widgets, "one", "h")))
	var requested []string
	permits := w.MaximalPermission(authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		cluster, _ := request.ClusterFrom(ctx)
		require.Equal(t, logicalcluster.Name("provider"), cluster.Name)
		require.Empty(t, a.GetUser().GetExtra())
		requested = append(requested, fmt.Sprint(a.GetUser().GetName(), a.GetUser().GetGroups(), a.GetVerb()))
		return authorizer.DecisionNoOpinion, "", nil
	}))
	permit := func(cluster, resource string, u user.Info) authorizer.Decision {
		requested = nil
		decision, reason, err := permits(request.WithClusterName(t.Context(), logicalcluster.Name(cluster)), authorizer.AttributesRecord{
			User: u, Verb: "get", APIGroup: "example.org", Resource: resource, ResourceRequest: true,
		})
		require.NoError(t, err)
		if decision != authorizer.DecisionAllow {
			require.Equal(t, notPermitted, reason)
		}
		return decision
	}
	alice := &user.DefaultInfo{Name: "alice", Groups: []string{"devs"}}
	require.Equal(t, authorizer.DecisionAllow, permit("a", "widgets", alice), "a removed export must not deny requests")
	export := &apisv1alpha2.APIExport{}
	w.exports[client.Key{Cluster: "provider", Name: "e"}] = export
	require.Equal(t, authorizer.DecisionAllow, permit("a", "widgets", alice), "an export without a policy must not deny requests")
	export.Spec.MaximalPermissionPolicy = &apisv1alpha2.MaximalPermissionPolicy{Local: &apisv1alpha2.LocalAPIExportPolicy{}}
	require.Equal(t, authorizer.DecisionAllow, permit("a", "gadgets", alice), "requests for resources that are not bound must not be denied")
	require.Equal(t, authorizer.DecisionAllow, permit("b", "widgets", alice), "requests in logical clusters without bindings must not be denied")
	require.Empty(t, requested)
	require.Equal(t, authorizer.DecisionNoOpinion, permit("a", "widgets", alice))
	require.Equal(t, []string{"apis.kcp.io:binding:alice[apis.kcp.io:binding:devs]get"}, requested)
	account := &user.DefaultInfo{Name: "system:serviceaccount:default:robot", Groups: []string{"system:serviceaccounts"}, Extra: map[string][]string{
		request.ExtraClusterName: {"a"},
	}}
	require.Equal(t, authorizer.DecisionNoOpinion, permit("a", "widgets", account))
	require.Equal(t, []string{"apis.kcp.io:binding:system:kcp:serviceaccount:a:default:robot[apis.kcp.io:binding:system:serviceaccounts]get"}, requested)

	// Names that the consumer can assign must not be the provider's.
	scope := map[string][]string{request.ExtraScopes: {"cluster:a"}}
	scoped := &user.DefaultInfo{Name: "alice", Groups: []string{"devs", user.AllAuthenticated}, Extra: scope}
	require.Equal(t, authorizer.DecisionNoOpinion, permit("a", "widgets", scoped))
	require.Equal(t, []string{"apis.kcp.io:binding:system:anonymous[apis.kcp.io:binding:system:authenticated apis.kcp.io:binding:system:cluster:a]get"}, requested)
	scoped.Extra = map[string][]string{request.ExtraScopes: {"cluster:a,cluster:provider"}}
	require.Equal(t, authorizer.DecisionNoOpinion, permit("a", "widgets", scoped))
	require.Equal(t, []string{"apis.kcp.io:binding:alice[apis.kcp.io:binding:devs apis.kcp.io:binding:system:authenticated]get"}, requested)
	account.Extra = scope
	require.Equal(t, authorizer.DecisionNoOpinion, permit("a", "widgets", account))
	require.Equal(t, []string{"apis.kcp.io:binding:system:kcp:serviceaccount:a:default:robot[apis.kcp.io:binding:system:serviceaccounts]get"}, requested)
	warranted := &user.DefaultInfo{Name: "bob", Extra: map[string][]string{request.ExtraWarrant: {`{"user":"alice","extra":{"authentication.kcp.io/scopes":["cluster:a"]}}`}}}
	require.Equal(t, authorizer.DecisionNoOpinion, permit("a", "widgets", warranted))
	require.Equal(t, []string{"apis.kcp.io:binding:bob[]get", "apis.kcp.io:binding:system:anonymous[apis.kcp.io:binding:system:unauthenticated]get"}, requested)
}
