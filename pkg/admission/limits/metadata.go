package limits

import (
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/patchcosts"
)

// maxOwners is the maximum number of owners of an object. The garbage collector reads each of them whenever the
// object changes.
//
//reference:limit object | all objects: owner references | 403
const maxOwners = 1000

var metadata = field.NewPath("metadata")

// exceeds returns the count of an object, and whether it exceeds both the maximum and the count of the old object.
func exceeds(a admission.Attributes, most int, count func(runtime.Object) int) (int, bool) {
	n := count(a.GetObject())
	return n, n > most && n > count(a.GetOldObject())
}

func validManagers(a admission.Attributes) error {
	if n, over := exceeds(a, request.MaxFieldManagers, managers); over {
		return admission.NewForbidden(a, fmt.Errorf("metadata.managedFields has %d entries, at most %d allowed: apply by fewer managers, or remove the entries of managers that no longer write the object", n, request.MaxFieldManagers))
	}
	return nil
}

func validOwners(a admission.Attributes) error {
	if n, over := exceeds(a, maxOwners, owners); over {
		return admission.NewForbidden(a, fmt.Errorf("metadata.ownerReferences has %d entries, at most %d allowed: use one owner, and let that object reference the other owners", n, maxOwners))
	}
	return nil
}

// validMetadata rejects metadata with many or large errors before upstream's validation finds all of them. Each
// error about a second controller contains all owners.
func validMetadata(a admission.Attributes) error {
	obj := a.GetObject()
	many := named(obj)+owners(obj) > request.MaxErrors
	if !many && owners(obj) < 2 {
		return nil
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil //nolint:nilerr // it has no metadata
	}
	errs := validControllers(m)
	if len(errs) == 0 && many {
		errs = firstErrors(m)
	}
	if len(errs) == 0 {
		return nil
	}
	return request.NewInvalid(a.GetKind().GroupKind(), a.GetName(), errs)
}

func validControllers(m metav1.Object) field.ErrorList {
	var controllers []metav1.OwnerReference
	for _, owner := range m.GetOwnerReferences() {
		if owner.Controller != nil && *owner.Controller {
			controllers = append(controllers, owner)
		}
	}
	if len(controllers) < 2 {
		return nil
	}
	return field.ErrorList{field.Invalid(metadata.Child("ownerReferences"), controllers[:2], fmt.Sprintf("only one reference can have controller set to true, but %d references have it", len(controllers)))}
}

// firstErrors returns the first validation errors of metadata if there are more than request.MaxErrors, and
// otherwise nil, because upstream reports them together with others.
func firstErrors(m metav1.Object) field.ErrorList {
	var errs field.ErrorList
	add := func(more field.ErrorList) bool {
		errs = append(errs, more...)
		return len(errs) <= request.MaxErrors
	}
	for key, value := range m.GetLabels() {
		if !add(metav1validation.ValidateLabels(map[string]string{key: value}, metadata.Child("labels"))) {
			return errs
		}
	}
	for key := range m.GetAnnotations() {
		if !add(apivalidation.ValidateAnnotations(map[string]string{key: ""}, metadata.Child("annotations"))) {
			return errs
		}
	}
	for _, finalizer := range m.GetFinalizers() {
		if !add(apivalidation.ValidateFinalizerName(finalizer, metadata.Child("finalizers"))) {
			return errs
		}
	}
	for i, owner := range m.GetOwnerReferences() {
		found := apivalidation.ValidateOwnerReferences([]metav1.OwnerReference{owner}, metadata.Child("ownerReferences"))
		for _, err := range found {
			err.Field = strings.Replace(err.Field, "[0]", fmt.Sprintf("[%d]", i), 1)
		}
		if !add(found) {
			return errs
		}
	}
	return nil
}

// validKeyed limits lists that are merged by key, to which several patches can add entries.
func validKeyed(a admission.Attributes) error {
	if n, over := exceeds(a, patchcosts.MaxKeyed, keyed); over {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s %q has %d entries in lists that are merged by key, at most %d allowed: distribute them over several objects", a.GetResource().GroupResource(), a.GetName(), n, patchcosts.MaxKeyed))
	}
	return nil
}

// validMaps limits maps, to which several patches can add entries.
func validMaps(a admission.Attributes) error {
	if n, over := exceeds(a, patchcosts.MaxFields, largestMap); over {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s %q has a map with %d entries, at most %d allowed: distribute them over several objects", a.GetResource().GroupResource(), a.GetName(), n, patchcosts.MaxFields))
	}
	return nil
}

// largestMap returns the number of entries of the largest map in a custom resource, and of the maps of a
// built-in object that upstream's validation does not limit.
func largestMap(obj runtime.Object) int {
	switch o := obj.(type) {
	case nil:
		return 0
	case *unstructured.Unstructured:
		return patchcosts.LargestMap(o.Object)
	case *corev1.ConfigMap:
		return max(len(o.Data), len(o.BinaryData), len(o.Labels), len(o.Annotations))
	case *corev1.Secret:
		return max(len(o.Data), len(o.Labels), len(o.Annotations))
	default:
		return named(obj)
	}
}

// keyed returns the number of entries of a built-in object in lists that are merged by key and that upstream's
// validation does not limit.
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
	return n + finalizers(obj)
}

// named returns the number of labels, annotations and finalizers of an object.
func named(obj runtime.Object) int {
	return inMetadata(obj, "labels", func(m metav1.Object) int { return len(m.GetLabels()) }) +
		inMetadata(obj, "annotations", func(m metav1.Object) int { return len(m.GetAnnotations()) }) +
		finalizers(obj)
}

func finalizers(obj runtime.Object) int {
	return inMetadata(obj, "finalizers", func(m metav1.Object) int { return len(m.GetFinalizers()) })
}

func managers(obj runtime.Object) int {
	return inMetadata(obj, "managedFields", func(m metav1.Object) int { return len(m.GetManagedFields()) })
}

func owners(obj runtime.Object) int {
	return inMetadata(obj, "ownerReferences", func(m metav1.Object) int { return len(m.GetOwnerReferences()) })
}

// inMetadata returns the length of a list or map in the metadata of an object. The accessors of unstructured
// objects would convert each entry.
func inMetadata(obj runtime.Object, field string, typed func(metav1.Object) int) int {
	if custom, ok := obj.(*unstructured.Unstructured); ok {
		value, _, _ := unstructured.NestedFieldNoCopy(custom.Object, "metadata", field)
		switch entries := value.(type) {
		case []any:
			return len(entries)
		case map[string]any:
			return len(entries)
		default:
			return 0
		}
	}
	if m, err := meta.Accessor(obj); err == nil {
		return typed(m)
	}
	return 0
}
