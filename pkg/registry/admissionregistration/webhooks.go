package admissionregistration

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/shardplane/shardplane/pkg/registry/resource"
)

const (
	defaultTimeoutSeconds = 10
	defaultServicePort    = 443
)

var mutatingWebhooks = &resource.Resource[*admissionregistrationv1.MutatingWebhookConfiguration]{
	Name:       "mutatingwebhookconfigurations",
	Singular:   "mutatingwebhookconfiguration",
	Kind:       "MutatingWebhookConfiguration",
	Categories: []string{"api-extensions"},
	New: func() *admissionregistrationv1.MutatingWebhookConfiguration {
		return &admissionregistrationv1.MutatingWebhookConfiguration{}
	},
	NewList: func() runtime.Object { return &admissionregistrationv1.MutatingWebhookConfigurationList{} },
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
	Singular:   "validatingwebhookconfiguration",
	Kind:       "ValidatingWebhookConfiguration",
	Categories: []string{"api-extensions"},
	New: func() *admissionregistrationv1.ValidatingWebhookConfiguration {
		return &admissionregistrationv1.ValidatingWebhookConfiguration{}
	},
	NewList: func() runtime.Object { return &admissionregistrationv1.ValidatingWebhookConfigurationList{} },
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

// webhookFields are the fields that both kinds of webhooks have.
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
