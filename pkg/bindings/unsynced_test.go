package bindings_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/bindings"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/background"
)

const (
	storedBinding = `"metadata":{"name":"b","resourceVersion":"2","annotations":{"kcp.io/cluster":"consumer"}},"spec":{"reference":{"export":{"name":"e"}}},"status":{"apiExportClusterName":"provider","boundResources":[{"group":"example.org","resource":"widgets","schema":{"name":"v1.widgets.example.org","UID":"u","identityHash":"h"},"storageVersions":["v1"]}]}}`
	stored        = `{"kind":"APIBindingList","apiVersion":"apis.kcp.io/v1alpha2","metadata":{"resourceVersion":"2"},"items":[{` + storedBinding + `]}`
	addedEvent    = `{"type":"ADDED","object":{"kind":"APIBinding","apiVersion":"apis.kcp.io/v1alpha2",` + storedBinding + `}`
)

// newIndex returns an empty index of bindings, which runs if run is set. list serves the stored bindings.
func newIndex(t *testing.T, run bool, export *apisv1alpha2.APIExport, list http.HandlerFunc) *bindings.Index {
	t.Helper()
	return newWatchingIndex(t, run, export, list, nil)
}

// localTo returns a client of a server with JSON responses.
func localTo(t *testing.T, handler http.HandlerFunc) *client.Factory {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		handler(w, r)
	}))
	t.Cleanup(server.Close)
	local, err := client.NewFactory(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	t.Cleanup(local.CloseIdleConnections)
	return local
}

const noCopies = `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[]}`

// localIndex returns an index that only uses its own server.
func localIndex(t *testing.T, handler http.HandlerFunc) *bindings.Index {
	t.Helper()
	index, err := bindings.NewBindingIndex(bindings.Alone(bindings.Config{Local: localTo(t, handler)}))
	require.NoError(t, err)
	return index
}

// newWatchingIndex is newIndex for an index that watches events.
func newWatchingIndex(t *testing.T, run bool, export *apisv1alpha2.APIExport, list http.HandlerFunc, events <-chan string) *bindings.Index {
	t.Helper()
	local := localTo(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/clusters/consumer/"):
			list(w, r)
		case r.URL.Query().Get("watch") != "":
			_, _ = w.Write([]byte(`{"type":"BOOKMARK","object":{"kind":"APIBinding","apiVersion":"apis.kcp.io/v1alpha2","metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}`))
			for {
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
					return
				case event := <-events:
					_, _ = w.Write([]byte(event))
				}
			}
		default:
			_, _ = w.Write([]byte(`{"kind":"APIBindingList","apiVersion":"apis.kcp.io/v1alpha2","metadata":{"resourceVersion":"1"},"items":[]}`))
		}
	})
	index, err := bindings.NewBindingIndex(bindings.Alone(bindings.Config{
		Local: local,
		Export: func(client.Key) (*apisv1alpha2.APIExport, error) {
			if export == nil {
				return nil, apierrors.NewNotFound(schema.GroupResource{}, "e")
			}
			return export, nil
		},
		Defined: func(_ context.Context, _ logicalcluster.Name, resource schema.GroupResource) bool {
			return resource == defined
		},
		WaitForExports: func(context.Context) error {
			if export == nil {
				return errors.New("not synced")
			}
			return nil
		},
	}))
	require.NoError(t, err)
	if run {
		background.Run(t.Context(), t, index.Informer().Run)
		require.NoError(t, index.Informer().WaitForSync(t.Context()))
	}
	return index
}

func storedBindings(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(stored)) }

var lookup = definitions.Lookup{
	Cluster: request.Cluster{Name: "consumer"}, Resource: schema.GroupResource{Group: "example.org", Resource: "widgets"}, Version: "v1",
}

// defined is served without a binding.
var defined = schema.GroupResource{Group: "example.org", Resource: "gadgets"}

// denying permits nothing.
var denying = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, "", nil
})

// listing returns the attributes of a LIST.
func listing(resource schema.GroupResource) authorizer.Attributes {
	return authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "mallory"}, Verb: "list", APIGroup: resource.Group, Resource: resource.Resource, ResourceRequest: true,
	}
}

