package apis

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apivalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shardplane/shardplane/pkg/request"
)

// MaxItems limits the resources, and the permission claims, of an export or binding. maxVerbs limits the verbs of a claim.
//
//reference:limit object | APIExport, APIBinding: resources, or permission claims | 422
//reference:limit object | APIExport, APIBinding: verbs of a permission claim | 422
const MaxItems, maxVerbs = 1000, 100

// maxMirrored and maxClaims limit the bytes of an export's annotations with MirroredPrefix and of its encoded claims.
//
//reference:limit object | APIExport: annotations `extra.apis.kcp.io/*` | 422
//reference:limit object | APIExport: size of the permission claims | 422
const maxMirrored, maxClaims = 16 << 10, 128 << 10

var (
	annotationsPath = field.NewPath("metadata", "annotations")
	resourceForm    = regexp.MustCompile(`^[a-z][-a-z0-9]*[a-z0-9]$`)
)

// validateExport repeats checks of the v1alpha2 schema, which is not applied to the values in annotations of v1alpha1.
func validateExport(export, old *apisv1alpha2.APIExport) field.ErrorList {
	var errs field.ErrorList
	had := 0 // the size of the largest former selector
	if old != nil {
		had = largestProposedSelector(old.Spec.PermissionClaims)
	}
	seen := map[schema.GroupResource]bool{}
	for i := range export.Spec.Resources {
		resource, path := &export.Spec.Resources[i], spec.Child("resources").Index(i)
		errs = append(errs, validateResource(resource, path)...)
		id := schema.GroupResource{Group: resource.Group, Resource: resource.Name}
		if seen[id] {
			errs = append(errs, field.Duplicate(path, fmt.Sprintf("%s of group %q", resource.Name, resource.Group)))
		}
		seen[id] = true
	}
	clear(seen)
	for i := range export.Spec.PermissionClaims {
		claim, path := &export.Spec.PermissionClaims[i], spec.Child("permissionClaims").Index(i)
		errs = append(errs, validateClaim(claim, had, path)...)
		id := schema.GroupResource{Group: claim.Group, Resource: claim.Resource}
		if seen[id] {
			errs = append(errs, field.Duplicate(path, fmt.Sprintf("%s of group %q", claim.Resource, claim.Group)))
		}
		seen[id] = true
	}
	errs = append(errs, validateMirrored(export)...)
	if identity := export.Spec.Identity; identity != nil && identity.SecretRef != nil && identity.SecretRef.Name == "" {
		errs = append(errs, field.Required(spec.Child("identity", "secretRef", "name"), "specify the secret that has the identity under "+IdentityKey+", or omit secretRef to have one created"))
	}
	return errs
}

// validateMirrored limits the data that is copied to each binding, because it counts against the consumers' quotas.
func validateMirrored(export *apisv1alpha2.APIExport) field.ErrorList {
	var errs field.ErrorList
	size := 0
	for key, value := range export.Annotations {
		if strings.HasPrefix(key, MirroredPrefix) {
			size += len(key) + len(value)
		}
	}
	if size > maxMirrored {
		errs = append(errs, field.TooLong(annotationsPath.Key(MirroredPrefix+"*"), "", maxMirrored))
	}
	if claims, err := json.Marshal(export.Spec.PermissionClaims); err == nil && len(claims) > maxClaims {
		errs = append(errs, field.TooLong(spec.Child("permissionClaims"), "", maxClaims))
	}
	return errs
}

func validateResource(resource *apisv1alpha2.ResourceSchema, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !resourceForm.MatchString(resource.Name) {
		errs = append(errs, field.Invalid(path.Child("name"), resource.Name, "must be the plural name of a resource, such as widgets"))
	}
	errs = append(errs, validateGroup(resource.Group, path.Child("group"))...)
	name, err := ParseSchemaName(resource.Schema)
	want := schema.GroupResource{Group: resource.Group, Resource: resource.Name}
	if err != nil || name.Resource != want {
		errs = append(errs, field.Invalid(path.Child("schema"), resource.Schema, "must be the name of an APIResourceSchema of this resource, which is <prefix>."+DefinitionName(want)))
	}
	storage := path.Child("storage")
	switch virtual := resource.Storage.Virtual; {
	case (resource.Storage.CRD == nil) == (virtual == nil):
		errs = append(errs, field.Invalid(storage, resource.Storage, "exactly one of crd and virtual must be set"))
	case virtual != nil:
		for _, f := range []struct{ value, name string }{{virtual.Reference.Kind, "kind"}, {virtual.Reference.Name, "name"}} {
			if f.value == "" {
				errs = append(errs, field.Required(storage.Child("virtual", "reference", f.name), "refer to the object that specifies where the resource is served"))
			}
		}
		errs = append(errs, validateIdentity(virtual.IdentityHash, storage.Child("virtual", "identityHash"))...)
		if virtual.IdentityHash == "" {
			errs = append(errs, field.Required(storage.Child("virtual", "identityHash"), "copy it from the status of the cached resource whose objects these are"))
		}
	}
	return errs
}

// validateGroup validates the group of an exported resource. The core group is "".
func validateGroup(group string, path *field.Path) field.ErrorList {
	switch {
	case group == coreGroup:
		return field.ErrorList{field.Invalid(path, group, "the core group is called \"\"")}
	case group != "" && len(apivalidation.IsDNS1123Subdomain(group)) > 0:
		return field.ErrorList{field.Invalid(path, group, "must be \"\" or a lower case DNS subdomain, such as example.org")}
	}
	return nil
}

