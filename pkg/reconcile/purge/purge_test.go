package purge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// fake is a logical cluster of objects with only metadata.
type fake struct {
	objects map[schema.GroupVersionResource][]metav1.PartialObjectMetadata
	fail    map[string]error
	log     []string
}

func (f *fake) Resource(gvr schema.GroupVersionResource) metadata.Getter {
	return &resource{fake: f, gvr: gvr}
}

type resource struct {
	*fake
	metadata.ResourceInterface

	gvr       schema.GroupVersionResource
	namespace string
}

func (r *resource) Namespace(namespace string) metadata.ResourceInterface {
	return &resource{fake: r.fake, gvr: r.gvr, namespace: namespace}
}

func (r *resource) note(verb, name string) error {
	r.log = append(r.log, fmt.Sprintf("%s %s %s/%s", verb, r.gvr.Resource, r.namespace, name))
	return r.fail[verb]
}

func (r *resource) List(_ context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	if err := r.note("list", options.Continue); err != nil {
		return nil, err
	}
	list := &metav1.PartialObjectMetadataList{}
	for _, o := range r.objects[r.gvr] {
		if r.namespace == "" || o.Namespace == r.namespace {
			list.Items = append(list.Items, o)
		}
	}
	// Two pages, regardless of the limit.
	if half := len(list.Items) / 2; half > 0 {
		if options.Continue == "" {
			list.Items, list.Continue = list.Items[:half], "more"
		} else {
			list.Items = list.Items[half:]
		}
	}
	return list, nil
}

func (r *resource) drop(match func(metav1.PartialObjectMetadata) bool) {
	r.objects[r.gvr] = slices.DeleteFunc(r.objects[r.gvr], func(o metav1.PartialObjectMetadata) bool {
		return match(o) && len(o.Finalizers) == 0
	})
}

func (r *resource) DeleteCollection(context.Context, metav1.DeleteOptions, metav1.ListOptions) error {
	err := r.note("deletecollection", "")
	if err == nil {
		r.drop(func(o metav1.PartialObjectMetadata) bool { return o.Namespace == r.namespace })
	}
	return err
}

func (r *resource) Delete(_ context.Context, name string, options metav1.DeleteOptions, _ ...string) error {
	err := r.note("delete", name)
	if err == nil {
		r.drop(func(o metav1.PartialObjectMetadata) bool {
			return o.Name == name && o.Namespace == r.namespace && o.UID == *options.Preconditions.UID
		})
	}
	return err
}

// present reports which resources have objects; things are unknown.
func (f *fake) present(_ context.Context, _ logicalcluster.Name, namespace string, resources []schema.GroupResource) (some []bool, err error) {
	for _, r := range resources {
		some = append(some, r.Resource == "things" || slices.ContainsFunc(f.objects[r.WithVersion("v1")], func(o metav1.PartialObjectMetadata) bool {
			return namespace == "" || o.Namespace == namespace
		}))
	}
	return some, f.fail["look"]
}

// free deletes objects without finalizers of some resources; others can only be deleted through the API.
func (f *fake) free(direct ...schema.GroupVersionResource) Query {
	return func(_ context.Context, _ logicalcluster.Name, _ string, resources []schema.GroupResource) (others []bool, err error) {
		for _, gvr := range direct {
			(&resource{fake: f, gvr: gvr}).drop(func(metav1.PartialObjectMetadata) bool { return true })
		}
		for _, r := range resources {
			others = append(others, !slices.Contains(direct, r.WithVersion("v1")) || len(f.objects[r.WithVersion("v1")]) > 0)
		}
		return others, f.fail["free"]
	}
}

func object(namespace, name string, finalizers ...string) metav1.PartialObjectMetadata {
	return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), Finalizers: finalizers}}
}

var (
	configs = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	things  = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}
)

func resources() []Resource {
	return []Resource{
		{GroupVersionResource: configs, Namespaced: true, Collection: true},
		{GroupVersionResource: secrets, Namespaced: true},
		{GroupVersionResource: things, Collection: true},
	}
}