func withPolicy() *apisv1alpha2.APIExport {
	e := &apisv1alpha2.APIExport{}
	e.Spec.MaximalPermissionPolicy = &apisv1alpha2.MaximalPermissionPolicy{Local: &apisv1alpha2.LocalAPIExportPolicy{}}
	return e
}

// TestPolicyBeforeSync: until it is known whether the provider has a policy, nothing is permitted.
func TestPolicyBeforeSync(t *testing.T) {
	index := newIndex(t, false, withPolicy(), storedBindings)
	ctx, cancel := context.WithTimeout(request.WithClusterName(t.Context(), "consumer"), 10*time.Millisecond)
	defer cancel()
	decision, _, err := index.MaximalPermission(denying)(ctx, listing(lookup.Resource))
	require.NotEqual(t, authorizer.DecisionAllow, decision)
	require.ErrorContains(t, err, "try again")
}

// TestPolicyOfUnknownBinding: a resource that another server of the shard has just bound is not served to requests that were
// authorized without its policy.
func TestPolicyOfUnknownBinding(t *testing.T) {
	_, err := newIndex(t, true, withPolicy(), storedBindings).Read(t.Context(), lookup)
	require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
	seconds, ok := apierrors.SuggestsClientDelay(err)
	require.True(t, ok)
	require.Equal(t, 1, seconds)

	_, err = newIndex(t, true, nil, storedBindings).Read(t.Context(), lookup)
	require.ErrorContains(t, err, "try again", "requests must fail if the policy is unknown")
}

// TestCatchUp: the policy applies as soon as a binding is stored, and resources that are served otherwise need no read.
func TestCatchUp(t *testing.T) {
	var lists atomic.Int32
	events := make(chan string)
	index := newWatchingIndex(t, true, withPolicy(), func(w http.ResponseWriter, r *http.Request) {
		lists.Add(1)
		storedBindings(w, r)
		go func() {
			select {
			case events <- addedEvent:
			case <-t.Context().Done():
			}
		}()
	}, events)
	ctx := request.WithClusterName(t.Context(), "consumer")
	catchUp := func(resource schema.GroupResource) bool {
		more, err := index.CatchUp(ctx, listing(resource))
		require.NoError(t, err)
		return more
	}
	require.False(t, catchUp(defined))
	require.Zero(t, lists.Load())
	require.True(t, catchUp(lookup.Resource))
	decision, _, err := index.MaximalPermission(denying)(ctx, listing(lookup.Resource))
	require.NoError(t, err)
	require.Equal(t, authorizer.DecisionNoOpinion, decision)
	require.False(t, catchUp(lookup.Resource), "the binding must be in the index")
	require.EqualValues(t, 1, lists.Load())
	require.False(t, catchUp(schema.GroupResource{Group: "example.org", Resource: "unknown"}))
}

// TestReadsShare: requests for unknown resources share reads, but never get the result of an earlier read.
func TestReadsShare(t *testing.T) {
	var lists, running atomic.Int32
	begun, proceed := make(chan struct{}, 100), make(chan struct{})
	index := newIndex(t, true, withPolicy(), func(w http.ResponseWriter, r *http.Request) {
		lists.Add(1)
		if running.Add(1) > 1 {
			t.Error("two reads at a time")
		}
		defer running.Add(-1)
		begun <- struct{}{}
		select {
		case <-proceed:
		case <-r.Context().Done():
		}
		storedBindings(w, r)
	})
	other := lookup
	other.Resource.Resource = "unknown"
	var reading sync.WaitGroup
	read := func() {
		reading.Go(func() {
			d, err := index.Read(t.Context(), other)
			if d != nil || err != nil {
				t.Errorf("%v, %v", d, err)
			}
		})
	}
	read()
	<-begun
	for range 50 {
		read()
	}
	require.Eventually(t, func() bool { return index.Next("consumer") == 50 }, time.Minute, time.Millisecond)
	close(proceed)
	reading.Wait()
	require.EqualValues(t, 2, lists.Load())
}
