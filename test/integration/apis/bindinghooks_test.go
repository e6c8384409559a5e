package apis

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/shardplane/shardplane/test/integration/kit"
)

const registration = "/apis/admissionregistration.k8s.io/v1/"

// reviewer is a webhook that adds an annotation with the logical cluster that the object
// says it is in, and remembers it.
type reviewer struct {
	*httptest.Server

	mu   sync.Mutex
	seen []string
}

func newReviewer(t *testing.T) *reviewer {
	t.Helper()
	r := &reviewer{}
	r.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		var review admissionv1.AdmissionReview
		var object struct {
			Metadata struct {
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
		}
		if json.Unmarshal(body, &review) != nil || json.Unmarshal(review.Request.Object.Raw, &object) != nil {
			http.Error(w, "not a review", http.StatusBadRequest)
			return
		}
		cluster := object.Metadata.Annotations["kcp.io/cluster"]
		r.mu.Lock()
		r.seen = append(r.seen, cluster)
		r.mu.Unlock()
		patch := fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations/reviewed","value":%q}]`, cluster)
		_, _ = fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":true,"patchType":"JSONPatch","patch":%q}}`,
			review.Request.UID, base64.StdEncoding.EncodeToString([]byte(patch)))
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *reviewer) configuration(name, namespaces string) string {
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw}))
	return fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingWebhookConfiguration","metadata":{"name":%q},"webhooks":[{"name":"a.example.org","clientConfig":{"url":%q,"caBundle":%q},"namespaceSelector":%s,"sideEffects":"None","admissionReviewVersions":["v1"],"rules":[{"operations":["CREATE","UPDATE"],"apiGroups":["example.org"],"apiVersions":["*"],"resources":["*"]}]}]}`,
		name, r.URL, ca, namespaces)
}

// policyFor is a policy with a validation, and its binding.
func policyFor(k kit.WorkspaceClient, name, validation, params string) {
	k.T.Helper()
	kind, ref := "", ""
	if params != "" {
		kind, ref = `"paramKind":{"apiVersion":"v1","kind":"ConfigMap"},`, `,"paramRef":{"name":"`+params+`","namespace":"default","parameterNotFoundAction":"Deny"}`
	}
	k.Create(registration+"validatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":%q},"spec":{%s"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":["example.org"],"apiVersions":["*"],"resources":["*"]}]},"validations":[{"expression":%q}]}}`, name, kind, validation)
	k.Create(registration+"validatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":%q},"spec":{"policyName":%q,"validationActions":["Deny"]%s}}`, name, name, ref)
}

