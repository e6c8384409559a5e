package apis

import (
	"encoding/json"
	"fmt"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// conversions are the functions between the versions of the kinds that have two.
var conversions = map[schema.GroupVersionKind]func(u *unstructured.Unstructured) (*unstructured.Unstructured, error){
	apisv1alpha1.SchemeGroupVersion.WithKind("APIExport"):  through(ExportToV1alpha2),
	apisv1alpha2.SchemeGroupVersion.WithKind("APIExport"):  through(ExportToV1alpha1),
	apisv1alpha1.SchemeGroupVersion.WithKind("APIBinding"): through(BindingToV1alpha2),
	apisv1alpha2.SchemeGroupVersion.WithKind("APIBinding"): through(BindingToV1alpha1),
}

// Convert returns an APIExport or APIBinding in another version. What that version
// cannot say is in annotations of what is returned. It fails for other kinds, and for
// annotations that do not say what they should. in does not change.
func Convert(in *unstructured.Unstructured, to string) (*unstructured.Unstructured, error) {
	gvk := in.GroupVersionKind()
	if in.GetAPIVersion() == to {
		return in.DeepCopy(), nil
	}
	convert, ok := conversions[gvk]
	if gv, err := schema.ParseGroupVersion(to); !ok || err != nil || (gv != apisv1alpha1.SchemeGroupVersion && gv != apisv1alpha2.SchemeGroupVersion) {
		return nil, fmt.Errorf("there is no conversion of %s to %s", gvk, to)
	}
	out, err := convert(in)
	if err != nil {
		return nil, fmt.Errorf("converting %s %q to %s: %w", gvk.Kind, in.GetName(), to, err)
	}
	out.SetAPIVersion(to)
	out.SetKind(gvk.Kind)
	if gvk.Kind == "APIExport" && to == apisv1alpha1.SchemeGroupVersion.String() {
		setGroups(out)
	}
	return out, nil
}

// setGroups sets the group of claims that have none. It is the key of a list, and has a default in the schema (package
// config). Requests are defaulted, but conversion is not. Without it, every update would add the group.
func setGroups(export *unstructured.Unstructured) {
	claims, _, _ := unstructured.NestedFieldNoCopy(export.Object, "spec", "permissionClaims")
	all, _ := claims.([]any)
	for i := range all {
		if claim, ok := all[i].(map[string]any); ok && claim["group"] == nil {
			claim["group"] = ""
		}
	}
}

// specs read and write the specs of the versions that are not stored.
var specs = map[schema.GroupVersionKind]func(u *unstructured.Unstructured) (*unstructured.Unstructured, error){
	apisv1alpha1.SchemeGroupVersion.WithKind("APIExport"):  through(same[apisv1alpha1.APIExport]),
	apisv1alpha1.SchemeGroupVersion.WithKind("APIBinding"): through(same[apisv1alpha1.APIBinding]),
}

func same[T any](in *T) (*T, error) { return in, nil }

// KeepSpec gives an APIExport or APIBinding of v1alpha1 the spec that it had before if the two differ only by empty
// fields, e.g. group: "", because these are not stored. Otherwise every update with them would be a change.
func KeepSpec(object, old *unstructured.Unstructured) {
	typed, ok := specs[object.GroupVersionKind()]
	if !ok {
		return
	}
	now, err := typed(object)
	if err != nil {
		return // validation reports an object of another type
	}
	before, err := typed(old)
	if spec := old.Object["spec"]; spec != nil && err == nil && equality.Semantic.DeepEqual(now.Object["spec"], before.Object["spec"]) {
		object.Object["spec"] = runtime.DeepCopyJSONValue(spec)
	}
}

// through makes a conversion between types one between objects without types.
func through[In, Out any](convert func(*In) (*Out, error)) func(*unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return func(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		in := new(In)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, in); err != nil {
			return nil, err
		}
		out, err := convert(in)
		if err != nil {
			return nil, err
		}
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(out)
		return &unstructured.Unstructured{Object: object}, err
	}
}

// remember puts what a version cannot say into an annotation, or removes the
// annotation where there is nothing.
func remember[T any](meta *metav1.ObjectMeta, annotation string, what []T) error {
	if len(what) == 0 {
		delete(meta.Annotations, annotation)
		if len(meta.Annotations) == 0 {
			meta.Annotations = nil
		}
		return nil
	}
	encoded, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("encoding the annotation %s: %w", annotation, err)
	}
	metav1.SetMetaDataAnnotation(meta, annotation, string(encoded))
	return nil
}

