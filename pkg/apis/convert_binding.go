package apis

import (
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
