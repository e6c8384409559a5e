package admissionregistration

import (
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/util/webhook"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
)

const (
	defaultTimeoutSeconds = 10
	defaultServicePort    = 443
)

var mutatingWebhooks = &resource.Resource[*admissionregistrationv1.MutatingWebhookConfiguration]{
	Name:       "mutatingwebhookconfigurations",
	Kind:       "MutatingWebhookConfiguration",
	Categories: []string{"api-extensions"},
	NewList:    func() runtime.Object { return &admissionregistrationv1.MutatingWebhookConfigurationList{} },
	Default: func(obj *admissionregistrationv1.MutatingWebhookConfiguration) {
		for i := range obj.Webhooks {
			hook := &obj.Webhooks[i]
			ptrDefault(&hook.ReinvocationPolicy, admissionregistrationv1.NeverReinvocationPolicy)
			defaultWebhook(mutatingFields(hook))
		}
	},
	Strategy: strategy(
		func(obj *admissionregistrationv1.MutatingWebhookConfiguration) any { return obj.Webhooks },
		validateMutatingWebhooks,
	),
	Columns: webhookColumns(
		admissionregistrationv1.MutatingWebhookConfiguration{}.SwaggerDoc(),
		func(obj *admissionregistrationv1.MutatingWebhookConfiguration) int { return len(obj.Webhooks) },
	),
}

var validatingWebhooks = &resource.Resource[*admissionregistrationv1.ValidatingWebhookConfiguration]{
	Name:       "validatingwebhookconfigurations",
	Kind:       "ValidatingWebhookConfiguration",
	Categories: []string{"api-extensions"},
	NewList:    func() runtime.Object { return &admissionregistrationv1.ValidatingWebhookConfigurationList{} },
	Default: func(obj *admissionregistrationv1.ValidatingWebhookConfiguration) {
		for i := range obj.Webhooks {
			defaultWebhook(validatingFields(&obj.Webhooks[i]))
		}
	},
	Strategy: strategy(
		func(obj *admissionregistrationv1.ValidatingWebhookConfiguration) any { return obj.Webhooks },
		validateValidatingWebhooks,
	),
	Columns: webhookColumns(
		admissionregistrationv1.ValidatingWebhookConfiguration{}.SwaggerDoc(),
		func(obj *admissionregistrationv1.ValidatingWebhookConfiguration) int { return len(obj.Webhooks) },
	),
}

func webhookColumns[T resource.Object](doc map[string]string, count func(T) int) []resource.Column[T] {
	return []resource.Column[T]{
		resource.NameColumn[T](),
		{Name: "Webhooks", Description: doc["webhooks"], Cell: func(obj T) any { return int64(count(obj)) }},
		resource.AgeColumn[T](),
	}
}

// webhookFields are the common fields of both kinds of webhooks.
type webhookFields struct {
	name              string
	clientConfig      *admissionregistrationv1.WebhookClientConfig
	rules             []admissionregistrationv1.RuleWithOperations
	failurePolicy     **admissionregistrationv1.FailurePolicyType
	matchPolicy       **admissionregistrationv1.MatchPolicyType
	namespaceSelector **metav1.LabelSelector
	objectSelector    **metav1.LabelSelector
	sideEffects       *admissionregistrationv1.SideEffectClass
	timeoutSeconds    **int32
	reviewVersions    []string
	matchConditions   []admissionregistrationv1.MatchCondition
}

func mutatingFields(hook *admissionregistrationv1.MutatingWebhook) webhookFields {
	return webhookFields{
		hook.Name, &hook.ClientConfig, hook.Rules, &hook.FailurePolicy, &hook.MatchPolicy, &hook.NamespaceSelector,
		&hook.ObjectSelector, hook.SideEffects, &hook.TimeoutSeconds, hook.AdmissionReviewVersions, hook.MatchConditions,
	}
}

func validatingFields(hook *admissionregistrationv1.ValidatingWebhook) webhookFields {
	return webhookFields{
		hook.Name, &hook.ClientConfig, hook.Rules, &hook.FailurePolicy, &hook.MatchPolicy, &hook.NamespaceSelector,
		&hook.ObjectSelector, hook.SideEffects, &hook.TimeoutSeconds, hook.AdmissionReviewVersions, hook.MatchConditions,
	}
}

func defaultWebhook(hook webhookFields) {
	ptrDefault(hook.failurePolicy, admissionregistrationv1.Fail)
	ptrDefault(hook.matchPolicy, admissionregistrationv1.Equivalent)
	ptrDefault(hook.namespaceSelector, metav1.LabelSelector{})
	ptrDefault(hook.objectSelector, metav1.LabelSelector{})
	ptrDefault(hook.timeoutSeconds, defaultTimeoutSeconds)
	for i := range hook.rules {
		ptrDefault(&hook.rules[i].Scope, admissionregistrationv1.AllScopes)
	}
	if service := hook.clientConfig.Service; service != nil {
		ptrDefault(&service.Port, defaultServicePort)
	}
}

