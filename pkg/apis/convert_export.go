package apis

import (
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
)

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
