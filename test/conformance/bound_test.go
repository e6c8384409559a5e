package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// binding contains the state of a user with bound instead of defined APIs.
type binding struct {
	provider *user
	// schemas counts the schemas of each resource. last contains the last definitions.
	schemas map[string]int
	last    map[string]*crd
}

// withBinding makes the user bind definitions from a provider, each with its own export.
func (u *user) withBinding() *user {
	u.t.Helper()
	provider := newUser(u.t, u.admin, "provider-of-"+u.name+"-"+strings.ReplaceAll(u.group, ".", "-"), u.group)
	for _, in := range []*user{u, provider} {
		cluster := kind("core.kcp.io/v1alpha1", "LogicalCluster", "cluster")
		_, err := in.dyn.Resource(schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}).Create(u.t.Context(), cluster, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			require.NoError(u.t, err)
		}
	}
	u.bound = &binding{provider: provider, schemas: map[string]int{}, last: map[string]*crd{}}
	return u
}

func (t *tenant) kinds(resource, version string) dynamic.ResourceInterface {
	return t.dyn.Resource(schema.GroupVersionResource{Group: "apis.kcp.io", Version: version, Resource: resource})
}

// skipIfBound skips rules about CustomResourceDefinition objects.
func (u *user) skipIfBound() {
	u.t.Helper()
	if u.bound != nil {
		u.t.Skip("requires CustomResourceDefinitions")
	}
}

// bind exports and binds a definition.
func (u *user) bind(d *crd) error {
	u.t.Helper()
	name := d.Spec.Names.Plural
	schemaName, err := u.createSchema(d)
	if err != nil {
		return err
	}
	if u.bound.last[name] == nil {
		export := kind("apis.kcp.io/v1alpha2", "APIExport", name)
		export.Object["spec"] = map[string]any{"resources": u.exportedResources(d, schemaName)}
		_, err = u.bound.provider.kinds("apiexports", "v1alpha2").Create(u.t.Context(), export, metav1.CreateOptions{})
		require.NoError(u.t, err)
		bound := kind("apis.kcp.io/v1alpha2", "APIBinding", d.Name)
		bound.Object["spec"] = map[string]any{"reference": map[string]any{"export": map[string]any{"path": u.bound.provider.name, "name": name}}}
		// References to a logical cluster that was just created directly may be rejected.
		u.eventually("the binding was not created", func() bool {
			_, err = u.kinds("apibindings", "v1alpha2").Create(u.t.Context(), bound, metav1.CreateOptions{})
			return !apierrors.IsForbidden(err)
		})
	} else {
		// Wait for the end of a watch, which indicates that the change is effective.
		served := u.watch(u.bound.last[name])
		defer func() {
			for range served.ResultChan() {
			}
		}()
		patch, encodeErr := runtime.Encode(unstructured.UnstructuredJSONScheme, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apis.kcp.io/v1alpha2", "kind": "APIExport", "spec": map[string]any{"resources": u.exportedResources(d, schemaName)},
		}})
		require.NoError(u.t, encodeErr)
		_, err = u.bound.provider.kinds("apiexports", "v1alpha2").Patch(u.t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	require.NoError(u.t, err)
	u.bound.last[name] = d
	return u.waitForBound(d.Name, schemaName)
}

// watch opens a watch of the resource of a definition.
func (u *user) watch(d *crd) watch.Interface {
	u.t.Helper()
	i := slices.IndexFunc(d.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Served })
	ctx, cancel := context.WithTimeout(u.t.Context(), testTimeout)
	u.t.Cleanup(cancel)
	w, err := u.resource(d.Spec.Versions[i].Name, d.Spec.Names.Plural).Watch(ctx, metav1.ListOptions{})
	require.NoError(u.t, err)
	return w
}

// waitForBound waits until a binding has bound a schema or reports an error.
func (u *user) waitForBound(name, schemaName string) error {
	u.t.Helper()
	w, err := u.kinds("apibindings", "v1alpha2").Watch(u.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	require.NoError(u.t, err)
	defer w.Stop()
	timeout := time.After(testTimeout)
	var last *unstructured.Unstructured
	for {
		select {
		case event := <-w.ResultChan():
			last, _ = event.Object.(*unstructured.Unstructured)
			require.NotNil(u.t, last, "%v", event)
		case <-timeout:
			require.FailNow(u.t, schemaName+" is not bound", "%v", last)
		}
		resources, _, err := unstructured.NestedSlice(last.Object, "status", "boundResources")
		require.NoError(u.t, err)
		if len(resources) == 1 && resources[0].(map[string]any)["schema"].(map[string]any)["name"] == schemaName { //nolint:forcetypeassert // it panics
			return nil
		}
		conditions, _, err := unstructured.NestedSlice(last.Object, "status", "conditions")
		require.NoError(u.t, err)
		for _, c := range conditions {
			if c := c.(map[string]any); c["reason"] == "NamingConflicts" || c["reason"] == "APIResourceSchemaInvalid" { //nolint:forcetypeassert // it panics
				return fmt.Errorf("%s: %s", c["reason"], c["message"])
			}
		}
	}
}

// createSchema creates the schema of a definition, and returns its name.
func (u *user) createSchema(d *crd) (string, error) {
	u.t.Helper()
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&d.Spec)
	require.NoError(u.t, err)
	delete(spec, "preserveUnknownFields")
	for _, v := range spec["versions"].([]any) { //nolint:forcetypeassert // it panics
		version := v.(map[string]any) //nolint:forcetypeassert // it panics
		if finalizer, ok := version["schema"].(map[string]any); ok {
			version["schema"] = finalizer["openAPIV3Schema"]
		}
	}
	if spec["conversion"] == nil && len(d.Spec.Versions) > 1 {
		spec["conversion"] = map[string]any{"strategy": "None"} // the default of definitions
	}
	u.bound.schemas[d.Name]++
	s := kind("apis.kcp.io/v1alpha1", "APIResourceSchema", fmt.Sprintf("v%d.%s", u.bound.schemas[d.Name], d.Name))
	s.Object["spec"] = spec
	_, err = u.bound.provider.kinds("apiresourceschemas", "v1alpha1").Create(u.t.Context(), s, metav1.CreateOptions{})
	return s.GetName(), err
}

func (u *user) exportedResources(d *crd, schemaName string) []any {
	return []any{map[string]any{"group": u.group, "name": d.Spec.Names.Plural, "schema": schemaName, "storage": map[string]any{"crd": map[string]any{}}}}
}

func kind(version, kind, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetAPIVersion(version)
	o.SetKind(kind)
	o.SetName(name)
	return o
}
