package bindings

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// Names reserves names of custom resources. It is implemented by definitions.Storage.
type Names interface {
	Reserve(ctx context.Context, cluster logicalcluster.Name, owner string, source definitions.Source, wanted []definitions.Wanted) (release func(), conflict *definitions.Conflict, err error)
	Defines(cluster logicalcluster.Name, group string) bool
	Yield(ctx context.Context, cluster logicalcluster.Name, wanted []definitions.Wanted) error
}

// Reserve reserves the names of pinned schemas in a logical cluster for a binding, until release is called. The
// caller must call release when the index serves the schemas, or when they are no longer needed. If a name is in
// use, it returns the conflict and reserves nothing.
func (x *Index) Reserve(ctx context.Context, names Names, cluster logicalcluster.Name, binding string, uids []types.UID) (release func(), conflict *definitions.Conflict, err error) {
	wanted := make([]definitions.Wanted, 0, len(uids))
	for _, uid := range uids {
		s, err := x.schemas.get(ctx, uid)
		if err != nil {
			return nil, nil, err
		}
		has, err := x.hasNames(ctx, cluster, binding, s)
		if err != nil {
			return nil, nil, err
		}
		if !has {
			wanted = append(wanted, definitions.Wanted{Group: s.Resource.Group, Names: s.Names()})
		}
	}
	if len(wanted) == 0 {
		return func() {}, nil, nil
	}
	// Check the index first, because thousands of bindings of a logical cluster may wait for a name.
	if conflict, err = x.conflict(ctx, x.records(cluster), binding, wanted); conflict != nil || err != nil {
		return nil, conflict, err
	}
	owner := (&record{name: binding}).owner()
	release, conflict, err = names.Reserve(ctx, cluster, owner, x, wanted)
	if conflict != nil || err != nil {
		return nil, conflict, err
	}
	// Other bindings are stored before their reservation is released. A former leader has reserved
	// nothing here, and the index may not have its bindings yet.
	stored, err := x.stored.read(ctx, cluster)
	if err == nil {
		conflict, err = x.conflict(ctx, stored, binding, wanted)
	}
	if conflict != nil || err != nil {
		release()
		return nil, conflict, err
	}
	return release, nil, nil
}

// Yield makes definitions of a logical cluster yield names that an indexed binding has bound.
func (x *Index) Yield(ctx context.Context, names Names, cluster logicalcluster.Name, binding string) error {
	r := x.record(cluster, binding)
	if r == nil {
		return nil
	}
	var wanted []definitions.Wanted
	for resource, b := range r.byResource {
		if !names.Defines(cluster, resource.Group) || x.config.System(resource) != nil {
			continue // nearly always
		}
		s, err := x.schemas.get(ctx, b.uid)
		if apierrors.IsNotFound(err) {
			continue // the copy was deleted; therefore, the resource is not served
		}
		if err != nil {
			return err
		}
		wanted = append(wanted, definitions.Wanted{Group: resource.Group, Names: s.Names()})
	}
	if len(wanted) == 0 {
		return nil
	}
	return names.Yield(ctx, cluster, wanted)
}

// hasNames reports whether a binding already has the names of a schema, by another schema of the resource.
func (x *Index) hasNames(ctx context.Context, cluster logicalcluster.Name, binding string, next *pinned) (bool, error) {
	r := x.record(cluster, binding)
	if r == nil {
		return false, nil
	}
	bound, ok := r.byResource[next.Resource]
	if !ok {
		return false, nil
	}
	now, err := x.schemas.get(ctx, bound.uid)
	if err != nil {
		return false, err
	}
	return equality.Semantic.DeepEqual(now.Names(), next.Names()), nil
}

func (x *Index) conflict(ctx context.Context, records []*record, binding string, wanted []definitions.Wanted) (*definitions.Conflict, error) {
	for _, r := range records {
		if r.name == binding {
			continue
		}
		for _, b := range r.byResource {
			s, err := x.schemas.get(ctx, b.uid)
			if err != nil {
				return nil, err
			}
			for _, w := range wanted {
				if w.Group != s.Resource.Group {
					continue
				}
				if name := conflict(w.Names, s.Names()); name != "" {
					return &definitions.Conflict{Group: w.Group, Name: name, By: r.owner()}, nil
				}
			}
		}
	}
	return nil, nil //nolint:nilnil // no conflict
}