func validateClaim(claim *apisv1alpha2.PermissionClaim, had int, path *field.Path) field.ErrorList {
	errs := validateClaimed(claim, path)
	if claim.IdentityHash == "" && hasIdentity(claim.Group, claim.Resource) {
		errs = append(errs, field.Required(path.Child("identityHash"), "it is required unless the resource is built in or of apis.kcp.io: copy it from the status of the APIExport that the resource comes from"))
	}
	if claim.DefaultSelector != nil {
		errs = append(errs, validateSelector(claim.DefaultSelector, had, path.Child("defaultSelector"))...)
	}
	return errs
}

// validateClaimed validates the common fields of claims of exports and of bindings.
func validateClaimed(claim *apisv1alpha2.PermissionClaim, path *field.Path) field.ErrorList {
	errs := validateGroup(claim.Group, path.Child("group"))
	if !resourceForm.MatchString(claim.Resource) {
		errs = append(errs, field.Invalid(path.Child("resource"), claim.Resource, "must be the plural name of a resource, such as configmaps"))
	}
	errs = append(errs, validateIdentity(claim.IdentityHash, path.Child("identityHash"))...)
	if len(claim.Verbs) == 0 {
		errs = append(errs, field.Required(path.Child("verbs"), "specify at least one verb, or \"*\" for all"))
	}
	if len(claim.Verbs) > maxVerbs {
		return append(errs, field.TooMany(path.Child("verbs"), len(claim.Verbs), maxVerbs))
	}
	for i, verb := range claim.Verbs {
		if verb == "" {
			errs = append(errs, field.Required(path.Child("verbs").Index(i), "specify a verb, such as get"))
		} else if slices.Contains(claim.Verbs[:i], verb) {
			errs = append(errs, field.Duplicate(path.Child("verbs").Index(i), verb))
		}
	}
	return errs
}

// validateIdentity validates an optional identity, which becomes a part of storage keys.
func validateIdentity(hash string, path *field.Path) field.ErrorList {
	if hash == "" || request.ValidIdentity(hash) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, hash, "must be an identity as in the status of an APIExport: lower-case letters and digits")}
}

// validateName validates the name of a cluster-scoped object in a reference.
func validateName(name string, path *field.Path, kind string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "specify the "+kind)}
	}
	var errs field.ErrorList
	for _, message := range apivalidation.IsDNS1123Subdomain(name) {
		errs = append(errs, field.Invalid(path, name, message))
	}
	return errs
}

const immutableReference = "the reference is immutable: delete the object, and create another one"

func validateBinding(binding, old *apisv1alpha2.APIBinding) field.ErrorList {
	var errs field.ErrorList
	had := 0 // the size of the largest former selector
	if old != nil {
		had = largestAcceptedSelector(old.Spec.PermissionClaims)
	}
	if export, path := binding.Spec.Reference.Export, spec.Child("reference", "export"); export == nil {
		errs = append(errs, field.Required(path, "specify the APIExport to bind, and the path of its logical cluster unless it is this one"))
	} else {
		errs = append(errs, validateReference(export.Path, export.Name, path)...)
	}
	seen := map[string]bool{}
	for i := range binding.Spec.PermissionClaims {
		claim, path := &binding.Spec.PermissionClaims[i], spec.Child("permissionClaims").Index(i)
		errs = append(errs, validateClaimed(&claim.PermissionClaim, path)...)
		errs = append(errs, validateSelector(&claim.Selector, had, path.Child("selector"))...)
		if claim.DefaultSelector != nil {
			errs = append(errs, validateSelector(claim.DefaultSelector, had, path.Child("defaultSelector"))...)
		}
		if claim.State != apisv1alpha2.ClaimAccepted && claim.State != apisv1alpha2.ClaimRejected {
			errs = append(errs, field.NotSupported(path.Child("state"), claim.State, []apisv1alpha2.AcceptablePermissionClaimState{apisv1alpha2.ClaimAccepted, apisv1alpha2.ClaimRejected}))
		}
		id := claim.Group + "/" + claim.Resource + ":" + claim.IdentityHash
		if seen[id] {
			errs = append(errs, field.Duplicate(path, fmt.Sprintf("%s of group %q and identity %q", claim.Resource, claim.Group, claim.IdentityHash)))
		}
		seen[id] = true
	}
	if old == nil {
		return errs
	}
	if !equality.Semantic.DeepEqual(binding.Spec.Reference, old.Spec.Reference) {
		errs = append(errs, field.Invalid(spec.Child("reference"), binding.Spec.Reference, immutableReference))
	}
	if binding.Status.Phase == "" && old.Status.Phase != "" {
		errs = append(errs, field.Invalid(field.NewPath("status", "phase"), binding.Status.Phase, fmt.Sprintf("the phase was %s and cannot be unset", old.Status.Phase)))
	}
	return errs
}

func validateEndpointSlice(slice, old *apisv1alpha1.APIExportEndpointSlice) field.ErrorList {
	errs := validateReference(slice.Spec.APIExport.Path, slice.Spec.APIExport.Name, spec.Child("export"))
	if old != nil && slice.Spec.APIExport != old.Spec.APIExport {
		errs = append(errs, field.Invalid(spec.Child("export"), slice.Spec.APIExport, immutableReference))
	}
	return errs
}

func validateReference(path, name string, at *field.Path) field.ErrorList {
	errs := validateName(name, at.Child("name"), "APIExport")
	if path != "" && !request.ValidPath(logicalcluster.NewPath(path)) {
		errs = append(errs, field.Invalid(at.Child("path"), path, "must be a logical cluster's name, or its path such as root:org:provider; leave it out for this logical cluster"))
	}
	return errs
}
