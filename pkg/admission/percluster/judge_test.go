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

// TestJudge: the provider of a bound resource judges it, and nothing else.
func TestJudge(t *testing.T) {
	t.Parallel()
	a := write(nil)
	_, _, err := Judge(t.Context(), a)
	require.ErrorIs(t, err, request.ErrNoCluster)
	ctx := request.WithClusterName(t.Context(), "consumer")
	for provider, ctx := range map[logicalcluster.Name]context.Context{
		"consumer": request.WithClusterName(request.WithProvider(ctx, "other"), "consumer"),
		"provider": request.WithProvider(ctx, "provider"),
	} {
		judge, in, err := Judge(ctx, a)
		require.NoError(t, err)
		require.Equal(t, provider, judge)
		require.Equal(t, logicalcluster.Name("consumer"), in)
	}
}

// TestTell: an object says where it is while it is judged, and is as it was afterwards.
func TestTell(t *testing.T) {
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

// known is what is known of some kind of hooks.
type known struct{ incomplete error }

func (known) Name() string                      { return "" }
func (known) Run(context.Context) error         { return nil }
func (known) HasSynced() bool                   { return true }
func (known) WaitForSync(context.Context) error { return nil }
func (k known) Read() error                     { return k.incomplete }

// TestJudges: what another shard may have configured is never taken for nothing.
func TestJudges(t *testing.T) {
	t.Parallel()
	local := func(cluster logicalcluster.Name) bool { return cluster != "far" }
	unknown := NewJudges(known{}, local, known{}, known{errors.New("the cache server is away")})
	require.NoError(t, unknown.Wait(t.Context(), write(nil), "consumer", "consumer"))
	require.NoError(t, unknown.Wait(t.Context(), write(nil), "near", "consumer"))
	err := unknown.Wait(t.Context(), write(nil), "far", "consumer")
	require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
	require.ErrorContains(t, err, "the cache server is away")
	require.NoError(t, NewJudges(known{}, local, known{}, known{}).Wait(t.Context(), write(nil), "far", "consumer"))
}

// starting is an informer that has not synced, with what waiting for it returns.
type starting struct {
	known
	err error
}

func (starting) HasSynced() bool                     { return false }
func (s starting) WaitForSync(context.Context) error { return s.err }

// TestReady: a write waits for what must be known, and the client is told to try again if that takes too long.
func TestReady(t *testing.T) {
	t.Parallel()
	require.NoError(t, Ready{known{}, starting{}}.Wait(t.Context(), write(nil)))
	for _, wait := range []func(context.Context, admission.Attributes) error{
		Ready{known{}, starting{err: context.DeadlineExceeded}}.Wait,
		func(ctx context.Context, a admission.Attributes) error {
			return NewJudges(starting{err: context.DeadlineExceeded}, func(logicalcluster.Name) bool { return true }).Wait(ctx, a, "near", "near")
		},
	} {
		err := wait(t.Context(), write(nil))
		require.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
		_, delay := apierrors.SuggestsClientDelay(err)
		require.True(t, delay)
	}
}