const maxTimeoutSeconds = 30

// reviewVersions are the supported versions of AdmissionReview.
var reviewVersions = []string{"v1", "v1beta1"}

func validateMutatingWebhooks(obj *admissionregistrationv1.MutatingWebhookConfiguration) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i := range obj.Webhooks {
		hook, path := &obj.Webhooks[i], field.NewPath("webhooks").Index(i)
		errs = append(errs, validateWebhook(mutatingFields(hook), names, path)...)
		if policy := hook.ReinvocationPolicy; policy != nil {
			errs = append(errs, oneOf(*policy, path.Child("reinvocationPolicy"), reinvocationPolicies...)...)
		}
	}
	return errs
}

func validateValidatingWebhooks(obj *admissionregistrationv1.ValidatingWebhookConfiguration) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i := range obj.Webhooks {
		errs = append(errs, validateWebhook(validatingFields(&obj.Webhooks[i]), names, field.NewPath("webhooks").Index(i))...)
	}
	return errs
}

// validateWebhook validates the common fields. names contains the names of previous webhooks.
func validateWebhook(hook webhookFields, names map[string]bool, path *field.Path) field.ErrorList {
	errs := validation.IsFullyQualifiedName(path.Child("name"), hook.name)
	if names[hook.name] {
		errs = append(errs, field.Duplicate(path.Child("name"), hook.name))
	}
	names[hook.name] = true
	errs = append(errs, validateReviewVersions(hook.reviewVersions, path.Child("admissionReviewVersions"))...)
	for i := range hook.rules {
		errs = append(errs, validateRule(&hook.rules[i], path.Child("rules").Index(i))...)
	}
	if policy := *hook.failurePolicy; policy != nil {
		errs = append(errs, oneOf(*policy, path.Child("failurePolicy"), failurePolicies...)...)
	}
	if policy := *hook.matchPolicy; policy != nil {
		errs = append(errs, oneOf(*policy, path.Child("matchPolicy"), matchPolicies...)...)
	}
	switch hook.sideEffects {
	case nil:
		errs = append(errs, field.Required(path.Child("sideEffects"), "must specify one of None, NoneOnDryRun"))
	default:
		errs = append(errs, oneOf(*hook.sideEffects, path.Child("sideEffects"),
			admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.SideEffectClassNoneOnDryRun)...)
	}
	if seconds := *hook.timeoutSeconds; seconds != nil && (*seconds < 1 || *seconds > maxTimeoutSeconds) {
		errs = append(errs, field.Invalid(path.Child("timeoutSeconds"), *seconds, "the timeout value must be between 1 and 30 seconds"))
	}
	errs = append(errs, validateSelector(*hook.namespaceSelector, path.Child("namespaceSelector"))...)
	errs = append(errs, validateSelector(*hook.objectSelector, path.Child("objectSelector"))...)
	errs = append(errs, validateClientConfig(hook.clientConfig, path.Child("clientConfig"))...)
	return append(errs, validateMatchConditions(newExpressions(false), hook.matchConditions, path.Child("matchConditions"))...)
}

func validateReviewVersions(versions []string, path *field.Path) field.ErrorList {
	all := strings.Join(reviewVersions, ", ")
	if len(versions) == 0 {
		return field.ErrorList{field.Required(path, "must specify one of "+all)}
	}
	var errs field.ErrorList
	supported, seen := false, map[string]bool{}
	for i, version := range versions {
		if seen[version] {
			errs = append(errs, field.Invalid(path.Index(i), version, "duplicate version"))
		}
		seen[version] = true
		errs = append(errs, validate.Messages(path.Index(i), version, validation.IsDNS1035Label(version))...)
		supported = supported || slices.Contains(reviewVersions, version)
	}
	if !supported && len(errs) == 0 {
		errs = append(errs, field.Invalid(path, versions, "must include at least one of "+all))
	}
	return errs
}

func validateClientConfig(config *admissionregistrationv1.WebhookClientConfig, path *field.Path) field.ErrorList {
	switch {
	case (config.URL == nil) == (config.Service == nil):
		return field.ErrorList{field.Required(path, "exactly one of url or service is required")}
	case config.URL != nil:
		return webhook.ValidateWebhookURL(path.Child("url"), *config.URL, true)
	default:
		port := int32(defaultServicePort)
		if config.Service.Port != nil {
			port = *config.Service.Port
		}
		return webhook.ValidateWebhookService(path.Child("service"), config.Service.Name, config.Service.Namespace, config.Service.Path, port)
	}
}