// testProvidersHooks: the webhooks and policies of the provider judge what is written of
// a bound API, wherever it is on the shard, and those of the consumer do not.
func testProvidersHooks(t *testing.T, e *kit.Env) {
	provider, k, other := kit.NewWorkspaceClient(e, "hooks-provider").ForTest(t), kit.NewWorkspaceClient(e, "hooks-consumer").ForTest(t), kit.NewWorkspaceClient(e, "hooks-other").ForTest(t)
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	for _, consumer := range []kit.WorkspaceClient{k, other} {
		consumer.Bind("e", provider, "e")
		consumer.UntilBinding("e", "Ready", "True <nil>")
		policyFor(consumer, "own", "false", "") // for the consumer's own APIs only
		consumer.Create("/api/v1/namespaces", `{"metadata":{"name":"marked","labels":{"marked":%q}}}`, consumer.ClusterName)
	}
	dry := func(k kit.WorkspaceClient, namespace string, size int) (code int, says string) {
		return k.TryDo(http.MethodPost, "/apis/example.org/v1/namespaces/"+namespace+"/widgets?dryRun=All", kit.Widget("a", "size", size))
	}

	// A policy with parameters, which are read at the provider.
	provider.Create("/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"limits"},"data":{"most":"3"}}`)
	k.Create("/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"limits"},"data":{"most":"1000"}}`)
	policyFor(provider, "limits", "object.spec.size <= int(params.data.most) && object.metadata.annotations['kcp.io/cluster'] != ''", "limits")
	k.Eventually("the provider's policy judges", func() bool {
		refused, says := dry(k, "default", 4)
		allowed, _ := dry(k, "default", 3) // not so while it cannot read its parameters
		return refused == http.StatusUnprocessableEntity && says != "" && allowed == http.StatusCreated
	})
	code, says := dry(k, "default", 3)
	require.Equal(t, http.StatusCreated, code, says)

	// A mutating policy, with an apply configuration: the consumer has the schema of it.
	provider.Create(registration+"mutatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicy","metadata":{"name":"m"},"spec":{"reinvocationPolicy":"Never","matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":["example.org"],"apiVersions":["*"],"resources":["widgets"]}]},"mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{metadata: Object.metadata{labels: {'from': namespaceObject.?metadata.labels.?marked.orValue('none')}}}"}}]}}`)
	provider.Create(registration+"mutatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicyBinding","metadata":{"name":"m"},"spec":{"policyName":"m"}}`)
	k.Eventually("the provider's policy mutates, and sees the consumer's namespace", func() bool {
		_, says = dry(k, "marked", 1)
		return strings.Contains(says, `"from":"`+k.ClusterName+`"`)
	})
	_, says = dry(other, "marked", 1)
	require.Contains(t, says, `"from":"`+other.ClusterName+`"`)

	// Webhooks, with and without a selector of namespaces, which are the consumer's.
	all, some := newReviewer(t), newReviewer(t)
	provider.Create(registration+"mutatingwebhookconfigurations", "%s", all.configuration("all", "{}"))
	k.Eventually("the provider's webhook is called", func() bool {
		_, says = dry(k, "default", 1)
		return strings.Contains(says, `"reviewed":"`+k.ClusterName+`"`)
	})
	require.NotContains(t, says, "kcp.io/cluster\":\"forged")
	forged := `{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"f","annotations":{"kcp.io/cluster":"forged"}},"spec":{"size":1}}`
	code, says = other.TryDo(http.MethodPost, kit.WidgetsPath, forged)
	require.Equal(t, http.StatusCreated, code, says)
	require.Contains(t, says, `"reviewed":"`+other.ClusterName+`"`, "clients do not say where they are")
	require.Contains(t, says, `"kcp.io/cluster":"`+other.ClusterName+`"`)
	provider.Do(http.StatusOK, http.MethodDelete, registration+"mutatingwebhookconfigurations/all", "")
	k.Eventually("the webhook is not called any more", func() bool {
		code, says = dry(k, "default", 1)
		return code == http.StatusCreated && !strings.Contains(says, "reviewed")
	})
	provider.Create(registration+"mutatingwebhookconfigurations", "%s", some.configuration("some", fmt.Sprintf(`{"matchLabels":{"marked":%q}}`, k.ClusterName)))
	k.Eventually("the webhook is called for namespaces of its selector", func() bool {
		_, says = dry(k, "marked", 1)
		return strings.Contains(says, `"reviewed":"`+k.ClusterName+`"`)
	})
	for _, not := range []struct {
		kit.WorkspaceClient
		namespace string
	}{{k, "default"}, {other, "marked"}} {
		code, says = dry(not.WorkspaceClient, not.namespace, 1)
		require.Equal(t, http.StatusCreated, code, says)
		require.NotContains(t, says, "reviewed", "in %s of %s", not.namespace, not.ClusterName)
	}
	some.mu.Lock()
	defer some.mu.Unlock()
	require.NotContains(t, some.seen, other.ClusterName)

	// What is not bound is the own hooks' matter.
	code, says = k.TryDo(http.MethodPost, "/api/v1/namespaces/default/configmaps?dryRun=All", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`)
	require.Equal(t, http.StatusCreated, code, says)
}

// testHooksAcrossShards: the webhooks and policies of a provider on another shard judge,
// too, as they come, change and go.
func testHooksAcrossShards(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClientOn(e, "far-hooks-provider", 1).ForTest(t), kit.NewWorkspaceClient(e, "far-hooks-consumer").ForTest(t)
	policyFor(provider, "early", "object.spec.size != 13", "") // before there is an export
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	k.BindPath(http.StatusCreated, "e", "root:far-hooks-provider", "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	size := func(n int) (code int, says string) {
		return k.TryDo(http.MethodPost, kit.WidgetsPath+"?dryRun=All", kit.Widget("a", "size", n))
	}
	k.Eventually("the policy judges that was there before the export", func() bool {
		code, _ := size(13)
		return code == http.StatusUnprocessableEntity
	})
	code, says := size(1)
	require.Equal(t, http.StatusCreated, code, says)

	testFarParams(provider, k)
	provider.Do(http.StatusOK, http.MethodDelete, registration+"validatingadmissionpolicybindings/early", "")
	hook := newReviewer(t)
	provider.Create(registration+"mutatingwebhookconfigurations", "%s", hook.configuration("far", "{}"))
	k.Eventually("the webhook is called, and the policy is gone", func() bool {
		code, says := size(1)
		return code == http.StatusCreated && strings.Contains(says, `"reviewed":"`+k.ClusterName+`"`)
	})
	provider.Do(http.StatusOK, http.MethodDelete, registration+"mutatingwebhookconfigurations/far", "")
	k.Eventually("the webhook is gone", func() bool {
		code, says := size(1)
		return code == http.StatusCreated && !strings.Contains(says, "reviewed")
	})
}

// testFarParams: the parameters of a policy on another shard are the provider's, as they come,
// change and go.
func testFarParams(provider, k kit.WorkspaceClient) {
	k.T.Helper()
	widgetOf := func(n int, namespace string) (code int, says string) {
		return k.TryDo(http.MethodPost, "/apis/example.org/v1/namespaces/"+namespace+"/widgets?dryRun=All", kit.Widget("a", "size", n))
	}
	until := func(what, namespace string, most int) {
		k.T.Helper()
		var said []string
		require.Eventually(k.T, func() bool {
			refused, more := widgetOf(most+1, namespace)
			allowed, says := widgetOf(most, namespace)
			said = []string{more, says}
			return refused == http.StatusUnprocessableEntity && allowed == http.StatusCreated
		}, kit.Timeout, kit.Timeout/300, "%s: %v", what, &said)
	}
	const limits = "/api/v1/namespaces/default/configmaps/limits"
	provider.Create(kit.ConfigMapsPath, `{"metadata":{"name":"limits"},"data":{"most":"3"}}`)
	k.Create(kit.ConfigMapsPath, `{"metadata":{"name":"limits"},"data":{"most":"1000"}}`)
	policyFor(provider, "limits", "object.spec.size <= int(params.data.most)", "limits")
	until("the provider's parameters are read", "default", 3)
	provider.Do(http.StatusOK, http.MethodPatch, limits, `{"data":{"most":"5"}}`)
	until("they change", "default", 5)
	provider.Do(http.StatusOK, http.MethodDelete, limits, "")
	k.Eventually("they are missing", func() bool {
		code, says := widgetOf(1, "default")
		return code == http.StatusUnprocessableEntity && strings.Contains(says, "no params found")
	})
	provider.Create(kit.ConfigMapsPath, `{"metadata":{"name":"limits"},"data":{"most":"6"}}`)
	until("they are there again", "default", 6)

	// Without a namespace they are in the provider's of the same name; with a selector there are
	// any number of them.
	for _, k := range []kit.WorkspaceClient{provider, k} {
		k.Create("/api/v1/namespaces", `{"metadata":{"name":"other"}}`)
		k.Create("/api/v1/namespaces/other/configmaps", `{"metadata":{"name":"own","labels":{"limits":"yes"}},"data":{"most":%q}}`, map[string]string{provider.ClusterName: "2"}[k.ClusterName]+"0")
	}
	provider.Create(registration+"validatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"selecting"},"spec":{"policyName":"limits","validationActions":["Deny"],"paramRef":{"selector":{"matchLabels":{"limits":"yes"}},"parameterNotFoundAction":"Allow"}}}`)
	provider.Do(http.StatusOK, http.MethodPatch, limits, `{"data":{"most":"1000"}}`)
	until("those of the namespace are read", "other", 20)
	code, says := widgetOf(21, "default")
	require.Equal(k.T, http.StatusCreated, code, says)
	provider.Create("/api/v1/namespaces/other/configmaps", `{"metadata":{"name":"more","labels":{"limits":"yes"}},"data":{"most":"10"}}`)
	until("all that are selected are", "other", 10)

	// Of a kind that the provider has defined.
	provider.Create(kit.DefinitionsPath, "%s", definitionNamed("params.example.net", foos))
	provider.Eventually("the kind is served", func() bool {
		code, _ := provider.TryDo(http.MethodPost, "/apis/params.example.net/v1/foos", `{"apiVersion":"params.example.net/v1","kind":"Foo","metadata":{"name":"f"},"most":4}`)
		return code == http.StatusCreated
	})
	provider.Create(registration+"validatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"defined"},"spec":{"paramKind":{"apiVersion":"params.example.net/v1","kind":"Foo"},"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":["example.org"],"apiVersions":["*"],"resources":["*"]}]},"validations":[{"expression":"object.spec.size <= params.most"}]}}`)
	provider.Create(registration+"validatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"defined"},"spec":{"policyName":"defined","validationActions":["Deny"],"paramRef":{"name":"f","parameterNotFoundAction":"Deny"}}}`)
	until("the provider's own kind is read", "default", 4)
	for _, resource := range []string{"validatingadmissionpolicybindings/defined", "validatingadmissionpolicies/defined", "validatingadmissionpolicybindings/selecting", "validatingadmissionpolicybindings/limits", "validatingadmissionpolicies/limits"} {
		provider.Do(http.StatusOK, http.MethodDelete, registration+resource, "")
	}
}

// newDenier returns a validating webhook that denies objects of size 14, and the deletion of what
// is called kept, and its configuration.
func newDenier(t *testing.T) (configuration string) {
	t.Helper()
	type object struct {
		Metadata struct {
			Name        string            `json:"name"`
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
		Spec struct {
			Size int `json:"size"`
		} `json:"spec"`
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		var review admissionv1.AdmissionReview
		var judged object
		err := json.Unmarshal(body, &review)
		deletion := err == nil && review.Request.Operation == admissionv1.Delete
		if deletion {
			err = json.Unmarshal(review.Request.OldObject.Raw, &judged)
		} else if err == nil {
			err = json.Unmarshal(review.Request.Object.Raw, &judged)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		allowed := judged.Spec.Size != 14 && (!deletion || judged.Metadata.Name != "kept")
		_, _ = fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":%t,"status":{"code":403,"message":"not in %s"}}}`,
			review.Request.UID, allowed, judged.Metadata.Annotations["kcp.io/cluster"])
	}))
	t.Cleanup(server.Close)
	return validating(server)
}

