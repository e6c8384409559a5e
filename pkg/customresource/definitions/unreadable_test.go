package definitions

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

// TestFaultyDefinition: a stored definition over which the index panics is recorded, and ends nothing.
func TestFaultyDefinition(t *testing.T) {
	o := newIndex(nil, nil, newInterner()) // without a table
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