func conflict(a, b *apiextensionsv1.CustomResourceDefinitionNames) string {
	common := func(names, others []string) string {
		for _, name := range names {
			if name != "" && slices.Contains(others, name) {
				return name
			}
		}
		return ""
	}
	return cmp.Or(
		common(append([]string{a.Plural, a.Singular}, a.ShortNames...), append([]string{b.Plural, b.Singular}, b.ShortNames...)),
		common([]string{a.Kind, a.ListKind}, []string{b.Kind, b.ListKind}),
	)
}

// Definition returns the definition with which the objects of a bound resource are stored.
func (x *Index) Definition(ctx context.Context, b *apisv1alpha2.BoundAPIResource) (*definitions.Definition, error) {
	if d := x.config.System(schema.GroupResource{Group: b.Group, Resource: b.Resource}); d != nil {
		return d, nil
	}
	s, err := x.schemas.get(ctx, types.UID(b.Schema.UID))
	if err != nil {
		return nil, fmt.Errorf("%s.%s: %w", b.Resource, b.Group, err)
	}
	return &definitions.Definition{Schema: s.Schema, Identity: b.Schema.IdentityHash}, nil
}

// CheckReplacement returns an error if stored objects could not be read with the next schema of a bound resource. bound
// is the current one, or nil. The error wraps apis.ErrInvalidSchema, or apis.ErrInUse if only other bindings of the
// shard prevent it: a wildcard request reads all objects with one schema.
func (x *Index) CheckReplacement(ctx context.Context, bound, next *apisv1alpha2.BoundAPIResource) error {
	w := identityOf(next)
	if x.config.System(w.resource) != nil || len(next.StorageVersions) == 0 {
		return nil // the server's own schema is used, or no object is stored
	}
	to, err := x.schemas.get(ctx, types.UID(next.Schema.UID))
	if err != nil {
		return err
	}
	// The WaitFor of another binding may have timed out after it was written.
	if err := x.catchUpTo(ctx, 0); err != nil {
		return err
	}
	if bound != nil {
		if err := x.checkReplacement(ctx, types.UID(bound.Schema.UID), to, bound.StorageVersions, apis.ErrInvalidSchema); err != nil {
			return err
		}
	}
	uids, stored := x.storedIn(w)
	for _, uid := range uids {
		if err := x.checkReplacement(ctx, uid, to, stored, apis.ErrInUse); err != nil {
			return err
		}
	}
	return nil
}

func (x *Index) checkReplacement(ctx context.Context, from types.UID, to *pinned, stored []string, reason error) error {
	former, err := x.schemas.get(ctx, from)
	if apierrors.IsNotFound(err) {
		return nil // its copy has been deleted; therefore, it is not served
	}
	if err != nil {
		return err
	}
	if errs := apis.ValidateReplacement(to.Spec(), former.Spec(), stored); len(errs) > 0 {
		return fmt.Errorf("%w: cannot replace %s: %w", reason, former.name, errs.ToAggregate())
	}
	return nil
}

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
		if at < 0 || (len(all[at].StorageVersions) == 0) == isStored(offered) || all[at].Schema.Name != offered.Schema || all[at].Schema.IdentityHash != export.Status.IdentityHash {
			return nil, false
		}
		schema, err := x.schemas.get(ctx, types.UID(all[at].Schema.UID))
		if err != nil || !x.keep(types.UID(all[at].Schema.UID)) {
			return nil, false // the original must be read, which also returns an error
		}
		bound := *all[at].DeepCopy()
		if isStored(offered) {
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

// haveSameFields reports whether two statuses have the same fields for server-side apply. Bound resources are
// identified by group and name, storage versions by value, and conditions are atomic.
func haveSameFields(before, after map[string]any) bool {
	if len(before) != len(after) {
		return false
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
	return slices.EqualFunc(all, next, func(before, after any) bool {
		a, _ := before.(map[string]any)
		b, _ := after.(map[string]any)
		a, b = maps.Clone(a), maps.Clone(b)
		delete(a, "schema") // has three required fields
		delete(b, "schema")
		return equality.Semantic.DeepEqual(a, b)
	})
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