// validating is the configuration of a webhook for all that is written of bound APIs.
func validating(server *httptest.Server) string {
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	return fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":"validating"},"webhooks":[{"name":"a.example.org","clientConfig":{"url":%q,"caBundle":%q},"timeoutSeconds":30,"sideEffects":"None","admissionReviewVersions":["v1"],"rules":[{"operations":["*"],"apiGroups":["example.org"],"apiVersions":["*"],"resources":["*"]}]}]}`, server.URL, ca)
}

// denies makes a policy that denies what an expression is false of, and its binding.
func untilDenied(k kit.WorkspaceClient, name, group, expression string) {
	k.T.Helper()
	k.Create(registration+"validatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":%q},"spec":{"matchConstraints":{"resourceRules":[{"operations":["CREATE","UPDATE"],"apiGroups":[%q],"apiVersions":["*"],"resources":["*"]}]},"validations":[{"expression":%q}]}}`, name, group, expression)
	k.Create(registration+"validatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":%q},"spec":{"policyName":%q,"validationActions":["Deny"]}}`, name, name)
}

// testHooksOfWriters: all four kinds of hooks of a provider judge what consumers write of a bound
// API, and what the provider writes of it through its view; what it writes through claims, the
// consumer's judge.
func testHooksOfWriters(t *testing.T, name string, provider, k kit.WorkspaceClient) {
	t.Helper()
	const claim = `{"group":"","resource":"configmaps","verbs":["*"]`
	provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	provider.ClaimInExport(`[` + claim + `}]`)
	k.BindPath(http.StatusCreated, "e", "root:"+name, "e")
	k.UntilBinding("e", "Ready", "True <nil>")
	k.AcceptClaims(`[` + claim + `,"selector":{"matchAll":true},"state":"Accepted"}]`)
	view := kit.WorkspaceClient{Env: k.Env, Config: k.Config, ClusterName: provider.ClusterName}.ThroughExport("e", k.ClusterName)
	view.Eventually("the view has heard of the claim", func() bool {
		code, _ := view.TryDo(http.MethodGet, kit.ConfigMapsPath, "")
		return code == http.StatusOK
	})

	untilDenied(provider, "policy", "example.org", "object.spec.size != 13")
	provider.Create(registration+"mutatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicy","metadata":{"name":"m"},"spec":{"reinvocationPolicy":"Never","matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":["example.org"],"apiVersions":["*"],"resources":["widgets"]}]},"mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{metadata: Object.metadata{labels: {'from': object.metadata.annotations['kcp.io/cluster']}}}"}}]}}`)
	provider.Create(registration+"mutatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingAdmissionPolicyBinding","metadata":{"name":"m"},"spec":{"policyName":"m"}}`)
	provider.Create(registration+"mutatingwebhookconfigurations", "%s", newReviewer(t).configuration("m", "{}"))
	provider.Create(registration+"validatingwebhookconfigurations", "%s", newDenier(t))
	untilDenied(k, "own", "example.org", "false") // for the consumer's own APIs only
	untilDenied(provider, "configmaps", "", "false")
	untilDenied(k, "configmaps", "", "object.metadata.name != 'bad'")

	says := ""
	made := func(k kit.WorkspaceClient, size int) int {
		code, answer := k.TryDo(http.MethodPost, kit.WidgetsPath+"?dryRun=All", kit.Widget("dry", "size", size))
		says = answer
		return code
	}
	k.Eventually("all hooks judge", func() bool {
		return made(k, 13) == http.StatusUnprocessableEntity && made(k, 14) == http.StatusForbidden && made(k, 1) == http.StatusCreated &&
			strings.Contains(says, `"from":"`+k.ClusterName+`"`) && strings.Contains(says, `"reviewed":"`+k.ClusterName+`"`)
	})
	k.Eventually("the consumer's judge its own", func() bool {
		code, _ := k.TryDo(http.MethodPost, kit.ConfigMapsPath+"?dryRun=All", `{"metadata":{"name":"bad"}}`)
		return code == http.StatusUnprocessableEntity
	})
	k.Create(kit.WidgetsPath, "%s", kit.Widget("kept", "size", 1))
	for by, writer := range map[string]kit.WorkspaceClient{"consumer": k, "view": view} {
		require.Equal(t, http.StatusUnprocessableEntity, made(writer, 13), "%s: %s", by, says)
		require.Equal(t, http.StatusForbidden, made(writer, 14), "%s: %s", by, says)
		require.Contains(t, says, "not in "+k.ClusterName, by)
		object := writer.Create(kit.WidgetsPath, "%s", kit.Widget(by, "size", 1))
		require.Equal(t, k.ClusterName, object.GetLabels()["from"], by)
		require.Equal(t, k.ClusterName, object.GetAnnotations()["reviewed"], by)
		applied := writer.Do(http.StatusCreated, http.MethodPatch, kit.WidgetsPath+"/applied-by-"+by+"?fieldManager=test", kit.Widget("applied-by-"+by, "size", 1))
		require.Equal(t, k.ClusterName, applied.GetLabels()["from"], by)
		for size, want := range map[int]int{13: http.StatusUnprocessableEntity, 14: http.StatusForbidden, 2: http.StatusOK} {
			writer.Do(want, http.MethodPatch, kit.WidgetsPath+"/"+by, fmt.Sprintf(`{"spec":{"size":%d}}`, size))
			writer.Do(want, http.MethodPatch, kit.WidgetsPath+"/applied-by-"+by+"?fieldManager=test", kit.Widget("applied-by-"+by, "size", size))
		}
		writer.Do(http.StatusForbidden, http.MethodDelete, kit.WidgetsPath+"/kept", "")
		writer.Do(http.StatusOK, http.MethodDelete, kit.WidgetsPath+"/"+by, "")

		code, says := writer.TryDo(http.MethodPost, kit.ConfigMapsPath, `{"metadata":{"name":"bad"}}`)
		require.Equal(t, http.StatusUnprocessableEntity, code, "%s: %s", by, says)
		writer.Create(kit.ConfigMapsPath, `{"metadata":{"name":%q}}`, "by-"+by)
	}
}
