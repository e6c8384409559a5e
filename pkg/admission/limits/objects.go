package limits

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/patchcosts"
	"github.com/shardplane/shardplane/pkg/request/patterns"
	"github.com/shardplane/shardplane/pkg/request/values"
)

// kind limits objects of one kind that every shard and the cache server keep in memory. Limits per logical
// cluster do not bound their total cost.
type kind struct {
	// bytes is the maximum size of an object.
	bytes int
	// values is the maximum number of values in an object; 0 means no limit. Many short values take far more
	// memory and CPU time than their bytes suggest.
	values int
	lists  []list
	// expressions is true if the kind has CEL expressions.
	expressions bool
}

// list limits the number of entries of a list in an object.
type list struct {
	path    []string
	entries int
}

const (
	//reference:limit object | WorkspaceType, WorkspaceAuthenticationConfiguration: size | 413
	maxTenancyBytes = 64 << 10
	//reference:limit object | WorkspaceType: values in labels, annotations and spec | 403
	maxTypeValues = 2048
	//reference:limit object | WorkspaceType: `extend.with` | 403
	maxExtended = 32
	//reference:limit object | WorkspaceType: `authenticationConfigurations` | 403
	maxConfigurations = 10
	//reference:limit object | WorkspaceType: types in `limitAllowedChildren` or `limitAllowedParents` | 403
	maxAllowed = 64
	//reference:limit object | WorkspaceAuthenticationConfiguration: issuers | 403
	maxIssuers = 10
)

var kinds = map[schema.GroupResource]kind{
	tenancyv1alpha1.Resource("workspacetypes"): {bytes: maxTenancyBytes, values: maxTypeValues, lists: []list{
		{[]string{"spec", "extend", "with"}, maxExtended}, {[]string{"spec", "authenticationConfigurations"}, maxConfigurations},
		{[]string{"spec", "limitAllowedChildren", "types"}, maxAllowed}, {[]string{"spec", "limitAllowedParents", "types"}, maxAllowed},
	}},
	tenancyv1alpha1.Resource("workspaceauthenticationconfigurations"): {bytes: maxTenancyBytes, lists: []list{{[]string{"spec", "jwt"}, maxIssuers}}, expressions: true},
}

// validKind rejects objects that exceed the limits of their kind, unless the old object did too.
func validKind(a admission.Attributes) error {
	k, ok := kinds[a.GetResource().GroupResource()]
	if !ok || a.GetSubresource() != "" {
		return nil
	}
	if err := limitSize(a, k.bytes, size, "%d bytes, at most %d allowed"); err != nil {
		return err
	}
	now, old := contentOf(a.GetObject()), contentOf(a.GetOldObject())
	if n := valuesOf(now); k.values > 0 && n > k.values && n > valuesOf(old) {
		return admission.NewForbidden(a, fmt.Errorf("it has %d values in labels, annotations and spec, at most %d allowed", n, k.values))
	}
	for _, l := range k.lists {
		if n := entries(now, l.path); n > l.entries && n > entries(old, l.path) {
			return admission.NewForbidden(a, fmt.Errorf("%s has %d entries, at most %d allowed", strings.Join(l.path, "."), n, l.entries))
		}
	}
	if k.expressions {
		return percluster.Invalid(a, patterns.WithoutFormer(largePatterns(now), func() field.ErrorList { return largePatterns(old) }))
	}
	return nil
}

// largePatterns returns an error for each expression that contains a regular expression that is too large.
func largePatterns(content map[string]any) field.ErrorList {
	var errs field.ErrorList
	var total patterns.Total
	var walk func(path *field.Path, value any)
	walk = func(path *field.Path, value any) {
		switch value := value.(type) {
		case map[string]any:
			for name, value := range value {
				text, isText := value.(string)
				if !isText {
					walk(path.Child(name), value)
					continue
				}
				if name != "expression" && name != "valueExpression" {
					continue
				}
				if err := total.AddExpression(text); err != nil {
					errs = append(errs, patterns.Invalid(path.Child(name), text, err))
				}
			}
		case []any:
			for i, value := range value {
				walk(path.Index(i), value)
			}
		}
	}
	walk(field.NewPath("spec"), content["spec"])
	return errs
}

