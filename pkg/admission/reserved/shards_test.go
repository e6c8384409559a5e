package reserved

import (
	"testing"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
)

// TestShardsWriteOnlyTheirObjects checks that shards can write only their own objects.
func TestShardsWriteOnlyTheirObjects(t *testing.T) {
	shards, leases := schema.GroupResource{Group: "core.kcp.io", Resource: "shards"}, coordinationv1.Resource("leases")
	for _, tc := range []struct {
		as, namespace, name string
		resource            schema.GroupResource
		allowed             bool
	}{
		{"system:shard:one", "", "one", shards, true},
		{"system:shard:one", "", "two", shards, false},
		{"shard", "", "", shards, false},
		{"system:shard:one", "kube-system", "shard-one", leases, true},
		{"system:shard:one", "kube-system", "shard-two", leases, false},
		{"system:shard:one", "default", "shard-one", leases, false},
		{"system:shard:one", "default", "one", corev1.Resource("configmaps"), false},
		{"system:shard:one", "", "", authorizationv1.Resource("subjectaccessreviews"), true},
	} {
		for _, operation := range []admission.Operation{admission.Create, admission.Update} {
			obj := configMap(metav1.ObjectMeta{Name: tc.name, Namespace: tc.namespace, Labels: map[string]string{"internal.shardplane.io/target": "x"}})
			name := tc.name
			if operation == admission.Create {
				name = "" // as of a POST
			}
			shard := &user.DefaultInfo{Name: tc.as, Groups: []string{request.GroupShards}}
			a := admission.NewAttributesRecord(obj, obj, schema.GroupVersionKind{}, tc.namespace, name, tc.resource.WithVersion("v1"), "", operation, nil, false, shard)
			err := NewReserved().Validate(request.WithClusterName(t.Context(), "root"), a, nil)
			require.Equal(t, tc.allowed, err == nil, "%+v: %v", tc, err)
		}
	}
}

// TestShardsAreOfTheInstallation checks that the scope of a Shard cannot be restricted, but an existing
// restriction can be kept.
func TestShardsAreOfTheInstallation(t *testing.T) {
	shards := schema.GroupResource{Group: "core.kcp.io", Resource: "shards"}
	const scope = "cache.shardplane.io/scope"
	for _, tc := range []struct {
		name     string
		resource schema.GroupResource
		now, was runtime.Object
		allowed  bool
	}{
		{"new", shards, annotated(scope, "region"), nil, false},
		{"added", shards, annotated(scope, "region"), annotated(), false},
		{"unchanged", shards, annotated(scope, "region", "a", "b"), annotated(scope, "region"), true},
		{"removed", shards, annotated(), annotated(scope, "region"), true},
		{"scope of the installation", shards, annotated(scope, "installation"), nil, true},
		{"deleted", shards, nil, annotated(scope, "region"), true},
		{"another resource", corev1.Resource("configmaps"), annotated(scope, "region"), nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := NewReserved().Validate(request.WithClusterName(t.Context(), "root"), attributes(tc.resource, "", tc.now, tc.was, virtual), nil)
			if tc.allowed {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, scope)
			}
		})
	}
}
