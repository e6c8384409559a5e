package validate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestObjectMeta(t *testing.T) {
	good := metav1.ObjectMeta{Name: "a", Namespace: "ns", Finalizers: []string{"example.com/a", "kubernetes", metav1.FinalizerOrphanDependents}}
	require.Empty(t, ObjectMeta(&good, true, apivalidation.NameIsDNSSubdomain))
	bad := good
	bad.Finalizers = []string{"a"}
	errs := ObjectMeta(&bad, true, apivalidation.NameIsDNSSubdomain)
	require.Len(t, errs, 1)
	require.Equal(t, "metadata.finalizers[0]", errs[0].Field)

	good.ResourceVersion, bad.ResourceVersion = "1", "1"
	require.Empty(t, ObjectMetaUpdate(&good, &good))
	require.Len(t, ObjectMetaUpdate(&bad, &good), 1)
}

func TestFinalizer(t *testing.T) {
	path := field.NewPath("f")
	require.Empty(t, Finalizer("a/b", path))
	require.Len(t, Finalizer("a", path), 1)
	require.Len(t, Finalizer("a/b/c", path), 1)
	require.Len(t, Finalizer(strings.Repeat("x", 100), path), 2)
	require.NotEmpty(t, Finalizer("", path))
}

func TestFrozen(t *testing.T) {
	yes, no := true, false
	require.Empty(t, Frozen(&no, nil, "data"))
	require.Empty(t, Frozen(nil, &no, "data"))
	require.Empty(t, Frozen(&yes, &yes))
	require.Len(t, Frozen(&yes, &yes, "data"), 1)
	require.Len(t, Frozen(nil, &yes, "data", "binaryData"), 3)
}
