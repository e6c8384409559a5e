package bindings

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// errNeedsRequest says that a change has to be made by an ordinary request.
var errNeedsRequest = errors.New("the change needs a request")

// errSame says that there is nothing to change.
var errSame = errors.New("nothing changes")

// Objects are where bindings are stored, as customresource.Server has them.
type Objects interface {
	Modify(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource, name string, change func(*unstructured.Unstructured) error) (*unstructured.Unstructured, error)
	Create(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource, object *unstructured.Unstructured) (*unstructured.Unstructured, error)
}

// Rewrite writes what change makes of the status of a binding without a request, which
// takes a small part of the time: it is for what thousands of bindings are to say alike.
// It returns nil, and nothing is written, where change returns nil, and where more than
// values in the status change: then the fields that the server manages are others, too.
func (x *Index) Rewrite(ctx context.Context, objects Objects, key client.Key, change func(*apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
	var written *apisv1alpha2.APIBinding
	stored, err := objects.Modify(ctx, key.Cluster, kinds.APIBindings.GroupResource(), key.Name, func(u *unstructured.Unstructured) error {
		before, err := bindingIn(u)
		if err != nil {
			return err
		}
		if written = change(before.DeepCopy()); written == nil {
			return errNeedsRequest
		}
		if equality.Semantic.DeepEqual(before, written) {
			return errSame
		}
		if !equality.Semantic.DeepEqual(before.ObjectMeta, written.ObjectMeta) || !equality.Semantic.DeepEqual(before.Spec, written.Spec) {
			return errNeedsRequest
		}
		return setStatus(u, &written.Status)
	})
	switch {
	case errors.Is(err, errNeedsRequest):
		return nil, nil //nolint:nilnil // there is none
	case errors.Is(err, errSame):
		return written, nil
	case err != nil:
		return nil, err
	}
	written.ResourceVersion = stored.GetResourceVersion()
	return written, nil
}

// bindingIn returns a stored binding, without what says who manages its fields.
func bindingIn(u *unstructured.Unstructured) (*apisv1alpha2.APIBinding, error) {
	object := maps.Clone(u.Object)
	if metadata, ok := object["metadata"].(map[string]any); ok {
		metadata = maps.Clone(metadata)
		delete(metadata, "managedFields")
		object["metadata"] = metadata
	}
	binding := &apisv1alpha2.APIBinding{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, binding); err != nil {
		return nil, fmt.Errorf("reading the APIBinding %s: %w", u.GetName(), err)
	}
	return binding, nil
}

// setStatus sets the status of a binding that has the same fields as before.
func setStatus(u *unstructured.Unstructured, status *apisv1alpha2.APIBindingStatus) error {
	after, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return fmt.Errorf("encoding the status of the APIBinding %s: %w", u.GetName(), err)
	}
	before, _ := u.Object["status"].(map[string]any)
	if !haveSameFields(before, after) || !touchManager(u) {
		return errNeedsRequest
	}
	u.Object["status"] = after
	return nil
}

// haveSameFields reports whether two states of a status have the same fields, as managed
// fields tell them: bound resources by group and name, storage versions by value, and
// conditions as a whole.
func haveSameFields(before, after map[string]any) bool {
	for name := range after {
		if _, ok := before[name]; !ok {
			return false
		}
	}
	for name, value := range before {
		switch next, ok := after[name]; {
		case !ok:
			return false
		case name == "conditions":
		case name == "boundResources":
			if !areSameResources(value, next) {
				return false
			}
		case !equality.Semantic.DeepEqual(value, next):
			return false
		}
	}
	return true
}

// areSameResources is haveSameFields for bound resources.
func areSameResources(before, after any) bool {
	all, _ := before.([]any)
	next, _ := after.([]any)
	if len(all) != len(next) {
		return false
	}
	for i := range all {
		a, _ := all[i].(map[string]any)
		b, _ := next[i].(map[string]any)
		a, b = maps.Clone(a), maps.Clone(b)
		delete(a, "schema") // of three values, each required
		delete(b, "schema")
		if !equality.Semantic.DeepEqual(a, b) {
			return false
		}
	}
	return true
}

// touchManager says in the managed fields when the status was written, and reports
// whether there is one who manages it, or nobody who manages anything. Only servers manage
// it: of several, which are of other versions, the last.
func touchManager(u *unstructured.Unstructured) bool {
	metadata, _ := u.Object["metadata"].(map[string]any)
	managers, _ := metadata["managedFields"].([]any)
	if len(managers) == 0 {
		return true // as Create leaves it, until somebody applies something
	}
	for i, m := range slices.Backward(managers) {
		m, _ := m.(map[string]any)
		if m["subresource"] == "status" && m["operation"] == string(metav1.ManagedFieldsOperationUpdate) {
			m = maps.Clone(m) // other objects may have the same entry
			m["time"] = time.Now().UTC().Format(time.RFC3339)
			managers = slices.Clone(managers)
			managers[i], metadata["managedFields"] = m, managers
			return true
		}
	}
	return false
}