// recall returns what remember has put into an annotation.
func recall[T any](meta *metav1.ObjectMeta, annotation string) ([]T, error) {
	encoded, ok := meta.Annotations[annotation]
	if !ok {
		return nil, nil
	}
	var what []T
	if err := json.Unmarshal([]byte(encoded), &what); err != nil {
		return nil, fmt.Errorf("the annotation %s is not the JSON of %T: %w", annotation, what, err)
	}
	return what, nil
}

// saysMore reports whether a claim says what v1alpha1 cannot.
func saysMore(claim *apisv1alpha2.PermissionClaim) bool {
	return len(claim.Verbs) != 1 || claim.Verbs[0] != allVerbs || claim.DefaultSelector != nil
}

// allVerbs are what a claim in v1alpha1 asks for.
const allVerbs = "*"

// filter returns what is selected, or nil.
func filter[T any](all []T, selected func(*T) bool) []T {
	var out []T
	for i := range all {
		if selected(&all[i]) {
			out = append(out, all[i])
		}
	}
	return out
}

// The SDK converts fields, and this package sees to what it forgets: default
// selectors of claims to all verbs, and claims of v1alpha1 that ask for neither all
// objects nor some, which are invalid. Annotations are the SDK's, but only where they say
// something, so that reading and writing an object in another version changes nothing.

// ExportToV1alpha1 converts an APIExport. Resources that are not stored as custom
// resources, and claims to single verbs or with a default selector, are in annotations.
func ExportToV1alpha1(in *apisv1alpha2.APIExport) (*apisv1alpha1.APIExport, error) {
	in = withStorage(in)
	out := &apisv1alpha1.APIExport{}
	if err := apisv1alpha2.Convert_v1alpha2_APIExport_To_v1alpha1_APIExport(in, out, nil); err != nil {
		return nil, err
	}
	askForSomething(out.Spec.PermissionClaims)
	if err := remember(&out.ObjectMeta, apisv1alpha2.ResourceSchemasAnnotation, filter(in.Spec.Resources, isNotStored)); err != nil {
		return nil, err
	}
	return out, remember(&out.ObjectMeta, apisv1alpha2.PermissionClaimsAnnotation, filter(in.Spec.PermissionClaims, saysMore))
}

// ExportToV1alpha2 converts an APIExport. Claims to objects by name are in an
// annotation.
func ExportToV1alpha2(in *apisv1alpha1.APIExport) (*apisv1alpha2.APIExport, error) {
	out := &apisv1alpha2.APIExport{}
	if err := apisv1alpha2.Convert_v1alpha1_APIExport_To_v1alpha2_APIExport(in, out, nil); err != nil {
		return nil, err
	}
	return out, remember(&out.ObjectMeta, apisv1alpha2.PermissionClaimsV1Alpha1Annotation, filter(in.Spec.PermissionClaims, selectsObjects))
}

// withStorage returns an export whose resources say how they are stored: defaults come
// after conversion where only some fields of an object are applied.
func withStorage(in *apisv1alpha2.APIExport) *apisv1alpha2.APIExport {
	out := in.DeepCopy()
	for i := range out.Spec.Resources {
		if storage := &out.Spec.Resources[i].Storage; storage.CRD == nil && storage.Virtual == nil {
			storage.CRD = &apisv1alpha2.ResourceSchemaStorageCRD{}
		}
	}
	return out
}

// isNotStored reports whether a resource is something else than custom resources.
func isNotStored(r *apisv1alpha2.ResourceSchema) bool { return r.Storage.CRD == nil }

// selectsObjects reports whether a claim in v1alpha1 is to single objects.
func selectsObjects(claim *apisv1alpha1.PermissionClaim) bool { return len(claim.ResourceSelector) > 0 }

// askForSomething makes claims to no objects claims to all, which is how v1alpha2
// understands them.
func askForSomething(claims []apisv1alpha1.PermissionClaim) {
	for i := range claims {
		if len(claims[i].ResourceSelector) == 0 {
			claims[i].All = true
		}
	}
}

// StatusAnnotations are the annotations in which an APIBinding of v1alpha1 has what
// only the status of v1alpha2 can say. They are the status, and not the client's.
var StatusAnnotations = []string{apisv1alpha2.StatusPermissionClaimsAnnotation, apisv1alpha2.StatusAppliedClaimsAnnotation}

// V1alpha1StatusAnnotations are those in which v1alpha2 has what only the status of
// v1alpha1 can say.
var V1alpha1StatusAnnotations = []string{apisv1alpha2.StatusPermissionClaimsV1Alpha1Annotation, apisv1alpha2.StatusAppliedClaimsV1Alpha1Annotation}

