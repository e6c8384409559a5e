package hub

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestUnwrap verifies that readers in this process get the shared object without a copy.
func TestUnwrap(t *testing.T) {
	pod := named("a")
	wrapped := (&sharedObject{}).get(func() runtime.Object { return pod })
	require.NotSame(t, runtime.Object(pod), wrapped)
	require.Same(t, runtime.Object(pod), Unwrap(wrapped))
	status := &metav1.Status{}
	require.Same(t, runtime.Object(status), Unwrap(status), "other objects must be returned unchanged")
}