// contentOf returns the content of a custom resource, or nil.
func contentOf(obj runtime.Object) map[string]any {
	if custom, ok := obj.(*unstructured.Unstructured); ok {
		return custom.Object
	}
	return nil
}

func entries(content map[string]any, path []string) int {
	list, _, _ := unstructured.NestedFieldNoCopy(content, path...)
	all, _ := list.([]any)
	return len(all)
}

// valuesOf returns the number of values in an object, without its status and managed fields.
func valuesOf(content map[string]any) int {
	n := 0
	for field, value := range content {
		switch metadata, isMap := value.(map[string]any); {
		case field == "status":
		case field == "metadata" && isMap:
			for name, value := range metadata {
				if name != "managedFields" {
					n += leaves(value)
				}
			}
		default:
			n += leaves(value)
		}
	}
	return n
}

// leaves returns the number of leaf values in a document.
func leaves(document any) int {
	n := 0
	switch document := document.(type) {
	case map[string]any:
		for _, value := range document {
			n += leaves(value)
		}
	case []any:
		for _, value := range document {
			n += leaves(value)
		}
	}
	return max(n, 1)
}

const (
	//reference:limit object | aggregated ClusterRole: selectors | 403
	maxSelectors = 64
	//reference:limit object | aggregated ClusterRole: labels and values of expressions in selectors | 403
	maxRequirements = 128
)

// validAggregation limits selectors and requirements, because each selector is matched with the labels of all
// ClusterRoles of the logical cluster whenever one of them changes.
func validAggregation(a admission.Attributes) error {
	const aggregationHint = ": add a common label to the selected cluster roles, and select it"
	return cmp.Or(
		limitCount(a, maxSelectors, func(obj runtime.Object) int { return len(selectorsOf(obj)) }, "aggregationRule.clusterRoleSelectors has %d entries, at most %d allowed"+aggregationHint),
		limitCount(a, maxRequirements, requirementsOf, "the selectors of aggregationRule have %d labels and values of expressions, at most %d allowed"+aggregationHint))
}

func selectorsOf(obj runtime.Object) []metav1.LabelSelector {
	if role, ok := obj.(*rbacv1.ClusterRole); ok && role.AggregationRule != nil {
		return role.AggregationRule.ClusterRoleSelectors
	}
	return nil
}

func requirementsOf(obj runtime.Object) (n int) {
	for _, selector := range selectorsOf(obj) {
		n += request.Requirements(&selector)
	}
	return n
}

// maxOwners is limited because the garbage collector reads each owner whenever the object changes.
//
//reference:limit object | all objects: owner references | 403
const maxOwners = 1000

var metadata = field.NewPath("metadata")

// exceeds returns the count of an object, and whether it exceeds both the maximum and the count of the old object.
func exceeds(a admission.Attributes, most int, count func(runtime.Object) int) (int, bool) {
	n := count(a.GetObject())
	return n, n > most && n > count(a.GetOldObject())
}

// limitCount rejects an object whose count exceeds both the maximum and the count of the old object.
func limitCount(a admission.Attributes, most int, count func(runtime.Object) int, message string) error {
	if n, over := exceeds(a, most, count); over {
		return admission.NewForbidden(a, fmt.Errorf(message, n, most))
	}
	return nil
}

// limitSize is like limitCount for counts on which the size of an object depends.
func limitSize(a admission.Attributes, most int, count func(runtime.Object) int, message string) error {
	if n, over := exceeds(a, most, count); over {
		return tooLarge(a, fmt.Sprintf(message, n, most))
	}
	return nil
}

func tooLarge(a admission.Attributes, has string) error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s %q has %s", a.GetResource().GroupResource(), a.GetName(), has))
}

