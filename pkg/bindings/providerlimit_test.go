package bindings_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/test/background"
)

// TestProviderLimit: the size of all copies of one provider's schemas is limited, because they are kept when the provider deletes
// the originals, and do not count against its quota.
func TestProviderLimit(t *testing.T) {
	for bytes, allowed := range map[int]bool{1 << 20: true, 256 << 20: false} {
		t.Run(fmt.Sprint(bytes), func(t *testing.T) {
			created := ""
			index := localIndex(t, func(w http.ResponseWriter, r *http.Request) {
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
				_, _ = fmt.Fprintf(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"u","annotations":{"internal.shardplane.io/bytes":"999999999"}}},{"metadata":{"name":"other","annotations":{"internal.shardplane.io/bytes":"%d"}}}]}`, bytes)
			})
			_, err := index.Pin(t.Context(), "u", boundOriginal)
			if allowed {
				require.NoError(t, err)
				require.Contains(t, created, `"internal.shardplane.io/provider":"provider"`)
				require.Contains(t, created, `"internal.shardplane.io/bytes":"`)
				return
			}
			require.ErrorIs(t, err, apis.ErrInvalidSchema)
			require.ErrorContains(t, err, "at most 268435456 allowed")
			require.Empty(t, created)
		})
	}
}

// TestFailedCopies: failures to store a copy are reported with the reason.
func TestFailedCopies(t *testing.T) {
	pin := func(t *testing.T, failures map[string]string) error {
		t.Helper()
		index := localIndex(t, func(w http.ResponseWriter, r *http.Request) {
			reason := failures[r.Method]
			if reason == "" {
				_, _ = w.Write([]byte(noCopies))
				return
			}
			codes := map[string]int{"RequestEntityTooLarge": 413, "AlreadyExists": 409, "NotFound": 404}
			w.WriteHeader(codes[reason])
			_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"request is too large","code":%d}`, reason, codes[reason])
		})
		_, err := index.Pin(t.Context(), "u", boundOriginal)
		return err
	}
	t.Run("too large", func(t *testing.T) { // bindings must not retry it
		err := pin(t, map[string]string{http.MethodPost: "RequestEntityTooLarge"})
		require.ErrorIs(t, err, apis.ErrInvalidSchema)
		require.NotErrorIs(t, err, apis.ErrLimitReached)
		require.ErrorContains(t, err, "too large to be stored, including its APIConversion if there is one: request is too large")
	})
	t.Run("deleted concurrently", func(t *testing.T) { // must not be mistaken for a missing original
		err := pin(t, map[string]string{http.MethodPost: "AlreadyExists", http.MethodPatch: "NotFound"})
		require.ErrorContains(t, err, "it has just been deleted")
		require.False(t, apierrors.IsNotFound(err))
	})
}

func boundOriginal(context.Context) (*apis.APIResourceSchema, error) {
	s := &apis.APIResourceSchema{ObjectMeta: metav1.ObjectMeta{
		Name: "v1.widgets.example.org", UID: "u", Annotations: map[string]string{"kcp.io/cluster": "provider"},
	}}
	s.Spec.Group, s.Spec.Scope = "example.org", "Namespaced"
	s.Spec.Names.Plural, s.Spec.Names.Singular, s.Spec.Names.Kind, s.Spec.Names.ListKind = "widgets", "widget", "Widget", "WidgetList"
	s.Spec.Versions = make([]apis.APIResourceVersion, 1)
	v := &s.Spec.Versions[0]
	v.Name, v.Served, v.Storage, v.Schema.Raw = "v1", true, true, []byte(`{"type":"object"}`)
	return s, nil
}

// TestUnpinNotifies: listeners are notified when copies are deleted, and only then.
func TestUnpinNotifies(t *testing.T) {
	var created atomic.Pointer[time.Time]
	var deleted atomic.Int32
	index := localIndex(t, func(w http.ResponseWriter, r *http.Request) {
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
	background.Run(t.Context(), t, index.Informer().Run)
	notified := 0
	t.Cleanup(index.NotifyFreed(func() { notified++ }))

	now := time.Now()
	created.Store(&now)
	require.NoError(t, index.Unpin(t.Context()))
	require.Zero(t, notified)
	created.Store(new(now.Add(-time.Hour)))
	require.NoError(t, index.Unpin(t.Context()))
	require.Equal(t, 1, notified)
	require.EqualValues(t, 1, deleted.Load())
}
