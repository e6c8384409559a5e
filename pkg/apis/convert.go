package apis

import (
	"cmp"
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

var conversions = map[schema.GroupVersionKind]func(u *unstructured.Unstructured) (*unstructured.Unstructured, error){
	apisv1alpha1.SchemeGroupVersion.WithKind("APIExport"):  through(ExportToV1alpha2),
	apisv1alpha2.SchemeGroupVersion.WithKind("APIExport"):  through(ExportToV1alpha1),
	apisv1alpha1.SchemeGroupVersion.WithKind("APIBinding"): through(BindingToV1alpha2),
	apisv1alpha2.SchemeGroupVersion.WithKind("APIBinding"): through(BindingToV1alpha1),
}

// Convert returns an APIExport or APIBinding in another version. Fields that the version does not have are stored
// in annotations. It fails for other kinds, and for invalid annotations. in does not change.
func Convert(in *unstructured.Unstructured, to string) (*unstructured.Unstructured, error) {
	gvk := in.GroupVersionKind()
	if in.GetAPIVersion() == to {
		return in.DeepCopy(), nil
	}
	convert, ok := conversions[gvk]
	if gv, err := schema.ParseGroupVersion(to); !ok || err != nil || (gv != apisv1alpha1.SchemeGroupVersion && gv != apisv1alpha2.SchemeGroupVersion) {
		return nil, fmt.Errorf("there is no conversion from %s to %s", gvk, to)
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
// config), which is not applied to converted objects. Without it, every update would add the group.
func setGroups(export *unstructured.Unstructured) {
	claims, _, _ := unstructured.NestedFieldNoCopy(export.Object, "spec", "permissionClaims")
	all, _ := claims.([]any)
	for i := range all {
		if claim, ok := all[i].(map[string]any); ok && claim["group"] == nil {
			claim["group"] = ""
		}
	}
}

// specs decode and encode v1alpha1 objects.
var specs = map[schema.GroupVersionKind]func(u *unstructured.Unstructured) (*unstructured.Unstructured, error){
	apisv1alpha1.SchemeGroupVersion.WithKind("APIExport"):  through(same[apisv1alpha1.APIExport]),
	apisv1alpha1.SchemeGroupVersion.WithKind("APIBinding"): through(same[apisv1alpha1.APIBinding]),
}

func same[T any](in *T) (*T, error) { return in, nil }

// KeepSpec sets the spec of an APIExport or APIBinding of v1alpha1 to its former one if they differ only by empty fields,
// e.g. group: "". These are not stored, so every update with them would be a change.
func KeepSpec(object, old *unstructured.Unstructured) {
	typed, ok := specs[object.GroupVersionKind()]
	if !ok {
		return
	}
	now, err := typed(object)
	if err != nil {
		return // validation reports the error
	}
	before, err := typed(old)
	if spec := old.Object["spec"]; spec != nil && err == nil && equality.Semantic.DeepEqual(now.Object["spec"], before.Object["spec"]) {
		object.Object["spec"] = runtime.DeepCopyJSONValue(spec)
	}
}

// through converts a conversion between types to one between unstructured objects.
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

// encodeAnnotation stores values that a version does not have in an annotation, or removes the annotation if there are
// none.
func encodeAnnotation[T any](meta *metav1.ObjectMeta, annotation string, values []T) error {
	if len(values) == 0 {
		delete(meta.Annotations, annotation)
		if len(meta.Annotations) == 0 {
			meta.Annotations = nil
		}
		return nil
	}
	encoded, err := json.Marshal(values)
	if err != nil {
		return fmt.Errorf("encoding the annotation %s: %w", annotation, err)
	}
	metav1.SetMetaDataAnnotation(meta, annotation, string(encoded))
	return nil
}

func decodeAnnotation[T any](meta *metav1.ObjectMeta, annotation string) ([]T, error) {
	encoded, ok := meta.Annotations[annotation]
	if !ok {
		return nil, nil
	}
	var values []T
	if err := json.Unmarshal([]byte(encoded), &values); err != nil {
		return nil, fmt.Errorf("the annotation %s is not the JSON of %T: %w", annotation, values, err)
	}
	return values, nil
}

// needsV1alpha2 reports whether a claim cannot be expressed in v1alpha1.
func needsV1alpha2(claim *apisv1alpha2.PermissionClaim) bool {
	return len(claim.Verbs) != 1 || claim.Verbs[0] != everyVerb || claim.DefaultSelector != nil
}

func filter[T any](all []T, selected func(*T) bool) []T {
	var out []T
	for i := range all {
		if selected(&all[i]) {
			out = append(out, all[i])
		}
	}
	return out
}

// The SDK converts fields, but not default selectors of claims to all verbs, and v1alpha1 claims that select neither
// all objects nor some. Annotations are in the SDK's format, but only written if necessary, so that reading and writing
// an object in another version changes nothing.

// ExportToV1alpha1 converts an APIExport. Annotations contain resources that are not stored as custom resources, and
// claims to single verbs or with a default selector.
func ExportToV1alpha1(in *apisv1alpha2.APIExport) (*apisv1alpha1.APIExport, error) {
	in = in.DeepCopy()
	for i := range in.Spec.Resources { // defaulting comes after conversion in server-side apply
		if storage := &in.Spec.Resources[i].Storage; storage.CRD == nil && storage.Virtual == nil {
			storage.CRD = &apisv1alpha2.ResourceSchemaStorageCRD{}
		}
	}
	out := &apisv1alpha1.APIExport{}
	if err := apisv1alpha2.Convert_v1alpha2_APIExport_To_v1alpha1_APIExport(in, out, nil); err != nil {
		return nil, err
	}
	selectAll(out.Spec.PermissionClaims)
	return out, cmp.Or(
		encodeAnnotation(&out.ObjectMeta, apisv1alpha2.ResourceSchemasAnnotation, filter(in.Spec.Resources, func(r *apisv1alpha2.ResourceSchema) bool {
			return r.Storage.CRD == nil
		})),
		encodeAnnotation(&out.ObjectMeta, apisv1alpha2.PermissionClaimsAnnotation, filter(in.Spec.PermissionClaims, needsV1alpha2)),
	)
}

// ExportToV1alpha2 converts an APIExport. An annotation contains claims to objects by name.
func ExportToV1alpha2(in *apisv1alpha1.APIExport) (*apisv1alpha2.APIExport, error) {
	out := &apisv1alpha2.APIExport{}
	if err := apisv1alpha2.Convert_v1alpha1_APIExport_To_v1alpha2_APIExport(in, out, nil); err != nil {
		return nil, err
	}
	return out, encodeAnnotation(&out.ObjectMeta, apisv1alpha2.PermissionClaimsV1Alpha1Annotation, filter(in.Spec.PermissionClaims, selectsObjects))
}

func selectsObjects(claim *apisv1alpha1.PermissionClaim) bool { return len(claim.ResourceSelector) > 0 }

// selectAll changes claims without a selector to claims to all objects, as v1alpha2 interprets them.
func selectAll(claims []apisv1alpha1.PermissionClaim) {
	for i := range claims {
		if len(claims[i].ResourceSelector) == 0 {
			claims[i].All = true
		}
	}
}

// StatusAnnotations are the annotations of a v1alpha1 APIBinding that contain the parts of its status which only v1alpha2
// has. Clients must not change them.
var StatusAnnotations = []string{apisv1alpha2.StatusPermissionClaimsAnnotation, apisv1alpha2.StatusAppliedClaimsAnnotation}

// V1alpha1StatusAnnotations are the annotations of a v1alpha2 APIBinding for the status that only v1alpha1 has.
var V1alpha1StatusAnnotations = []string{apisv1alpha2.StatusPermissionClaimsV1Alpha1Annotation, apisv1alpha2.StatusAppliedClaimsV1Alpha1Annotation}

// BindingToV1alpha1 converts an APIBinding. Annotations contain claims to single verbs, by label, or with a default
// selector.
func BindingToV1alpha1(in *apisv1alpha2.APIBinding) (*apisv1alpha1.APIBinding, error) {
	out := &apisv1alpha1.APIBinding{}
	if err := apisv1alpha2.Convert_v1alpha2_APIBinding_To_v1alpha1_APIBinding(in, out, nil); err != nil {
		return nil, err
	}
	selectAll(out.Status.ExportPermissionClaims)
	return out, cmp.Or(
		encodeAnnotation(&out.ObjectMeta, apisv1alpha2.AcceptablePermissionClaimsAnnotation, filter(in.Spec.PermissionClaims, func(c *apisv1alpha2.AcceptablePermissionClaim) bool {
			return scopedNeedsV1alpha2(&c.ScopedPermissionClaim)
		})),
		encodeAnnotation(&out.ObjectMeta, apisv1alpha2.StatusPermissionClaimsAnnotation, filter(in.Status.ExportPermissionClaims, needsV1alpha2)),
		encodeAnnotation(&out.ObjectMeta, apisv1alpha2.StatusAppliedClaimsAnnotation, filter(in.Status.AppliedPermissionClaims, scopedNeedsV1alpha2)),
	)
}

// BindingToV1alpha2 converts an APIBinding. Annotations contain claims to objects by name, which apply to all objects.
func BindingToV1alpha2(in *apisv1alpha1.APIBinding) (*apisv1alpha2.APIBinding, error) {
	out := &apisv1alpha2.APIBinding{}
	if err := apisv1alpha2.Convert_v1alpha1_APIBinding_To_v1alpha2_APIBinding(in, out, nil); err != nil {
		return nil, err
	}
	return out, cmp.Or(
		restoreDefaultSelectors(&in.ObjectMeta, apisv1alpha2.AcceptablePermissionClaimsAnnotation, out.Spec.PermissionClaims, acceptableClaim),
		restoreDefaultSelectors(&in.ObjectMeta, apisv1alpha2.StatusPermissionClaimsAnnotation, out.Status.ExportPermissionClaims, sameClaim),
		restoreDefaultSelectors(&in.ObjectMeta, apisv1alpha2.StatusAppliedClaimsAnnotation, out.Status.AppliedPermissionClaims, func(c *apisv1alpha2.ScopedPermissionClaim) *apisv1alpha2.PermissionClaim {
			return &c.PermissionClaim
		}),
		encodeAnnotation(&out.ObjectMeta, apisv1alpha2.PermissionClaimsV1Alpha1Annotation, filter(in.Spec.PermissionClaims, func(c *apisv1alpha1.AcceptablePermissionClaim) bool {
			return selectsObjects(&c.PermissionClaim)
		})),
		encodeAnnotation(&out.ObjectMeta, apisv1alpha2.StatusPermissionClaimsV1Alpha1Annotation, filter(in.Status.ExportPermissionClaims, selectsObjects)),
		encodeAnnotation(&out.ObjectMeta, apisv1alpha2.StatusAppliedClaimsV1Alpha1Annotation, filter(in.Status.AppliedPermissionClaims, selectsObjects)),
	)
}

func acceptableClaim(c *apisv1alpha2.AcceptablePermissionClaim) *apisv1alpha2.PermissionClaim {
	return &c.PermissionClaim
}

func sameClaim(c *apisv1alpha2.PermissionClaim) *apisv1alpha2.PermissionClaim { return c }

// restoreDefaultSelectors sets the default selectors of claims from an annotation.
func restoreDefaultSelectors[T any](meta *metav1.ObjectMeta, annotation string, claims []T, claimOf func(*T) *apisv1alpha2.PermissionClaim) error {
	remembered, err := decodeAnnotation[T](meta, annotation)
	for i := range remembered {
		for j := range claims {
			if claim, former := claimOf(&claims[j]), claimOf(&remembered[i]); claim.EqualGRI(*former) {
				claim.DefaultSelector = former.DefaultSelector
			}
		}
	}
	return err
}

func scopedNeedsV1alpha2(claim *apisv1alpha2.ScopedPermissionClaim) bool {
	return needsV1alpha2(&claim.PermissionClaim) || !claim.Selector.MatchAll
}
