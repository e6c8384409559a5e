package apiexport

import (
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
)

// mayGenerate reports whether an identity may be generated: the export has never had one and does not reference a secret of a user.
func mayGenerate(export *apisv1alpha2.APIExport, ref corev1.SecretReference) bool {
	return export.Status.IdentityHash == "" && ref == apis.DefaultSecret(export.Name)
}

// identify sets the identity from the secret, or the reason why there is none. An existing hash does not change.
func identify(export *apisv1alpha2.APIExport, ref corev1.SecretReference, secret *corev1.Secret) *apisv1alpha2.APIExport {
	export = export.DeepCopy()
	if secret != nil {
		export.Spec.Identity = &apisv1alpha2.Identity{SecretRef: &ref}
	}
	where := ref.Namespace + "/" + ref.Name
	problem := ""
	switch key := keyOf(secret); {
	case secret == nil && export.Status.IdentityHash == "":
		problem = fmt.Sprintf("The secret %s does not exist: create it with the identity under %q", where, apis.IdentityKey)
	case secret == nil:
		problem = fmt.Sprintf("The secret %s no longer exists: recreate it with the same identity under %q", where, apis.IdentityKey)
	case len(key) == 0:
		problem = fmt.Sprintf("The secret %s has no value under %q: store the identity there", where, apis.IdentityKey)
	case export.Status.IdentityHash == "":
		export.Status.IdentityHash = apis.IdentityHash(key)
	case export.Status.IdentityHash != apis.IdentityHash(key):
		problem = fmt.Sprintf("The secret %s has another identity than status.identityHash, which never changes: reference the secret with the previous identity, or restore it", where)
	}
	if problem == "" {
		conditions.MarkTrue(export, apisv1alpha2.APIExportIdentityValid)
		return export
	}
	conditions.MarkFalse(export, apisv1alpha2.APIExportIdentityValid, apisv1alpha2.IdentityVerificationFailedReason, conditionsv1alpha1.ConditionSeverityError, "%s", problem)
	return export
}

func keyOf(secret *corev1.Secret) []byte {
	if secret == nil {
		return nil
	}
	return secret.Data[apis.IdentityKey]
}

func generationFailed(export *apisv1alpha2.APIExport, err error) *apisv1alpha2.APIExport {
	export = export.DeepCopy()
	conditions.MarkFalse(export, apisv1alpha2.APIExportIdentityValid, apisv1alpha2.IdentityGenerationFailedReason, conditionsv1alpha1.ConditionSeverityError,
		"%v, retrying", err)
	return export
}

func wantsSlice(export *apisv1alpha2.APIExport) bool {
	_, skip := export.Annotations[apisv1alpha2.APIExportEndpointSliceSkipAnnotation]
	return !skip
}

func newSlice(export *apisv1alpha2.APIExport) *apisv1alpha1.APIExportEndpointSlice {
	return &apisv1alpha1.APIExportEndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: export.Name,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: apisv1alpha2.SchemeGroupVersion.String(), Kind: "APIExport", Name: export.Name, UID: export.UID,
			}},
		},
		Spec: apisv1alpha1.APIExportEndpointSliceSpec{
			APIExport: apisv1alpha1.ExportBindingReference{Path: logicalcluster.From(export).Path().String(), Name: export.Name},
		},
	}
}

// ownerOf returns the UID of the export that owns a default slice.
func ownerOf(slice *apisv1alpha1.APIExportEndpointSlice) (types.UID, bool) {
	if slice == nil {
		return "", false
	}
	for _, owner := range slice.OwnerReferences {
		if owner.Kind == "APIExport" && strings.HasPrefix(owner.APIVersion, apisv1alpha1.SchemeGroupVersion.Group+"/") && owner.Name == slice.Name {
			return owner.UID, true
		}
	}
	return "", false
}