// validSizes limits field managers, lists that are merged by key, and maps, because several patches can add entries.
func validSizes(a admission.Attributes) error {
	managers := func(obj runtime.Object) int { return metadataOf(obj).managers }
	if err := limitCount(a, request.MaxFieldManagers, managers, "metadata.managedFields has %d entries, at most %d allowed: apply by fewer managers, or remove the entries of managers that no longer write the object"); err != nil {
		return err
	}
	if err := limitSize(a, patchcosts.MaxKeyed, keyed, "%d entries in lists that are merged by key, at most %d allowed: distribute them over several objects"); err != nil {
		return err
	}
	paths, largest := measure(a.GetObject())
	if paths <= values.MaxPaths && largest <= patchcosts.MaxFields {
		return nil
	}
	oldPaths, oldLargest := measure(a.GetOldObject())
	if largest > max(patchcosts.MaxFields, oldLargest) {
		return tooLarge(a, fmt.Sprintf("a map with %d entries, at most %d allowed: distribute them over several objects", largest, patchcosts.MaxFields))
	}
	if paths > max(values.MaxPaths, oldPaths) {
		return apierrors.NewRequestEntityTooLargeError(values.ErrPaths.Error())
	}
	return nil
}

// validMetadata rejects metadata with many or large errors before upstream's validation finds all of them. Each
// error about a second controller contains all owners.
func validMetadata(a admission.Attributes) error {
	has := metadataOf(a.GetObject())
	many := has.named()+has.owners > request.MaxErrors
	m, err := meta.Accessor(a.GetObject())
	if err != nil || !many && has.owners < 2 {
		return nil //nolint:nilerr // without metadata there is nothing to validate
	}
	errs := validControllers(m)
	if len(errs) == 0 && many {
		errs = firstErrors(m)
	}
	return percluster.Invalid(a, errs)
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

// measure is values.Measure for custom resources. For built-in objects, of which validation copies few paths, it returns
// only the size of the maps that upstream's validation does not limit.
func measure(obj runtime.Object) (paths, largest int) {
	switch o := obj.(type) {
	case nil:
		return 0, 0
	case *unstructured.Unstructured:
		return values.Measure(o.Object, 0)
	case *corev1.ConfigMap:
		return 0, max(len(o.Data), len(o.BinaryData), len(o.Labels), len(o.Annotations))
	case *corev1.Secret:
		return 0, max(len(o.Data), len(o.Labels), len(o.Annotations))
	default:
		return 0, metadataOf(obj).named()
	}
}

// keyed returns the number of entries in lists that are merged by key and that upstream's validation does not limit.
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
	return n + metadataOf(obj).finalizers
}

// metadataEntries are the numbers of entries of the lists and maps in the metadata of an object.
type metadataEntries struct{ labels, annotations, finalizers, managers, owners int }

func (e metadataEntries) named() int { return e.labels + e.annotations + e.finalizers }

func metadataOf(obj runtime.Object) metadataEntries {
	if content := contentOf(obj); content != nil { // the accessors would convert each entry
		in := func(field string) int {
			value, _, _ := unstructured.NestedFieldNoCopy(content, "metadata", field)
			list, _ := value.([]any)
			names, _ := value.(map[string]any)
			return len(list) + len(names)
		}
		return metadataEntries{in("labels"), in("annotations"), in("finalizers"), in("managedFields"), in("ownerReferences")}
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return metadataEntries{}
	}
	return metadataEntries{len(m.GetLabels()), len(m.GetAnnotations()), len(m.GetFinalizers()), len(m.GetManagedFields()), len(m.GetOwnerReferences())}
}

// size returns the approximate stored size of an object, to be compared with objects of the same kind.
func size(obj runtime.Object) int {
	if sized, ok := obj.(interface{ Size() int }); ok {
		return sized.Size()
	}
	return jsonSize(obj)
}

func jsonSize(obj runtime.Object) int {
	data, err := json.Marshal(obj)
	if err != nil {
		return 0
	}
	return len(data)
}
