package definitions

import (
	"context"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

// TestFaultyDefinition: a stored definition for which the index panics is recorded.
func TestFaultyDefinition(t *testing.T) {
	o := newIndex(nil, nil, newInterner()) // panics without a table
	crd := &apiextensions.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
		Name: "widgets.example.com", ResourceVersion: "7", Annotations: map[string]string{logicalcluster.AnnotationKey: "a"},
	}}
	o.upsert(t.Context(), crd)
	found := o.unreadable.In("a", "")
	require.Len(t, found, 1)
	require.Equal(t, "widgets.example.com", found[0].Name)
	require.Equal(t, unreadable.Panic, found[0].Reason)
	require.Equal(t, "/apiextensions.k8s.io/customresourcedefinitions/a/widgets.example.com", found[0].Key)
}

// TestUnreadDefinitions: before definitions have been read, wildcard lookups and lists return an error that
// suggests a delay.
func TestUnreadDefinitions(t *testing.T) {
	o := newIndex(nil, nil, newInterner())
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // instead of waiting
	_, listed := o.List(ctx, request.Cluster{Name: "a"})
	_, resolved := o.Resolve(ctx, Lookup{Cluster: request.Cluster{Wildcard: true}, Resource: schema.GroupResource{Group: "example.com", Resource: "widgets"}, Version: "v1"})
	for _, err := range []error{listed, resolved} {
		require.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
		_, later := apierrors.SuggestsClientDelay(err)
		require.True(t, later, "%v", err)
	}
}
