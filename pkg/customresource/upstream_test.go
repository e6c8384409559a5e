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

// The two facts about upstream's handler that the synthetic lister relies on are
// written down nowhere but in its code. If one of the tests here fails after an
// update, lister.go is to be changed, not the test.

// asked records what the upstream handler asks of the synthetic lister, and when
// it asks for storage.
type asked struct {
	*syntheticLister
	*storesOf

	mu  sync.Mutex
	log []string
	// building is called when storage is asked for.
	building func()
}

// storesOf gives the storage that is asked for.
type storesOf struct{ generic.RESTOptionsGetter }

const byKey, byName, forStorage = "by one-time key", "by name", "storage"

func (a *asked) note(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log = append(a.log, what)
}

// take returns the log, and begins another.
func (a *asked) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	log := a.log
	a.log = nil
	return log
}

func (a *asked) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	if strings.Contains(name, "#") {
		a.note(byName + " " + name)
	} else {
		a.note(byKey)
	}
	return a.syntheticLister.Get(name)
}

func (a *asked) Lister() listers.CustomResourceDefinitionLister { return a }

func (a *asked) GetRESTOptions(resource schema.GroupResource, example apiruntime.Object) (generic.RESTOptions, error) {
	a.note(forStorage)
	if a.building != nil {
		a.building()
	}
	return a.storesOf.GetRESTOptions(resource, example)
}

// startAsked starts a server whose upstream handler is listened to.
func startAsked(t *testing.T) (*testServer, *asked) {
	t.Helper()
	a := &asked{}
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

// TestUpstreamGetsADefinitionOncePerRequest pins the first fact: for each request
// the handler asks its lister once, before anything else, for
// "<resource>.<group>" of the request info that it finds in the context.
func TestUpstreamGetsADefinitionOncePerRequest(t *testing.T) {
	t.Parallel()
	s, a := startAsked(t)
	s.CreateCRD(t, "one", widgetCRD(nil))
	client := s.Dynamic(t, "one").Resource(widgets).Namespace("default")
	a.take()
	created := mustCreate(t, client, widget("a", map[string]any{"size": int64(1)}))
	first := a.take()
	require.Equal(t, byKey, first[0], "the handler gets the definition of the request before anything else")
	require.NotContains(t, first[1:], byKey, "and once")
	for name, ask := range map[string]func(ctx context.Context) error{
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
		require.NoError(t, ask(t.Context()), name)
		require.Equal(t, []string{byKey}, a.take(), "%s: the handler gets the definition of a request once, and nothing else", name)
	}
}

// TestUpstreamGetsADefinitionByNameJustBeforeItsStorage pins the second fact: the
// handler asks for a definition by its own name only when it makes serving info,
// under a lock of its own, and asks for storage next, for this definition.
func TestUpstreamGetsADefinitionByNameJustBeforeItsStorage(t *testing.T) {
	t.Parallel()
	s, a := startAsked(t)
	clusters := []string{"one", "two", "three", "four"}
	for _, cluster := range clusters {
		s.CreateCRD(t, cluster, widgetCRD(map[string]apiextensionsv1.JSONSchemaProps{cluster: {Type: "string"}}))
	}
	a.take()
	// All requests have been taken on before the first serving info is made.
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
		for range 1000 { // they get as far as they can
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
			require.Less(t, i+1, len(made), "a definition was asked for by name, but no storage")
			require.Equal(t, forStorage, made[i+1], "after a definition by name, the handler asks for its storage next: %v", made)
		}
	}
	require.NotEqual(t, forStorage, made[0], "before it asks for storage, the handler asks for a definition by name")
	require.Len(t, names, len(clusters))
}
