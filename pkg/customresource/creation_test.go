package customresource

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/dynamic"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// slowAdmission delays creations, like a slow webhook.
type slowAdmission struct{ arrived, goOn chan struct{} }

func (slowAdmission) Handles(o admission.Operation) bool { return o == admission.Create }

func (a slowAdmission) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	a.arrived <- struct{}{}
	<-a.goOn
	return nil
}

// TestUnservedWhileCreating: an object is not stored if its resource was removed during admission, because it
// might not be deleted with the other objects.
func TestUnservedWhileCreating(t *testing.T) {
	t.Parallel()
	bound := newBoundAPIs(map[string]boundAPI{})
	slow := slowAdmission{arrived: make(chan struct{}, 1), goOn: make(chan struct{})}
	s := startServer(t, serverOptions{sources: []definitions.Source{bound}, admission: slow})
	bind := func(cluster string, api boundAPI) { bound.change(definitions.Change{}, api, cluster) }
	changes := map[string]struct {
		change func(cluster string, api boundAPI)
		want   metav1.StatusReason
	}{
		"ends":     {func(cluster string, _ boundAPI) { bound.terminate(cluster) }, metav1.StatusReasonForbidden},
		"gone":     {func(cluster string, _ boundAPI) { bind(cluster, boundAPI{}) }, metav1.StatusReasonNotFound},
		"anothers": {func(cluster string, api boundAPI) { bind(cluster, boundAPI{api.Schema, "bbbb"}) }, metav1.StatusReasonNotFound},
		"another-schema": {func(cluster string, api boundAPI) {
			bind(cluster, boundAPI{twinSchema(t, api.Resource.Group).Schema, api.identity})
		}, metav1.StatusReasonUnknown},
	}
	for _, api := range []boundAPI{boundSchema(t, "aaaa", "x"), coreSchema(t)} {
		resource := schema.GroupVersionResource{Group: api.Resource.Group, Version: "v1", Resource: api.Resource.Resource}
		for way, create := range creations {
			for change, tc := range changes {
				cluster := way + "-" + change + "-" + api.identity
				bind(cluster, api)
				in := s.Dynamic(t, cluster).Resource(resource).Namespace("default")
				obj := widget("a", map[string]any{"size": int64(1)})
				obj.SetAPIVersion(resource.GroupVersion().String())
				answer := make(chan error, 1)
				go func() { answer <- create(t.Context(), in, obj) }()
				select {
				case <-slow.arrived:
				case err := <-answer:
					require.NoError(t, err, "%s was to wait", cluster)
				}
				tc.change(cluster, api)
				slow.goOn <- struct{}{}
				require.Equal(t, tc.want, apierrors.ReasonForError(<-answer), cluster)

				bind(cluster, api)
				list, err := in.List(t.Context(), metav1.ListOptions{})
				require.NoError(t, err)
				require.Equal(t, tc.want == metav1.StatusReasonUnknown, len(list.Items) == 1, "what is stored in %s", cluster)
			}
		}
	}
}

// creations are the requests that create an object.
var creations = map[string]func(context.Context, dynamic.ResourceInterface, *unstructured.Unstructured) error{
	"create": func(ctx context.Context, in dynamic.ResourceInterface, obj *unstructured.Unstructured) error {
		_, err := in.Create(ctx, obj, metav1.CreateOptions{})
		return err
	},
	"apply": func(ctx context.Context, in dynamic.ResourceInterface, obj *unstructured.Unstructured) error {
		_, err := in.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: "test"})
		return err
	},
}
