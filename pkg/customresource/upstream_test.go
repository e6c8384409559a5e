package customresource

import (
	"context"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/util/webhook"

	"github.com/shardplane/shardplane/pkg/storage"
)

// The synthetic lister relies on two properties of upstream's handler that only its code documents. If a test
// fails after an update, fix server.go, not the test.

// recorder records the calls of the synthetic lister and the storage.
type recorder struct {
	*syntheticLister
	*storesOf

	mu  sync.Mutex
	log []string
	// building is called when storage is requested.
	building func()
}

// storesOf returns the storage.
type storesOf struct{ generic.RESTOptionsGetter }

const byKey, byName, forStorage = "by one-time key", "by name", "storage"

func (a *recorder) record(event string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log = append(a.log, event)
}

// take returns and clears the log.
func (a *recorder) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	log := a.log
	a.log = nil
	return log
}

func (a *recorder) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	if strings.Contains(name, "#") {
		a.record(byName + " " + name)
	} else {
		a.record(byKey)
	}
	return a.syntheticLister.Get(name)
}

func (a *recorder) Lister() listers.CustomResourceDefinitionLister { return a }

func (a *recorder) GetRESTOptions(resource schema.GroupResource, example apiruntime.Object) (generic.RESTOptions, error) {
	a.record(forStorage)
	if a.building != nil {
		a.building()
	}
	return a.storesOf.GetRESTOptions(resource, example)
}

// startRecorded starts a server with recorded calls.
func startRecorded(t *testing.T) (*testServer, *recorder) {
	t.Helper()
	a := &recorder{}
	s := startServer(t, serverOptions{assembled: func(s *Server) {
		a.syntheticLister, a.storesOf = s.lister, &storesOf{s.stores}
		upstream, err := apiextensionsserver.NewCustomResourceDefinitionHandler(
			nil, nil, a, http.HandlerFunc(s.serveNext), a, storage.NewDryRunAdmission(), nil,
			webhook.NewDefaultServiceResolver(), webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, nil, nil),
			1, authorizerfactory.NewAlwaysAllowAuthorizer(), time.Minute, time.Minute, nil, 0)
		require.NoError(t, err)
		s.upstream = upstream
	}})
	return s, a
}

// TestUpstreamGetsDefinitionOncePerRequest: for each request the handler first gets "<resource>.<group>" of
// the request info in the context from its lister, and only once.
func TestUpstreamGetsDefinitionOncePerRequest(t *testing.T) {
	t.Parallel()
	s, a := startRecorded(t)
	s.CreateCRD(t, "one", widgetCRD(nil))
	client := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	a.take()
	created := mustCreate(t, client, widget("a", map[string]any{"size": int64(1)}))
	first := a.take()
	require.Equal(t, byKey, first[0], "the handler must get the definition of the request first")
	require.NotContains(t, first[1:], byKey, "the handler must get the definition of the request once")
	for name, send := range map[string]func(ctx context.Context) error{
		"get": func(ctx context.Context) error { _, err := client.Get(ctx, "a", metav1.GetOptions{}); return err },
		"update": func(ctx context.Context) error {
			_, err := client.Update(ctx, created, metav1.UpdateOptions{})
			return err
		},
		"status": func(ctx context.Context) error {
			_, err := client.Get(ctx, "a", metav1.GetOptions{}, "status")
			return err
		},
		"watch": func(ctx context.Context) error {
			w, err := client.Watch(ctx, metav1.ListOptions{})
			if err == nil {
				w.Stop()
			}
			return err
		},
		"metadata": func(ctx context.Context) error {
			_, err := s.Metadata(t, "one").Resource(widgets).List(ctx, metav1.ListOptions{})
			return err
		},
		"collection": func(ctx context.Context) error {
			return client.DeleteCollection(ctx, metav1.DeleteOptions{DryRun: []string{"All"}}, metav1.ListOptions{})
		},
	} {
		require.NoError(t, send(t.Context()), name)
		require.Equal(t, []string{byKey}, a.take(), "%s: the handler must only get the definition of the request once", name)
	}
}

// TestUpstreamGetsDefinitionBeforeStorage: the handler gets a definition by its own name only
// when it creates serving info, under its own lock, and then requests storage for this definition.
func TestUpstreamGetsDefinitionBeforeStorage(t *testing.T) {
	t.Parallel()
	s, a := startRecorded(t)
	clusters := []string{"one", "two", "three", "four"}
	for _, cluster := range clusters {
		s.CreateCRD(t, cluster, widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{cluster: {Type: "string"}}))
	}
	a.take()
	// All requests were accepted before the first serving info is created.
	a.building = func() {
		for range 1000 {
			a.mu.Lock()
			all := len(slices.DeleteFunc(slices.Clone(a.log), func(what string) bool { return what != byKey })) == len(clusters)
			a.mu.Unlock()
			if all {
				break
			}
			runtime.Gosched()
		}
		for range 1000 { // proceed as far as possible
			runtime.Gosched()
		}
	}
	var requests sync.WaitGroup
	for _, cluster := range clusters {
		client := s.Dynamic(t, cluster).Resource(widgets).Namespace("default")
		requests.Go(func() {
			_, err := client.Create(t.Context(), widget("a", map[string]any{cluster: "x"}), metav1.CreateOptions{})
			assert.NoError(t, err)
		})
	}
	requests.Wait()
	made := slices.DeleteFunc(a.take(), func(what string) bool { return what == byKey })
	names := map[string]bool{}
	for i, what := range made {
		if what != forStorage {
			names[what] = true
			require.Less(t, i+1, len(made), "a definition was requested by name, but no storage")
			require.Equal(t, forStorage, made[i+1], "the handler must request the storage after the definition by name: %v", made)
		}
	}
	require.NotEqual(t, forStorage, made[0], "the handler must request the definition by name before the storage")
	require.Len(t, names, len(clusters))
}