func TestDelete(t *testing.T) {
	cannot := errors.New("cannot")
	full := func() map[schema.GroupVersionResource][]metav1.PartialObjectMetadata {
		return map[schema.GroupVersionResource][]metav1.PartialObjectMetadata{
			configs: {object("a", "1"), object("a", "2"), object("b", "1")},
			secrets: {object("a", "1"), object("b", "1", "keep.me/here")},
		}
	}
	cases := map[string]struct {
		fake      *fake
		namespace string
		direct    []schema.GroupVersionResource
		log       []string
		resources string
		waiting   string
		fails     bool
	}{
		"empty": {fake: &fake{}, log: []string{"list things /"}},
		"everywhere": {
			fake: &fake{objects: full()},
			log: []string{
				"list configmaps /", "list configmaps /more", "deletecollection configmaps a/", "deletecollection configmaps b/",
				"list secrets /", "list secrets /more", "delete secrets a/1", "delete secrets b/1",
				"list things /", "list secrets /",
			},
			resources: "secrets has 1 objects", waiting: "keep.me/here in 1 objects",
		},
		"one namespace": {
			fake: &fake{objects: full()}, namespace: "a",
			log: []string{
				"list configmaps a/", "list configmaps a/more", "deletecollection configmaps a/",
				"list secrets a/", "delete secrets a/1",
				"list things a/",
			},
		},
		"objects without finalizers deleted in the storage": {
			fake: &fake{objects: full()}, direct: []schema.GroupVersionResource{configs, secrets},
			log: []string{
				"list secrets /", "delete secrets b/1",
				"list things /", "list secrets /",
			},
			resources: "secrets has 1 objects", waiting: "keep.me/here in 1 objects",
		},
		"failing deletion in the storage": {
			fake:      &fake{objects: full(), fail: map[string]error{"free": cannot}},
			log:       []string{"list configmaps /", "list configmaps /more", "list secrets /", "list secrets /more", "list things /"},
			resources: "configmaps has 3 objects, secrets has 2 objects", waiting: "keep.me/here in 1 objects", fails: true,
		},
		"failing list": {
			fake: &fake{objects: full(), fail: map[string]error{"list": cannot}},
			log:  []string{"list configmaps /", "list secrets /", "list things /"}, fails: true,
		},
		"failing deletion": {
			fake: &fake{objects: full(), fail: map[string]error{"deletecollection": cannot}},
			log: []string{
				"list configmaps /", "list configmaps /more", "deletecollection configmaps a/", "deletecollection configmaps b/",
				"list secrets /", "list secrets /more", "delete secrets a/1", "delete secrets b/1",
				"list things /", "list configmaps /", "list configmaps /more", "list secrets /",
			},
			resources: "configmaps has 3 objects, secrets has 1 objects", waiting: "keep.me/here in 1 objects", fails: true,
		},
		"failing check for objects": {fake: &fake{objects: full(), fail: map[string]error{"look": cannot}}, fails: true},
		"removed resource": {
			fake: &fake{objects: full(), fail: map[string]error{"list": apierrors.NewNotFound(schema.GroupResource{}, "")}},
			log:  []string{"list configmaps /", "list secrets /", "list things /"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			outcome := Delete(t.Context(), tc.fake, Stored{Any: tc.fake.present, Free: tc.fake.free(tc.direct...)}, "c", tc.namespace, resources())
			require.Equal(t, tc.log, tc.fake.log)
			require.Equal(t, tc.resources, outcome.Resources())
			require.Equal(t, tc.waiting, outcome.WaitingFor())
			require.Equal(t, tc.fails, outcome.Err != nil)
			require.Equal(t, !tc.fails && tc.resources == "", outcome.Done())
		})
	}
}

func TestDiscover(t *testing.T) {
	// An old server: one document for each group, and one group fails.
	documents := map[string]string{
		"/api":                 `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis":                `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"example.com","versions":[{"groupVersion":"example.com/v2","version":"v2"},{"groupVersion":"example.com/v1","version":"v1"}],"preferredVersion":{"groupVersion":"example.com/v2","version":"v2"}},{"name":"broken.com","versions":[{"groupVersion":"broken.com/v1","version":"v1"}],"preferredVersion":{"groupVersion":"broken.com/v1","version":"v1"}}]}`,
		"/api/v1":              `{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"configmaps","namespaced":true,"kind":"ConfigMap","verbs":["list","delete","deletecollection"]},{"name":"namespaces","kind":"Namespace","verbs":["list","delete"]},{"name":"namespaces/finalize","kind":"Namespace","verbs":["update"]},{"name":"bindings","kind":"Binding","verbs":["create"]}]}`,
		"/apis/example.com/v1": `{"kind":"APIResourceList","groupVersion":"example.com/v1","resources":[{"name":"things","kind":"Thing","verbs":["list","delete"]},{"name":"olds","kind":"Old","verbs":["list","delete"]}]}`,
		"/apis/example.com/v2": `{"kind":"APIResourceList","groupVersion":"example.com/v2","resources":[{"name":"things","kind":"Thing","verbs":["list","delete"]}]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		document, ok := documents[r.URL.Path]
		if !ok {
			http.Error(w, "broken", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(document))
	}))
	defer server.Close()
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
	require.NoError(t, err)

	found, err := Discover(t.Context(), client)
	require.ErrorContains(t, err, "broken.com")
	names := make([]string, 0, len(found))
	for _, r := range found {
		names = append(names, fmt.Sprintf("%s/%s %t %t", r.GroupResource(), r.Version, r.Namespaced, r.Collection))
	}
	slices.Sort(names)
	require.Equal(t, []string{
		"configmaps/v1 true true",
		"namespaces/v1 false false",
		"olds.example.com/v1 false false",
		"things.example.com/v2 false false",
	}, names, "each resource must be returned once, in its preferred version, if it can be listed and deleted")
}

// TestStored: selected resources are returned in order, and none after a failure.
func TestStored(t *testing.T) {
	resources := []Resource{{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "secrets"}}, {GroupVersionResource: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}}}
	stored := Stored{
		Any: func(_ context.Context, cluster logicalcluster.Name, namespace string, queried []schema.GroupResource) ([]bool, error) {
			require.Equal(t, logicalcluster.Name("c"), cluster)
			require.Equal(t, []schema.GroupResource{{Resource: "secrets"}, {Group: "example.com", Resource: "widgets"}}, queried)
			return []bool{false, namespace == "n"}, nil
		},
		Free: func(context.Context, logicalcluster.Name, string, []schema.GroupResource) ([]bool, error) {
			return nil, errors.New("etcd is unavailable")
		},
	}
	present, err := stored.Any.choose(t.Context(), "c", "n", resources)
	require.NoError(t, err)
	require.Equal(t, resources[1:], present)
	present, err = stored.Any.choose(t.Context(), "c", "", resources)
	require.NoError(t, err)
	require.Empty(t, present)
	present, err = stored.Any.choose(t.Context(), "c", "n", nil)
	require.NoError(t, err)
	require.Empty(t, present, "storage must not be queried without resources")
	_, err = stored.Free.choose(t.Context(), "c", "", resources)
	require.ErrorContains(t, err, "etcd is unavailable")
}
