package conformance

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

const (
	configMaps = `[{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]`
	bindPolicy = `
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: p}
spec: {policyName: p, validationActions: [Deny], paramRef: {name: r, parameterNotFoundAction: Deny}}
`
	paramPolicy = `
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: p}
spec:
  paramKind: {apiVersion: %s, kind: %s}
  matchConstraints: {resourceRules: ` + configMaps + `}
  validations: [{expression: "object.metadata.name != params.data.denied", message: denied by a parameter}]
` + bindPolicy
	webhook = `
apiVersion: admissionregistration.k8s.io/v1
kind: %sWebhookConfiguration
metadata: {name: w}
webhooks:
- name: w.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {url: "https://127.0.0.1:1/%s"}
  matchConditions: [{name: one, expression: "object.metadata.name == 'denied'"}]
  rules: ` + configMaps + `
`
	// uncountable is a kind with objects that cannot be listed in its preferred version.
	uncountable = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.quota.example}
spec:
  group: quota.example
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing, listKind: ThingList}
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: {url: "https://127.0.0.1:1/convert"}}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}
---
apiVersion: quota.example/v1
kind: Thing
metadata: {name: a, namespace: default}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: default}
---
apiVersion: v1
kind: Secret
metadata: {name: a, namespace: default}
`
	// The ConfigMap kube-root-ca.crt of each namespace counts.
	uncountableQuotas = `
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: a, %[1]s}
spec: {hard: {count/things.quota.example: "5", configmaps: "%[2]d"}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: b, %[1]s}
spec: {hard: {count/secrets: "1"}}
`
	uncountableProbes = `
apiVersion: v1
kind: Secret
metadata: {name: denied, namespace: default}
---
apiVersion: quota.example/v1
kind: Thing
metadata: {name: denied, namespace: default}
`
)

// uncountableErrors returns the errors for one more object of each kind.
func uncountableErrors(configMaps int) []string {
	return []string{
		fmt.Sprintf("used: configmaps=%[1]d, limited: configmaps=%[1]d", configMaps), "used: count/secrets=1, limited: count/secrets=1",
		"status unknown for quota: a, resources: count/things.quota.example",
	}
}

// admissionFeatures contains manifests that deny the ConfigMap denied, or mutate the ConfigMap
// admitted, further objects to create, and parts of the expected responses.
var admissionFeatures = map[string]struct {
	manifests string
	probes    string
	responses []string
}{
	"policy": {manifests: `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: p}
spec:
  matchConstraints: {resourceRules: ` + configMaps + `}
  validations: [{expression: "object.metadata.name != 'denied'", message: denied by a policy}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: p}
spec: {policyName: p, validationActions: [Deny]}
`, responses: []string{"denied by a policy"}},
	"policy-with-configmap": {manifests: `
apiVersion: v1
kind: ConfigMap
metadata: {name: r, namespace: default}
data: {denied: denied}
` + fmt.Sprintf(paramPolicy, "v1", "ConfigMap"), responses: []string{"denied by a parameter"}},
	"policy-with-custom-resource": {manifests: `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: rules.param.example}
spec:
  group: param.example
  scope: Cluster
  names: {plural: rules, singular: rule, kind: Rule, listKind: RuleList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
apiVersion: param.example/v1
kind: Rule
metadata: {name: r}
data: {denied: denied}
` + fmt.Sprintf(paramPolicy, "param.example/v1", "Rule"), responses: []string{"denied by a parameter"}},
	"mutating-policy": {manifests: `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: p}
spec:
  reinvocationPolicy: Never
  matchConstraints: {resourceRules: ` + configMaps + `}
  mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: "Object{metadata: Object.metadata{labels: {'by': 'policy'}}}"}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: p}
spec: {policyName: p}
`, responses: []string{"map[by:policy]"}},
	"validating-webhook": {manifests: fmt.Sprintf(webhook, "Validating", "validate"), responses: []string{"failed calling webhook"}},
	"mutating-webhook":   {manifests: fmt.Sprintf(webhook, "Mutating", "mutate"), responses: []string{"failed calling webhook"}},
	"quota": {manifests: `
apiVersion: v1
kind: ResourceQuota
metadata: {name: q, namespace: default}
spec: {hard: {count/configmaps: "0"}}
`, responses: []string{"exceeded quota"}},
	"uncountable": {manifests: uncountable + fmt.Sprintf(uncountableQuotas, "namespace: default", 2), probes: uncountableProbes, responses: uncountableErrors(2)},
	"uncountable-in-logical-cluster": {
		manifests: uncountable + `
---
apiVersion: v1
kind: Namespace
metadata: {name: admin}
` + fmt.Sprintf(uncountableQuotas, `namespace: admin, annotations: {experimental.quota.kcp.io/cluster-scoped: "true"}`, 4),
		probes: uncountableProbes, responses: uncountableErrors(4),
	},
}

// usersWithAdmission returns a user for each admission feature by its name.
func usersWithAdmission(t *testing.T, admin *rest.Config) map[string]*user {
	t.Helper()
	all := map[string]*user{}
	for name, feature := range admissionFeatures {
		u := newUser(t, admin, name, "guarded.example.com")
		all[name] = u
		for _, object := range u.objectsIn(feature.manifests) {
			u.createAny(object)
		}
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			response := u.admission()
			for _, part := range feature.responses {
				require.Contains(c, response, part)
			}
		}, testTimeout, tick, name+" has no effect")
	}
	return all
}

func (u *user) objectsIn(manifests string) (all []*unstructured.Unstructured) {
	u.t.Helper()
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096); ; {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(u.t, err)
		if object.Object != nil {
			all = append(all, object)
		}
	}
}

// createAny creates an object when its kind is served.
func (u *user) createAny(object *unstructured.Unstructured) {
	u.t.Helper()
	kind := object.GroupVersionKind()
	u.eventually(kind.Kind+" was not created", func() bool {
		groups, err := restmapper.GetAPIGroupResources(u.kube.Discovery())
		require.NoError(u.t, err)
		mapping, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			return false
		}
		require.NoError(u.t, err)
		_, err = u.dyn.Resource(mapping.Resource).Namespace(object.GetNamespace()).Create(u.t.Context(), object, metav1.CreateOptions{})
		require.NoError(u.t, err)
		return true
	})
}

// admission returns the responses to the creation of two ConfigMaps and of the further objects of
// the feature. The client retries as requested by the server.
func (u *user) admission() string {
	var responses []string
	for _, name := range []string{"admitted", "denied"} {
		created, err := u.kube.CoreV1().ConfigMaps("default").Create(u.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			responses = append(responses, string(apierrors.ReasonForError(err))+": "+err.Error())
			continue
		}
		responses = append(responses, fmt.Sprint(created.Labels))
	}
	for _, object := range u.objectsIn(admissionFeatures[u.name].probes) {
		resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		_, err := u.dyn.Resource(resource).Namespace(object.GetNamespace()).Create(u.t.Context(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		responses = append(responses, fmt.Sprint(err))
	}
	return strings.Join(responses, "\n")
}

// retryAdmission waits until the server accepts connections, and returns an error if its first
// response differs from before.
func (u *user) retryAdmission(before string) error {
	deadline := time.Now().Add(testTimeout)
	for time.Now().Before(deadline) {
		switch response := u.admission(); {
		case response == before:
			return nil
		case !strings.Contains(response, "connection refused"):
			return fmt.Errorf("%s: first responses %q, before the restart %q", u.name, response, before)
		}
	}
	return fmt.Errorf("%s is not served", u.name)
}
