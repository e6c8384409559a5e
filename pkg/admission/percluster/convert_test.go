package percluster

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/request"
)

type converting struct {
	admission.ObjectInterfaces
	runtime.ObjectConvertor
	convert func()
}

func (c converting) GetObjectConvertor() runtime.ObjectConvertor { return c }

func (c converting) Convert(any, any, any) error {
	c.convert()
	return nil
}

// TestPausing checks that a custom resource is converted without a seat, and a built-in one with a seat.
func TestPausing(t *testing.T) {
	t.Parallel()
	paused := 0
	ctx := request.WithPause(t.Context(), func() (resume func()) {
		paused++
		return func() { paused-- }
	})
	for _, tc := range []struct {
		in   runtime.Object
		want int
	}{{&unstructured.Unstructured{}, 1}, {&corev1.ConfigMap{}, 0}} {
		during := -1
		o := Pausing(ctx, converting{convert: func() { during = paused }})
		require.NoError(t, o.GetObjectConvertor().Convert(tc.in, nil, nil))
		require.Equal(t, tc.want, during, "%T", tc.in)
		require.Zero(t, paused)
	}
}
