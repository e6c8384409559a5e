package apibinding

import (
	"context"
	"errors"
	"strconv"
	"testing"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

var errConflict = errors.New("conflict")

// TestBindingsOfOneLogicalCluster: concurrent bindings, e.g. the default ones, do not cause conflicts in the LogicalCluster.
func TestBindingsOfOneLogicalCluster(t *testing.T) {
	w := newWorld()
	writing := make(chan struct{}, 1)
	w.r.commitCluster = func(_ context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
		select {
		case writing <- struct{}{}:
			defer func() { <-writing }()
		default:
			return nil, errConflict
		}
		if old.ResourceVersion != w.lc.ResourceVersion {
			return nil, errConflict
		}
		updated.ResourceVersion = w.next()
		w.lc = updated
		return updated, nil
	}
	var group errgroup.Group
	for i := range 50 {
		group.Go(func() error {
			name := strconv.Itoa(i)
			return w.r.record(t.Context(), consumer, name, []apisv1alpha2.BoundAPIResource{{Group: "example.org", Resource: "r" + name}})
		})
	}
	require.NoError(t, group.Wait())
	require.Contains(t, w.lc.Annotations[locks], `"r49.example.org":{"n":"49"}`)
}

// TestNullLocks: an annotation that an administrator has set to null is replaced.
func TestNullLocks(t *testing.T) {
	lc := &corev1alpha1.LogicalCluster{}
	lc.Annotations = map[string]string{locks: "null"}
	updated, err := withLocks(lc, "b", []apisv1alpha2.BoundAPIResource{{Group: "example.org", Resource: "r"}})
	require.NoError(t, err)
	require.JSONEq(t, `{"r.example.org":{"n":"b"}}`, updated.Annotations[locks])
}
