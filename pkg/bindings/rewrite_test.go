package bindings

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
)

const storedText = `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":"things","uid":"u","resourceVersion":"7","generation":1,"creationTimestamp":"2026-01-02T03:04:05Z",
"annotations":{"kcp.io/cluster":"consumer"},"labels":{"internal.apis.kcp.io/export":"l"},"managedFields":[
{"apiVersion":"apis.kcp.io/v1alpha2","fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:phase":{}}},"manager":"shardplane","operation":"Update","subresource":"status","time":"2026-01-02T03:04:05Z"},
{"apiVersion":"apis.kcp.io/v1alpha2","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{}},"manager":"kubectl","operation":"Update","time":"2026-01-02T03:04:05Z"}]},
"spec":{"reference":{"export":{"name":"things","path":"provider"}}},
"status":{"apiExportClusterName":"provider","phase":"Bound",
"boundResources":[{"group":"g","resource":"things","schema":{"UID":"u1","identityHash":"h","name":"v1.things.g"},"storageVersions":["v1"]}],
"conditions":[{"lastTransitionTime":"2026-01-02T03:04:05Z","status":"True","type":"Ready"}]}}`

// storedBinding implements Objects for one binding.
type storedBinding struct{ unstructured.Unstructured }

// Modify implements Objects.
func (s *storedBinding) Modify(_ context.Context, _ logicalcluster.Name, _ schema.GroupResource, _ string, change func(*unstructured.Unstructured) error) (*unstructured.Unstructured, error) {
	u := s.DeepCopy()
	if managers, ok := managersOf(&s.Unstructured); ok { // shared with other objects
		u.Object["metadata"].(map[string]any)["managedFields"] = managers
	}
	if err := change(u); err != nil {
		return nil, err
	}
	u.SetResourceVersion("8")
	s.Unstructured = *u
	return u, nil
}

func managersOf(u *unstructured.Unstructured) ([]any, bool) {
	managers, ok, _ := unstructured.NestedFieldNoCopy(u.Object, "metadata", "managedFields")
	list, _ := managers.([]any)
	return list, ok
}

// Create implements Objects.
func (s *storedBinding) Create(_ context.Context, _ logicalcluster.Name, _ schema.GroupResource, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	object.SetResourceVersion("1")
	s.Unstructured = *object
	return object.DeepCopy(), nil
}

// TestRewrite: a status with the same fields is written, with the time in the managed fields. Other changes need a request.
func TestRewrite(t *testing.T) {
	t.Parallel()
	newSchema := func(b *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
		b.Status.BoundResources[0].Schema = apisv1alpha2.BoundAPIResourceSchema{Name: "v2.things.g", UID: "u2", IdentityHash: "h"}
		return b
	}
	for name, test := range map[string]struct {
		change           func(*apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding
		stored           func(*storedBinding)
		written, refused bool
	}{
		"another schema": {change: newSchema, written: true},
		"a condition": {written: true, change: func(b *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
			conditions.MarkTrue(b, apisv1alpha2.BindingUpToDate)
			return b
		}},
		"no change": {change: func(b *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding { return b }},
		"canceled":  {refused: true, change: func(*apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding { return nil }},
		"another resource": {refused: true, change: func(b *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
			b.Status.BoundResources = append(b.Status.BoundResources, b.Status.BoundResources[0])
			b.Status.BoundResources[1].Resource = "others"
			return b
		}},
		"another storage version": {refused: true, change: func(b *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
			b.Status.BoundResources[0].StorageVersions = []string{"v1", "v2"}
			return b
		}},
		"another phase": {refused: true, change: func(b *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
			b.Status.Phase = apisv1alpha2.APIBindingPhaseBinding
			return b
		}},
		"claims": {refused: true, change: func(b *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
			b.Status.ExportPermissionClaims = []apisv1alpha2.PermissionClaim{{Verbs: []string{"*"}}}
			return b
		}},
		"an annotation": {refused: true, change: func(b *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
			b.Annotations["extra.apis.kcp.io/a"] = "b"
			return newSchema(b)
		}},
		"status without a manager": {refused: true, change: newSchema, stored: func(s *storedBinding) {
			managed := s.GetManagedFields()
			managed[0].Subresource = ""
			s.SetManagedFields(managed)
		}},
		"no managed fields": {written: true, change: newSchema, stored: func(s *storedBinding) { s.SetManagedFields(nil) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stored := &storedBinding{}
			require.NoError(t, stored.UnmarshalJSON([]byte(storedText)))
			if test.stored != nil {
				test.stored(stored)
			}
			before := stored.DeepCopy()
			managers, _ := managersOf(&stored.Unstructured)
			written, err := (&Index{}).Rewrite(t.Context(), stored, client.Key{Cluster: "consumer", Name: "things"}, test.change)
			require.NoError(t, err)
			require.Equal(t, test.refused, written == nil)
			unchanged, _ := managersOf(before)
			require.Equal(t, unchanged, managers, "shared managed fields must not be modified")
			if !test.written {
				require.Equal(t, before.Object, stored.Object)
				return
			}
			require.Equal(t, "8", written.ResourceVersion)
			expected := &apisv1alpha2.APIBinding{}
			text, err := json.Marshal(stored)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(text, expected))
			require.True(t, equality.Semantic.DeepEqual(expected.Status, written.Status))
			managed := stored.GetManagedFields()
			if len(managed) == 0 {
				return
			}
			require.WithinDuration(t, time.Now(), managed[0].Time.Time, time.Hour)
			managed[0].Time = before.GetManagedFields()[0].Time
			require.Equal(t, before.GetManagedFields(), managed, "other managed fields must not change")
		})
	}
}
