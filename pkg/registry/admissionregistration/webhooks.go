// Package admissionregistration describes the resources that restrict or change writes to a logical cluster: webhook
// configurations, and mutating and validating policies with their bindings. Expressions, selectors and URLs of stored
// objects are valid. Package admission enforces them.
package admissionregistration

import (
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/util/webhook"

	"github.com/shardplane/shardplane/pkg/registry/resource"
	"github.com/shardplane/shardplane/pkg/registry/validate"
	"github.com/shardplane/shardplane/pkg/request/rsakeys"
)

const (
	defaultTimeoutSeconds = 10
	defaultServicePort    = 443
)

var mutatingWebhooks = extension[*admissionregistrationv1.MutatingWebhookConfigurationList](
	func(obj *admissionregistrationv1.MutatingWebhookConfiguration) {
		for i := range obj.Webhooks {
			ptrDefault(&obj.Webhooks[i].ReinvocationPolicy, admissionregistrationv1.NeverReinvocationPolicy)
			defaultWebhook(&obj.Webhooks[i])
		}
	},
	func(obj *admissionregistrationv1.MutatingWebhookConfiguration) any { return obj.Webhooks },
	func(obj *admissionregistrationv1.MutatingWebhookConfiguration) field.ErrorList {
		return validateWebhooks(obj.Webhooks)
	},
	webhookColumns(
		admissionregistrationv1.MutatingWebhookConfiguration{}.SwaggerDoc(),
		func(obj *admissionregistrationv1.MutatingWebhookConfiguration) int { return len(obj.Webhooks) },
	),
)

var validatingWebhooks = extension[*admissionregistrationv1.ValidatingWebhookConfigurationList](
	func(obj *admissionregistrationv1.ValidatingWebhookConfiguration) {
		for i := range obj.Webhooks {
			hook := &obj.Webhooks[i]
			common := commonForm(*hook)
			defaultWebhook(&common)
			hook.FailurePolicy, hook.MatchPolicy, hook.TimeoutSeconds = common.FailurePolicy, common.MatchPolicy, common.TimeoutSeconds
			hook.NamespaceSelector, hook.ObjectSelector = common.NamespaceSelector, common.ObjectSelector
		}
	},
	func(obj *admissionregistrationv1.ValidatingWebhookConfiguration) any { return obj.Webhooks },
	func(obj *admissionregistrationv1.ValidatingWebhookConfiguration) field.ErrorList {
		hooks := make([]admissionregistrationv1.MutatingWebhook, 0, len(obj.Webhooks))
		for i := range obj.Webhooks {
			hooks = append(hooks, commonForm(obj.Webhooks[i]))
		}
		return validateWebhooks(hooks)
	},
	webhookColumns(
		admissionregistrationv1.ValidatingWebhookConfiguration{}.SwaggerDoc(),
		func(obj *admissionregistrationv1.ValidatingWebhookConfiguration) int { return len(obj.Webhooks) },
	),
)

func webhookColumns[T resource.Object](doc map[string]string, count func(T) int) []resource.Column[T] {
	return []resource.Column[T]{
		resource.NameColumn[T](),
		{Name: "Webhooks", Description: doc["webhooks"], Cell: func(obj T) any { return int64(count(obj)) }},
		resource.AgeColumn[T](),
	}
}

// commonForm returns a webhook as a mutating one, for defaults and validation. It shares memory with hook.
func commonForm(hook admissionregistrationv1.ValidatingWebhook) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{
		Name:                    hook.Name,
		ClientConfig:            hook.ClientConfig,
		Rules:                   hook.Rules,
		FailurePolicy:           hook.FailurePolicy,
		MatchPolicy:             hook.MatchPolicy,
		NamespaceSelector:       hook.NamespaceSelector,
		ObjectSelector:          hook.ObjectSelector,
		SideEffects:             hook.SideEffects,
		TimeoutSeconds:          hook.TimeoutSeconds,
		AdmissionReviewVersions: hook.AdmissionReviewVersions,
		MatchConditions:         hook.MatchConditions,
	}
}

