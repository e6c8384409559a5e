package bindings_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/bindings"
)

// TestRoom holds that the copies of one provider's schemas are bounded in bytes: they
// stay when the provider deletes the originals, and are nobody's objects.
func TestRoom(t *testing.T) {
	for name, tc := range map[string]struct {
		bytes   int
		created bool
	}{
		"little":   {1 << 20, true},
		"too much": {256 << 20, false},
	} {
		t.Run(name, func(t *testing.T) {
			created := ""
			local := localTo(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					body, _ := io.ReadAll(r.Body)
					created = string(body)
					w.WriteHeader(http.StatusCreated)
					_, _ = w.Write([]byte(`{"kind":"BoundSchema","apiVersion":"internal.shardplane.io/v1alpha1","metadata":{"name":"u"}}`))
					return
				}
				if r.URL.Query().Get("labelSelector") != "internal.shardplane.io/provider=provider" {
					w.WriteHeader(http.StatusNotFound)
					return
				}
				_, _ = fmt.Fprintf(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"u","annotations":{"internal.shardplane.io/bytes":"999999999"}}},{"metadata":{"name":"other","annotations":{"internal.shardplane.io/bytes":"%d"}}}]}`, tc.bytes)
			})
			index, err := bindings.New(bindings.Config{Local: local})
			require.NoError(t, err)
			_, err = index.Pin(t.Context(), "u", func(context.Context) (*apis.APIResourceSchema, error) { return boundOriginal(), nil })
			if tc.created {
				require.NoError(t, err)
				require.Contains(t, created, `"internal.shardplane.io/provider":"provider"`)
				require.Contains(t, created, `"internal.shardplane.io/bytes":"`)
				return
			}
			require.ErrorIs(t, err, apis.ErrInvalidSchema)
			require.ErrorContains(t, err, "may be 268435456")
			require.Empty(t, created)
		})
	}
}

// TestTooLargeToKeep: a schema with more rules than can be stored with it cannot be served, and what
// binds it is not tried again and again.
func TestTooLargeToKeep(t *testing.T) {
	local := localTo(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"RequestEntityTooLarge","message":"it takes more","code":413}`))
			return
		}
		_, _ = w.Write([]byte(`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[]}`))
	})
	index, err := bindings.New(bindings.Config{Local: local})
	require.NoError(t, err)
	_, err = index.Pin(t.Context(), "u", func(context.Context) (*apis.APIResourceSchema, error) { return boundOriginal(), nil })
	require.ErrorIs(t, err, apis.ErrInvalidSchema)
	require.NotErrorIs(t, err, apis.ErrLimitReached)
	require.ErrorContains(t, err, "too large to be kept, with the APIConversion of its name if there is one: it takes more")
}

// TestCopyGoes: a copy that is deleted while it is pinned again is not taken for an original that does
// not exist, of which nothing would tell.
func TestCopyGoes(t *testing.T) {
	local := localTo(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodPost:
			w.WriteHeader(http.StatusConflict)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","code":409}`))
		case http.MethodPatch:
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`))
		default:
			_, _ = w.Write([]byte(`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[]}`))
		}
	})
	index, err := bindings.New(bindings.Config{Local: local})
	require.NoError(t, err)
	_, err = index.Pin(t.Context(), "u", func(context.Context) (*apis.APIResourceSchema, error) { return boundOriginal(), nil })
	require.ErrorContains(t, err, "it has just been deleted")
	require.False(t, apierrors.IsNotFound(err))
}

func boundOriginal() *apis.APIResourceSchema {
	s := &apis.APIResourceSchema{ObjectMeta: metav1.ObjectMeta{
		Name: "v1.widgets.example.org", UID: "u", Annotations: map[string]string{"kcp.io/cluster": "provider"},
	}}
	s.Spec.Group, s.Spec.Scope = "example.org", "Namespaced"
	s.Spec.Names.Plural, s.Spec.Names.Singular, s.Spec.Names.Kind, s.Spec.Names.ListKind = "widgets", "widget", "Widget", "WidgetList"
	s.Spec.Versions = make([]apis.APIResourceVersion, 1)
	v := &s.Spec.Versions[0]
	v.Name, v.Served, v.Storage, v.Schema.Raw = "v1", true, true, []byte(`{"type":"object"}`)
	return s
}

// TestUnpinTellsOfRoom: who waits for room for schemas is told when copies are deleted,
// and only then.
func TestUnpinTellsOfRoom(t *testing.T) {
	var created atomic.Pointer[time.Time]
	var deleted atomic.Int32
	local := localTo(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodDelete:
			deleted.Add(1)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Success"}`))
		case r.URL.Query().Get("watch") != "":
			<-r.Context().Done()
		case strings.HasSuffix(r.URL.Path, "/apibindings"):
			_, _ = w.Write([]byte(`{"kind":"APIBindingList","apiVersion":"apis.kcp.io/v1alpha2","metadata":{"resourceVersion":"1"},"items":[]}`))
		default:
			_, _ = fmt.Fprintf(w, `{"kind":"BoundSchemaList","apiVersion":"internal.shardplane.io/v1alpha1","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"u","resourceVersion":"1","creationTimestamp":%q}}]}`, created.Load().UTC().Format(time.RFC3339))
		}
	})
	index, err := bindings.New(bindings.Config{Local: local})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	running.Go(func() { _ = index.Informer().Run(ctx) })
	told := 0
	t.Cleanup(index.NotifyFreed(func() { told++ }))

	now := time.Now()
	created.Store(&now)
	require.NoError(t, index.Unpin(t.Context()))
	require.Zero(t, told)
	before := now.Add(-time.Hour)
	created.Store(&before)
	require.NoError(t, index.Unpin(t.Context()))
	require.Equal(t, 1, told)
	require.EqualValues(t, 1, deleted.Load())
}