// BindingToV1alpha1 converts an APIBinding. Claims to single verbs, by label or with a
// default selector are in annotations.
func BindingToV1alpha1(in *apisv1alpha2.APIBinding) (*apisv1alpha1.APIBinding, error) {
	out := &apisv1alpha1.APIBinding{}
	if err := apisv1alpha2.Convert_v1alpha2_APIBinding_To_v1alpha1_APIBinding(in, out, nil); err != nil {
		return nil, err
	}
	askForSomething(out.Status.ExportPermissionClaims)
	if err := remember(&out.ObjectMeta, apisv1alpha2.AcceptablePermissionClaimsAnnotation, filter(in.Spec.PermissionClaims, func(c *apisv1alpha2.AcceptablePermissionClaim) bool {
		return scopedSaysMore(&c.ScopedPermissionClaim)
	})); err != nil {
		return nil, err
	}
	if err := remember(&out.ObjectMeta, apisv1alpha2.StatusPermissionClaimsAnnotation, filter(in.Status.ExportPermissionClaims, saysMore)); err != nil {
		return nil, err
	}
	return out, remember(&out.ObjectMeta, apisv1alpha2.StatusAppliedClaimsAnnotation, filter(in.Status.AppliedPermissionClaims, scopedSaysMore))
}

// BindingToV1alpha2 converts an APIBinding. Claims to objects by name are in
// annotations, and reach all objects.
func BindingToV1alpha2(in *apisv1alpha1.APIBinding) (*apisv1alpha2.APIBinding, error) {
	out := &apisv1alpha2.APIBinding{}
	if err := apisv1alpha2.Convert_v1alpha1_APIBinding_To_v1alpha2_APIBinding(in, out, nil); err != nil {
		return nil, err
	}
	if err := restoreDefaultSelectors(&in.ObjectMeta, out); err != nil {
		return nil, err
	}
	if err := remember(&out.ObjectMeta, apisv1alpha2.PermissionClaimsV1Alpha1Annotation, filter(in.Spec.PermissionClaims, func(c *apisv1alpha1.AcceptablePermissionClaim) bool {
		return selectsObjects(&c.PermissionClaim)
	})); err != nil {
		return nil, err
	}
	if err := remember(&out.ObjectMeta, apisv1alpha2.StatusPermissionClaimsV1Alpha1Annotation, filter(in.Status.ExportPermissionClaims, selectsObjects)); err != nil {
		return nil, err
	}
	return out, remember(&out.ObjectMeta, apisv1alpha2.StatusAppliedClaimsV1Alpha1Annotation, filter(in.Status.AppliedPermissionClaims, selectsObjects))
}

// restoreDefaultSelectors gives claims the default selectors that the annotations
// remember.
func restoreDefaultSelectors(meta *metav1.ObjectMeta, out *apisv1alpha2.APIBinding) error {
	acceptable, err := recall[apisv1alpha2.AcceptablePermissionClaim](meta, apisv1alpha2.AcceptablePermissionClaimsAnnotation)
	if err != nil {
		return err
	}
	for i := range acceptable {
		for j := range out.Spec.PermissionClaims {
			restore(&out.Spec.PermissionClaims[j].PermissionClaim, &acceptable[i].PermissionClaim)
		}
	}
	exported, err := recall[apisv1alpha2.PermissionClaim](meta, apisv1alpha2.StatusPermissionClaimsAnnotation)
	if err != nil {
		return err
	}
	for i := range exported {
		for j := range out.Status.ExportPermissionClaims {
			restore(&out.Status.ExportPermissionClaims[j], &exported[i])
		}
	}
	applied, err := recall[apisv1alpha2.ScopedPermissionClaim](meta, apisv1alpha2.StatusAppliedClaimsAnnotation)
	if err != nil {
		return err
	}
	for i := range applied {
		for j := range out.Status.AppliedPermissionClaims {
			restore(&out.Status.AppliedPermissionClaims[j].PermissionClaim, &applied[i].PermissionClaim)
		}
	}
	return nil
}

// restore gives a claim the default selector that is remembered of it.
func restore(claim, remembered *apisv1alpha2.PermissionClaim) {
	if claim.EqualGRI(*remembered) {
		claim.DefaultSelector = remembered.DefaultSelector
	}
}

// scopedSaysMore reports whether a claim says what v1alpha1 cannot.
func scopedSaysMore(claim *apisv1alpha2.ScopedPermissionClaim) bool {
	return saysMore(&claim.PermissionClaim) || !claim.Selector.MatchAll
}
