package bindings

import (
	"context"
	"slices"
	"testing"
	"time"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// add adds a schema of a resource, of which the last version is stored.
func (w *shard) add(
	copied *BoundSchema, of schema.GroupResource, scope apiextensionsv1.ResourceScope, kind, text string, versions ...string,
) {
	w.t.Helper()
	copied.Spec.Group, copied.Spec.Scope = of.Group, scope
	copied.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{
		Plural: of.Resource, Singular: of.Resource + "x", Kind: kind, ListKind: kind + "List",
	}
	for i, name := range versions {
		v := apis.APIResourceVersion{}
		v.Name, v.Served, v.Storage, v.Schema.Raw = name, true, i == len(versions)-1, []byte(text)
		copied.Spec.Versions = append(copied.Spec.Versions, v)
	}
	p, err := newPinned(copied)
	require.NoError(w.t, err)
	w.schemas.add(types.UID(copied.Original), p)
}

// schemaOf adds a schema of widgets.
func (w *shard) schemaOf(uid types.UID, scope apiextensionsv1.ResourceScope, kind string, versions ...string) {
	w.t.Helper()
	w.add(&BoundSchema{Original: string(uid)}, widgets, scope, kind, `{"type":"object"}`, versions...)
}

func storedIn(uid string, versions ...string) *apisv1alpha2.BoundAPIResource {
	b := boundTo(widgets, uid, "id")
	b.StorageVersions = versions
	return &b
}

// TestCheckReplacement: a schema replaces another one only if all stored objects can be read with it, in all logical clusters.
func TestCheckReplacement(t *testing.T) {
	t.Parallel()
	w := newShard(t).run()
	w.schemaOf("first", "Namespaced", "Widget", "v1")
	w.schemaOf("more", "Namespaced", "Widget", "v1", "v2")
	w.schemaOf("less", "Namespaced", "Widget", "v2")
	w.schemaOf("scope", "Cluster", "Widget", "v1")
	w.schemaOf("kind", "Namespaced", "Gizmo", "v1")
	for _, next := range []string{"first", "more", "less", "scope", "kind"} {
		require.NoError(t, w.CheckReplacement(t.Context(), nil, storedIn(next, "v1")), "any schema must be accepted if no objects are stored")
	}
	refused := map[string]string{"less": "spec.versions", "scope": "spec.scope", "kind": "spec.names.kind"}
	check := func(bound *apisv1alpha2.BoundAPIResource, reason error, why string) {
		t.Helper()
		require.NoError(t, w.CheckReplacement(t.Context(), bound, storedIn("more", "v2")), why)
		require.NoError(t, w.CheckReplacement(t.Context(), bound, storedIn("scope")), "%s: schemas in virtual storage must not be compared", why)
		for next, field := range refused {
			err := w.CheckReplacement(t.Context(), bound, storedIn(next, "v1"))
			require.ErrorIs(t, err, reason, "%s: %s", why, next)
			require.ErrorContains(t, err, field, "%s: %s", why, next)
			other := new(boundTo(widgets, next, "other"))
			require.NoError(t, w.CheckReplacement(t.Context(), nil, other), "objects of another identity must be ignored")
		}
	}
	check(storedIn("first", "v1"), apis.ErrInvalidSchema, "bound")
	w.put(bindingOf("other", "b", *storedIn("more", "v1", "v2")))
	check(nil, apis.ErrInUse, "bound elsewhere")
	require.NoError(t, w.CheckReplacement(t.Context(), storedIn("more", "v2"), storedIn("more", "v2")))
	w.put(bindingOf("other", "b", *storedIn("first", "v1")))
	require.NoError(t, w.CheckReplacement(t.Context(), storedIn("first", "v1"), storedIn("more", "v2")))
	w.remove("other", "b")
	for next := range refused {
		require.NoError(t, w.CheckReplacement(t.Context(), nil, storedIn(next, "v1")), "removed bindings must be ignored")
	}
	require.Empty(t, w.versions)
}

// TestReplacementsAreComparedWithTheLatest: a schema is compared with those of all stored bindings, even if the index does
// not have them yet.
func TestReplacementsAreComparedWithTheLatest(t *testing.T) {
	t.Parallel()
	w := newShard(t)
	w.schemaOf("first", "Namespaced", "Widget", "v1")
	w.schemaOf("less", "Namespaced", "Widget", "v2")
	last := revisionOf(w.server.Put(t, kinds.APIBindings.GroupVersionResource, bindingOf("other", "b", boundTo(widgets, "first", "id"))))
	w.config.LastChange = func(context.Context, uint64) (uint64, error) { return last, nil }
	next := boundTo(widgets, "less", "id")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, w.CheckReplacement(ctx, nil, &next), errNotSynced)
	w.run()
	require.ErrorIs(t, w.CheckReplacement(t.Context(), nil, &next), apis.ErrInUse)
}

// TestWildcardsReadAllVersions: a wildcard reads the objects of all consumers with a schema that has all storage versions, even
// if the original of another schema is newer, and its watches are notified of the change.
func TestWildcardsReadAllVersions(t *testing.T) {
	t.Parallel()
	w := newShard(t).run()
	w.schemaOf("both", "Namespaced", "Widget", "v1", "v2")
	w.schemaOf("later", "Namespaced", "Widget", "v1")
	w.schemas.cached("later").created = time.Now()
	read := func() *definitions.Schema {
		t.Helper()
		return w.resolve(definitions.Lookup{Cluster: wildcard, Resource: widgets, Identity: "id"}).Schema
	}
	both, later := w.schemas.cached("both").Schema, w.schemas.cached("later").Schema
	w.put(bindingOf("a", "x", *storedIn("later", "v1")))
	w.put(bindingOf("b", "x", *storedIn("later", "v1")))
	require.Equal(t, later, read())
	require.NoError(t, w.CheckReplacement(t.Context(), storedIn("later", "v1"), storedIn("both", "v2")))
	w.put(bindingOf("b", "x", *storedIn("both", "v1", "v2")))
	require.Equal(t, both, read(), "the schema with all storage versions must be used, even if another one is newer")
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.changes, func(c definitions.Change) bool { return c.Cluster.Wildcard && c.Schema == later })
	}, deadline, tick, "watches with the replaced schema are not notified")
	w.remove("b", "x")
	require.Equal(t, later, read(), "the newest schema must be used")
}
