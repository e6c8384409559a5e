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
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// Create stores a binding with its status and finalizers in one write, without a request, and returns the stored
// object. It returns AlreadyExists if there is one with this name. It is for bindings in thousands of logical clusters.
func (x *Index) Create(ctx context.Context, objects Objects, cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(binding)
	if err != nil {
		return nil, fmt.Errorf("encoding the APIBinding %s: %w", binding.Name, err)
	}
	u := &unstructured.Unstructured{Object: object}
	u.SetGroupVersionKind(apisv1alpha2.SchemeGroupVersion.WithKind("APIBinding"))
	stored, err := objects.Create(ctx, cluster, kinds.APIBindings.GroupResource(), u)
	if err != nil {
		return nil, err
	}
	return bindingIn(stored)
}

// Like returns the resources that a new binding to an export will bind, if another binding of the shard has bound
// everything that the export currently offers. Then only the names must be checked. The schemas count as pinned.
func (x *Index) Like(ctx context.Context, export *apisv1alpha2.APIExport) (resources []apisv1alpha2.BoundAPIResource, ok bool) {
	complete := x.completeOf(client.KeyOf(export))
	if complete == nil {
		return nil, false
	}
	for i := range export.Spec.Resources {
		offered := &export.Spec.Resources[i]
		all := complete.BoundResources
		at := slices.IndexFunc(all, func(b apisv1alpha2.BoundAPIResource) bool {
			return b.Group == offered.Group && b.Resource == offered.Name
		})
		if at < 0 || (len(all[at].StorageVersions) == 0) == storedHere(offered) || all[at].Schema.Name != offered.Schema || all[at].Schema.IdentityHash != export.Status.IdentityHash {
			return nil, false
		}
		schema, err := x.schemas.get(ctx, types.UID(all[at].Schema.UID))
		if err != nil || !x.keep(types.UID(all[at].Schema.UID)) {
			return nil, false // the original must be read, which also returns an error
		}
		bound := *all[at].DeepCopy()
		if storedHere(offered) {
			bound.StorageVersions = []string{schema.StoredVersion()}
		}
		resources = append(resources, bound)
	}
	return resources, true
}

var (
	errNeedsRequest = errors.New("the change needs a request")
	errUnchanged    = errors.New("nothing changes")
)

// Objects stores bindings. It is implemented by customresource.Server.
type Objects interface {
	Modify(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource, name string, change func(*unstructured.Unstructured) error) (*unstructured.Unstructured, error)
	Create(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource, object *unstructured.Unstructured) (*unstructured.Unstructured, error)
}

// Rewrite changes the status of a stored binding without a request, which is much cheaper for thousands of bindings. It
// writes nothing and returns nil if change returns nil, or if the set of managed fields would change.
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
			return errUnchanged
		}
		if !equality.Semantic.DeepEqual(before.ObjectMeta, written.ObjectMeta) || !equality.Semantic.DeepEqual(before.Spec, written.Spec) {
			return errNeedsRequest
		}
		return setStatus(u, &written.Status)
	})
	switch {
	case errors.Is(err, errNeedsRequest):
		return nil, nil //nolint:nilnil // the caller must send a request
	case errors.Is(err, errUnchanged):
		return written, nil
	case err != nil:
		return nil, err
	}
	written.ResourceVersion = stored.GetResourceVersion()
	return written, nil
}

// bindingIn decodes a stored binding without its managed fields.
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

// haveSameFields reports whether two statuses have the same fields for server-side apply, in which bound resources
// are identified by group and name, storage versions by value, and the conditions are atomic.
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
		delete(a, "schema") // has three required fields
		delete(b, "schema")
		if !equality.Semantic.DeepEqual(a, b) {
			return false
		}
	}
	return true
}

// touchManager updates the time of the status manager in the managed fields. It returns false if there are managed
// fields but no status manager. If servers of several versions manage the status, it updates the last one.
func touchManager(u *unstructured.Unstructured) bool {
	metadata, _ := u.Object["metadata"].(map[string]any)
	managers, _ := metadata["managedFields"].([]any)
	if len(managers) == 0 {
		return true // Create leaves them empty until a client applies fields
	}
	for i, m := range slices.Backward(managers) {
		m, _ := m.(map[string]any)
		if m["subresource"] == "status" && m["operation"] == string(metav1.ManagedFieldsOperationUpdate) {
			m = maps.Clone(m) // it may be shared with other objects
			m["time"] = time.Now().UTC().Format(time.RFC3339)
			managers = slices.Clone(managers)
			managers[i], metadata["managedFields"] = m, managers
			return true
		}
	}
	return false
}
