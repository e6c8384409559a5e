package storage

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
)

// TestHubIsRefilledAfterAGap verifies that clients must retry while the hub is filled again, and that
// pages are served by etcd.
func TestHubIsRefilledAfterAGap(t *testing.T) {
	t.Parallel()
	b := backendOf(t, BackendConfig{})
	ctx := in(t.Context(), "aa")
	create(ctx, t, open(t, b, podsGR), newPod("ns", "one"))
	var s *tenantStorage
	opened, refilling, released := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var keys atomic.Int64 // requested for the only pod, once each time the watch cache is filled
	s = openWith(t, b, podsGR, podCodec(t), func(obj runtime.Object) (string, error) {
		switch keys.Add(1) {
		case 1:
			<-opened
			s.hub.Key(newPod("ns", "not-listed"))
		case 2:
			close(refilling)
			<-released
		}
		return podKey(obj)
	})
	release := sync.OnceFunc(func() { close(released) })
	t.Cleanup(release)
	close(opened)
	<-refilling
	s.readyWait = time.Millisecond
	server := serve(t, s)

	const initial = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	for _, query := range []string{"watch=true", "watch=true&resourceVersion=0", "watch=true&resourceVersion=1", "watch=true&resourceVersion=999999", initial, "", "resourceVersion=0"} {
		res := get(t, server, query)
		var status metav1.Status
		require.NoError(t, json.NewDecoder(res.Body).Decode(&status), query)
		require.Equal(t, http.StatusTooManyRequests, res.StatusCode, "%q: %v", query, status)
		seconds, err := strconv.Atoi(res.Header.Get("Retry-After"))
		require.NoError(t, err, query)
		require.Positive(t, seconds, query)
		require.EqualValues(t, seconds, status.Details.RetryAfterSeconds, query)
	}
	res := get(t, server, "limit=500")
	page, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode, "%s", page)
	require.Contains(t, string(page), `"name":"one"`)

	release()
	require.Eventually(t, func() bool { return s.cache.Ready() }, deadline, time.Millisecond)
	require.NoError(t, s.hub.WaitFresh(ctx, 0))
	events := json.NewDecoder(get(t, server, initial).Body)
	nextEvent := func() (name, kind string) {
		var event struct {
			Type   string
			Object metav1.PartialObjectMetadata
		}
		require.NoError(t, events.Decode(&event))
		return event.Object.Name, event.Type
	}
	for _, want := range []string{"ADDED one", "BOOKMARK "} {
		name, kind := nextEvent()
		require.Equal(t, want, kind+" "+name)
	}
	touch(ctx, t, s, "/pods/ns/one", 1)
	name, kind := nextEvent()
	require.Equal(t, "MODIFIED one", kind+" "+name)
}

// serve serves lists and watches of pods in one logical cluster like an API server.
func serve(t *testing.T, s *tenantStorage) *httptest.Server {
	t.Helper()
	pods := &genericregistry.Store{
		NewFunc:                  newObject,
		NewListFunc:              newList,
		DefaultQualifiedResource: podsGR,
		KeyRootFunc:              func(context.Context) string { return "/pods" },
		PredicateFunc: func(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
			return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: podAttrs}
		},
		TableConvertor: rest.NewDefaultTableConvertor(podsGR),
		Storage:        genericregistry.DryRunnableStorage{Storage: s, Codec: podCodec(t)},
	}
	scope := &handlers.RequestScope{
		Namer:      handlers.ContextBasedNaming{Namer: runtime.Namer(meta.NewAccessor()), ClusterScoped: true},
		Serializer: codecs, ParameterCodec: metav1.ParameterCodec, Convertor: scheme, Creater: scheme, Typer: scheme, UnsafeConvertor: runtime.UnsafeObjectConvertor(scheme),
		Kind: examplev1.SchemeGroupVersion.WithKind("Pod"), Resource: examplev1.SchemeGroupVersion.WithResource("pods"),
		HubGroupVersion: example.SchemeGroupVersion, MetaGroupVersion: metav1.SchemeGroupVersion, TableConvertor: pods.TableConvertor,
	}
	list := handlers.ListResource(pods, pods, scope, false, time.Minute)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := apirequest.WithRequestInfo(in(r.Context(), "aa"), &apirequest.RequestInfo{IsResourceRequest: true, Verb: "list", Resource: "pods", APIVersion: "v1"})
		list(w, r.WithContext(ctx))
	}))
	t.Cleanup(server.Close)
	return server
}

func get(t *testing.T, server *httptest.Server, query string) *http.Response {
	t.Helper()
	at := url.URL{Scheme: "http", Host: server.Listener.Addr().String(), Path: "/pods", RawQuery: query}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at.String(), http.NoBody)
	require.NoError(t, err)
	res, err := server.Client().Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}
