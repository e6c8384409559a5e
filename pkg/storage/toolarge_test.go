package storage

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// TestTooLarge verifies that an object above etcd's limit is rejected and the stored one is unchanged.
func TestTooLarge(t *testing.T) {
	both(t, func(t *testing.T, s *tenantStorage) {
		ctx, text := in(t.Context(), "one"), strings.Repeat("x", 1600<<10)
		large := newPod("ns", "large")
		large.Annotations = map[string]string{"text": text}
		requireTooLarge(t, s.Create(ctx, "/pods/ns/large", large, &example.Pod{}, 0))
		require.True(t, storage.IsNotFound(s.Get(ctx, "/pods/ns/large", storage.GetOptions{}, &example.Pod{})))

		small := create(ctx, t, s, newPod("ns", "small"))
		enlarge := changing(func(pod *example.Pod) { pod.Annotations["text"] = text })
		requireTooLarge(t, s.GuaranteedUpdate(ctx, "/pods/ns/small", &example.Pod{}, false, nil, enlarge, nil))
		now := &example.Pod{}
		require.NoError(t, s.Get(ctx, "/pods/ns/small", storage.GetOptions{}, now))
		require.Equal(t, small.ResourceVersion, now.ResourceVersion)
	})
}

// requireTooLarge requires status 413 and the properties of etcd's error that upstream's handlers check.
func requireTooLarge(t *testing.T, err error) {
	t.Helper()
	known, ok := err.(apierrors.APIStatus) // nor do upstream's handlers unwrap it
	require.True(t, ok, "%T: %v", err, err)
	require.EqualValues(t, http.StatusRequestEntityTooLarge, known.Status().Code)
	require.Contains(t, known.Status().Message, "1.5 MiB")
	etcds, ok := err.(interface{ Code() codes.Code })
	require.True(t, ok)
	require.Equal(t, codes.InvalidArgument, etcds.Code())
	require.EqualError(t, err, "etcdserver: request is too large")
}

// TestConvertTooLarge covers requests that the client of an external etcd rejects.
func TestConvertTooLarge(t *testing.T) {
	requireTooLarge(t, convertTooLarge(rpctypes.Error(rpctypes.ErrGRPCRequestTooLarge)))
	requireTooLarge(t, convertTooLarge(status.Error(codes.ResourceExhausted, "trying to send message larger than max (3 vs. 2)")))
	for _, err := range []error{nil, errors.New("other"), rpctypes.Error(rpctypes.ErrGRPCNoSpace), status.Error(codes.Unavailable, "trying to send message larger than max")} {
		require.Equal(t, err, convertTooLarge(err))
	}
}
