package limits

import (
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/patchcosts"
)

// maxOwners is how many owners an object may have. The collector of garbage reads each of them,
// whenever the object changes.
const maxOwners = 1000

// validManagers refuses more managers of fields than there may be, and were before.
func validManagers(a admission.Attributes) error {
	n := managers(a.GetObject())
	if n <= request.MaxFieldManagers || n <= managers(a.GetOldObject()) {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("metadata.managedFields has %d entries and may have %d: apply by fewer managers, or remove the entries of those that do not write the object any more", n, request.MaxFieldManagers))
}

// validOwners refuses more owners than there may be, and were before.
func validOwners(a admission.Attributes) error {
	n := owners(a.GetObject())
	if n <= maxOwners || n <= owners(a.GetOldObject()) {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("metadata.ownerReferences has %d entries and may have %d: give the object one owner, which the others own", n, maxOwners))
}

// validKeyed refuses more entries in lists of built-in kinds that are merged by key than there may be, and were before: several
// patches can add them.
func validKeyed(a admission.Attributes) error {
	n := keyed(a.GetObject())
	if n <= patchcosts.MaxKeyed || n <= keyed(a.GetOldObject()) {
		return nil
	}
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s %q has %d entries in lists that are merged by key and may have %d: distribute them over several objects", a.GetResource().GroupResource(), a.GetName(), n, patchcosts.MaxKeyed))
}

// keyed returns how many entries a built-in object has in lists that are merged by key, of which no validation limits the
// number.
func keyed(obj runtime.Object) int {
	n := 0
	switch o := obj.(type) {
	case nil, *unstructured.Unstructured:
		return 0
	case *corev1.ServiceAccount:
		n = len(o.Secrets) + len(o.ImagePullSecrets)
	case *corev1.Namespace:
		n = len(o.Status.Conditions)
	case *certificatesv1.CertificateSigningRequest:
		n = len(o.Status.Conditions)
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		n = len(o.Webhooks)
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		n = len(o.Webhooks)
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		n = len(o.Status.Conditions)
	default:
	}
	return n + inMetadata(obj, "finalizers", func(m metav1.Object) int { return len(m.GetFinalizers()) })
}

// managers returns how many entries of managers of fields an object has.
func managers(obj runtime.Object) int {
	return inMetadata(obj, "managedFields", func(m metav1.Object) int { return len(m.GetManagedFields()) })
}

// owners returns how many references to owners an object has.
func owners(obj runtime.Object) int {
	return inMetadata(obj, "ownerReferences", func(m metav1.Object) int { return len(m.GetOwnerReferences()) })
}

// inMetadata returns how long a list in the metadata of an object is, of typed ones by typed.
func inMetadata(obj runtime.Object, field string, typed func(metav1.Object) int) int {
	if obj == nil {
		return 0
	}
	if custom, ok := obj.(*unstructured.Unstructured); ok { // which would convert each entry
		list, _, _ := unstructured.NestedFieldNoCopy(custom.Object, "metadata", field)
		entries, _ := list.([]any)
		return len(entries)
	}
	if m, err := meta.Accessor(obj); err == nil {
		return typed(m)
	}
	return 0
}
