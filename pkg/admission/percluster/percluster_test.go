package percluster

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/request"
)

func write(obj runtime.Object) admission.Attributes {
	gvk := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	return admission.NewAttributesRecord(obj, nil, gvk, "default", "x", corev1.SchemeGroupVersion.WithResource("configmaps"), "", admission.Create, nil, false, nil)
}

func TestClusters(t *testing.T) {
	t.Parallel()
	_, _, err := Clusters(t.Context())
	require.ErrorIs(t, err, request.ErrNoCluster)
	ctx := request.WithClusterName(t.Context(), "consumer")
	for provider, ctx := range map[logicalcluster.Name]context.Context{
		"consumer": request.WithClusterName(request.WithProvider(ctx, "other"), "consumer"),
		"provider": request.WithProvider(ctx, "provider"),
	} {
		source, in, err := Clusters(ctx)
		require.NoError(t, err)
		require.Equal(t, provider, source)
		require.Equal(t, logicalcluster.Name("consumer"), in)
	}
}

// TestAnnotateCluster checks that an object has the annotation during admission, and is unchanged afterwards.
func TestAnnotateCluster(t *testing.T) {
	t.Parallel()
	for name, annotations := range map[string]map[string]string{
		"none": nil, "others": {"a": "b"}, "forged": {"kcp.io/cluster": "elsewhere"},
	} {
		for _, obj := range []metav1.Object{
			&corev1.ConfigMap{}, &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "x"}}},
		} {
			obj.SetAnnotations(annotations)
			before := obj.GetAnnotations()
			if before != nil {
				before = maps.Clone(before)
			}
			undo := AnnotateCluster(write(obj.(runtime.Object)), "here")
			require.Equal(t, "here", obj.GetAnnotations()["kcp.io/cluster"], name)
			undo()
			require.Equal(t, before, obj.GetAnnotations(), name)
		}
	}
	AnnotateCluster(write(nil), "here")() // a deletion has no object
}

type known struct{ incomplete error }

func (known) Name() string                      { return "" }
func (known) Run(context.Context) error         { return nil }
func (known) HasSynced() bool                   { return true }
func (known) WaitForSync(context.Context) error { return nil }
func (k known) Read() error                     { return k.incomplete }

// TestPrerequisites checks that incomplete configuration of another shard is not ignored.
func TestPrerequisites(t *testing.T) {
	t.Parallel()
	local := func(cluster logicalcluster.Name) bool { return cluster != "far" }
	unknown := NewPrerequisites(known{}, local, known{}, known{errors.New("the cache server is unreachable")})
	require.NoError(t, unknown.Wait(t.Context(), write(nil), "consumer", "consumer"))
	require.NoError(t, unknown.Wait(t.Context(), write(nil), "near", "consumer"))
	err := unknown.Wait(t.Context(), write(nil), "far", "consumer")
	require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
	require.ErrorContains(t, err, "the cache server is unreachable")
	require.NoError(t, NewPrerequisites(known{}, local, known{}, known{}).Wait(t.Context(), write(nil), "far", "consumer"))
}

// starting is an informer that has not synced, and the error of waiting for it.
type starting struct {
	known
	err error
}

func (starting) HasSynced() bool                     { return false }
func (s starting) WaitForSync(context.Context) error { return s.err }

// TestReady checks that a write waits for informers, and that clients retry after a timeout.
func TestReady(t *testing.T) {
	t.Parallel()
	require.NoError(t, Ready{known{}, starting{}}.Wait(t.Context()))
	notReady := starting{err: context.DeadlineExceeded}
	for _, err := range []error{
		Ready{known{}, notReady}.Wait(t.Context()),
		NewPrerequisites(notReady, func(logicalcluster.Name) bool { return true }).Wait(t.Context(), write(nil), "near", "near"),
	} {
		require.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
		_, delay := apierrors.SuggestsClientDelay(err)
		require.True(t, delay)
	}
}