func defaultWebhook(hook *admissionregistrationv1.MutatingWebhook) {
	ptrDefault(&hook.FailurePolicy, admissionregistrationv1.Fail)
	ptrDefault(&hook.MatchPolicy, admissionregistrationv1.Equivalent)
	ptrDefault(&hook.NamespaceSelector, metav1.LabelSelector{})
	ptrDefault(&hook.ObjectSelector, metav1.LabelSelector{})
	ptrDefault(&hook.TimeoutSeconds, defaultTimeoutSeconds)
	for i := range hook.Rules {
		ptrDefault(&hook.Rules[i].Scope, admissionregistrationv1.AllScopes)
	}
	if service := hook.ClientConfig.Service; service != nil {
		ptrDefault(&service.Port, defaultServicePort)
	}
}

const maxTimeoutSeconds = 30

// reviewVersions are the supported versions of AdmissionReview.
var reviewVersions = []string{"v1", "v1beta1"}

func validateWebhooks(hooks []admissionregistrationv1.MutatingWebhook) field.ErrorList {
	var errs field.ErrorList
	names := validate.Seen[string]{}
	for i := range hooks {
		name, path := hooks[i].Name, field.NewPath("webhooks").Index(i)
		errs = append(errs, validation.IsFullyQualifiedName(path.Child("name"), name)...)
		errs = append(errs, names.Add(name, path.Child("name"))...)
		errs = append(errs, validateWebhook(&hooks[i], path)...)
	}
	return errs
}

// validateWebhook validates all fields except the name.
func validateWebhook(hook *admissionregistrationv1.MutatingWebhook, path *field.Path) field.ErrorList {
	errs := validateReviewVersions(hook.AdmissionReviewVersions, path.Child("admissionReviewVersions"))
	for i := range hook.Rules {
		errs = append(errs, validateRule(&hook.Rules[i], path.Child("rules").Index(i))...)
	}
	errs = append(errs, optional(hook.FailurePolicy, path.Child("failurePolicy"), failurePolicies...)...)
	errs = append(errs, optional(hook.MatchPolicy, path.Child("matchPolicy"), matchPolicies...)...)
	switch hook.SideEffects {
	case nil:
		errs = append(errs, field.Required(path.Child("sideEffects"), "must specify one of None, NoneOnDryRun"))
	default:
		errs = append(errs, oneOf(*hook.SideEffects, path.Child("sideEffects"),
			admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.SideEffectClassNoneOnDryRun)...)
	}
	if seconds := hook.TimeoutSeconds; seconds != nil && (*seconds < 1 || *seconds > maxTimeoutSeconds) {
		errs = append(errs, field.Invalid(path.Child("timeoutSeconds"), *seconds, "the timeout value must be between 1 and 30 seconds"))
	}
	errs = append(errs, validateSelector(hook.NamespaceSelector, path.Child("namespaceSelector"))...)
	errs = append(errs, validateSelector(hook.ObjectSelector, path.Child("objectSelector"))...)
	errs = append(errs, validateClientConfig(&hook.ClientConfig, path.Child("clientConfig"))...)
	errs = append(errs, validateMatchConditions(newExpressions(false), hook.MatchConditions, path.Child("matchConditions"))...)
	return append(errs, optional(hook.ReinvocationPolicy, path.Child("reinvocationPolicy"), reinvocationPolicies...)...)
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
	if err := rsakeys.CheckBundle(config.CABundle); err != nil {
		return field.ErrorList{field.Invalid(path.Child("caBundle"), field.OmitValueType{}, err.Error())}
	}
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

// Group returns admissionregistration.k8s.io/v1.
func Group() resource.Group {
	return resource.Group{
		GroupVersion: admissionregistrationv1.SchemeGroupVersion,
		Resources: []resource.Definition{
			mutatingWebhooks,
			validatingWebhooks,
			mutatingPolicies,
			mutatingBindings,
			validatingPolicies,
			validatingBindings,
		},
	}
}
