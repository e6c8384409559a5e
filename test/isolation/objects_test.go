package isolation

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// testObjects attacks with objects that an administrator of alpha can create.
func (w *world) testObjects(t *testing.T) {
	t.Run("webhooks", w.testWebhooks)
	t.Run("policies", w.testPolicies)
	t.Run("owner references", w.testOwnerReferences)
	t.Run("annotations", w.testAnnotations)
	t.Run("names", w.testNames)
	t.Run("continue tokens", w.testContinueTokens)
	t.Run("streams", w.testStreams)
	t.Run("claims", w.testClaims)
	t.Run("impersonation", w.testImpersonation)
	t.Run("references", w.testReferences)
	t.Run("virtual workspaces", w.testVirtualWorkspaces)
	t.Run("mounts", w.testMounts)
	t.Run("issuers", w.testIssuers)
	t.Run("bound APIs", w.testBound)
	t.Run("maximal permission policies", w.testMaximalPermissionPolicy)
}

// mallory sends a request to the front-proxy as an administrator of alpha, with optional header lines
// for other credentials.
func (w *world) mallory(t *testing.T, method, path, body string, lines ...string) response {
	t.Helper()
	return w.malloryAt(t, atProxy, method, path, body, lines...)
}

func (w *world) malloryAt(t *testing.T, target int, method, path, body string, lines ...string) response {
	t.Helper()
	kind := "application/json"
	if method == http.MethodPatch {
		kind = "application/merge-patch+json"
	}
	head := append([]string{method + " " + path + " HTTP/1.1", "Connection: close"}, lines...)
	if !strings.HasPrefix(strings.Join(lines, ""), "Content-Type:") {
		head = append(head, "Content-Type: "+kind)
	}
	return w.mustAttack(t, input{wire: true, target: target, raw: strings.Join(head, "\r\n") + "\r\n\r\n" + body})
}

// untilResponse repeats a request of mallory until its response has the code, if any, and contains the text.
func (w *world) untilResponse(t *testing.T, target int, method, path, body string, code int, text, message string, args ...any) (got response) {
	t.Helper()
	require.Eventually(t, func() bool {
		got = w.malloryAt(t, target, method, path, body)
		return (code == 0 || got.code == code) && strings.Contains(string(got.body), text)
	}, testTimeout, 20*time.Millisecond, append([]any{message}, args...)...)
	return got
}

// testWebhooks checks that webhooks of alpha receive only objects of alpha.
func (w *world) testWebhooks(t *testing.T) {
	config := func(kind, name, client string) string {
		return fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":%q,"metadata":{"name":%q},"webhooks":[{"name":"spy.example.com","failurePolicy":"Ignore","timeoutSeconds":1,"sideEffects":"None","admissionReviewVersions":["v1"],"clientConfig":{%s,"caBundle":"$HOOKCA$"},"rules":[{"operations":["*"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*/*"]}]}]}`, kind, name, client)
	}
	const group = "/clusters/$A$/apis/admissionregistration.k8s.io/v1/"
	kinds := map[string]string{"validatingwebhookconfigurations": "ValidatingWebhookConfiguration", "mutatingwebhookconfigurations": "MutatingWebhookConfiguration"}
	for plural, kind := range kinds {
		require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, group+plural, config(kind, "spy", `"url":"$HOOK$/spy"`)).code)
		require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, group+plural, config(kind, "spy-service", `"service":{"namespace":"vault","name":"treasure"}`)).code)
	}
	calls := w.hook.calls.Load()
	require.Eventually(t, func() bool {
		w.mallory(t, http.MethodPatch, "/clusters/$A$/api/v1/namespaces/vault/configmaps/treasure", `{"data":{"n":"1"}}`)
		return w.hook.calls.Load() >= calls+2
	}, testTimeout, 50*time.Millisecond, "alpha's webhooks are not called")
	// The victims' ConfigMaps are updated continuously. This adds creations and deletions.
	for _, victim := range []tenant{w.bravo, w.blind} {
		w.must(w.admin, http.MethodPost, victim.name, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"`+w.secret+`-brief"}}`, nil)
		w.must(w.admin, http.MethodDelete, victim.name, "/api/v1/namespaces/default/configmaps/"+w.secret+"-brief", "", nil)
	}
	w.mallory(t, http.MethodPatch, "/clusters/$A$/api/v1/namespaces/vault/configmaps/treasure", `{"data":{"n":"2"}}`)
	require.Empty(t, w.hook.leak())
	for plural := range kinds {
		require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, group+plural+"/spy", "").code)
		require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, group+plural+"/spy-service", "").code)
	}
}

// testPolicies checks that policies of bravo do not apply to alpha, and that policies of alpha read
// only parameters of alpha.
func (w *world) testPolicies(t *testing.T) {
	got := w.mallory(t, http.MethodPost, "/clusters/$A$/api/v1/namespaces/vault/configmaps", `{"metadata":{"name":"forbidden"}}`)
	require.Equal(t, http.StatusCreated, got.code, "bravo's policy was applied to alpha: %s", got)
	const group = "/clusters/$A$/apis/admissionregistration.k8s.io/v1/"
	policy := `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":"curious"},"spec":{"paramKind":{"apiVersion":"v1","kind":"ConfigMap"},"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]},"validations":[{"expression":"object.metadata.name != 'requested'","messageExpression":"'parameter: ' + params.data.key"}]}}`
	binding := `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":"curious"},"spec":{"policyName":"curious","paramRef":{"name":"treasure","namespace":"vault","parameterNotFoundAction":"Deny"},"validationActions":["Deny"]}}`
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, group+"validatingadmissionpolicies", policy).code)
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, group+"validatingadmissionpolicybindings", binding).code)
	w.untilResponse(t, atProxy, http.MethodPost, "/clusters/$A$/api/v1/namespaces/vault/configmaps?dryRun=All", `{"metadata":{"name":"requested"}}`, 0, "parameter: own-data", "the policy does not return alpha's parameter")
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, "/clusters/$A$/api/v1/namespaces/vault/configmaps/treasure", "").code)
	w.untilResponse(t, atProxy, http.MethodPost, "/clusters/$A$/api/v1/namespaces/vault/configmaps?dryRun=All", `{"metadata":{"name":"requested"}}`, 0, "no params found", "the policy finds a parameter that was deleted in alpha")
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, group+"validatingadmissionpolicybindings/curious", "").code)
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, group+"validatingadmissionpolicies/curious", "").code)
	w.createObjects(w.alpha, "own", common)
}

// testOwnerReferences checks that an owner reference to an object of bravo is dangling in alpha, so
// that its object is garbage collected, and that the object of bravo does not change.
func (w *world) testOwnerReferences(t *testing.T) {
	const in = "/clusters/$A$/api/v1/namespaces/vault/configmaps"
	treasure := w.uid(w.bravo, "/api/v1/namespaces/vault/configmaps/treasure")
	for n, of := range []string{
		`{"apiVersion":"v1","kind":"ConfigMap","name":"treasure","uid":"$BUID$","controller":true,"blockOwnerDeletion":true}`,
		`{"apiVersion":"v1","kind":"ConfigMap","name":"../$B$/vault/treasure","uid":"$BUID$"}`,
	} {
		name := fmt.Sprintf("owned-%d", n)
		got := w.mallory(t, http.MethodPost, in, `{"metadata":{"name":"`+name+`","ownerReferences":[`+of+`]}}`)
		require.Equal(t, http.StatusCreated, got.code, "%s", got)
		w.untilResponse(t, atProxy, http.MethodGet, in+"/"+name, "", http.StatusNotFound, "", "the object with this owner was not garbage collected: %s", of)
	}
	got := w.mallory(t, http.MethodDelete, in+"/treasure", `{"preconditions":{"uid":"$BUID$"}}`)
	require.Equal(t, http.StatusConflict, got.code, "%s", got)
	require.Equal(t, treasure, w.uid(w.bravo, "/api/v1/namespaces/vault/configmaps/treasure"))
}

// testAnnotations checks that the annotation with the logical cluster cannot be changed by any kind
// of write.
func (w *world) testAnnotations(t *testing.T) {
	const in = "/clusters/$A$/api/v1/namespaces/vault/configmaps"
	const lie = `"annotations":{"kcp.io/cluster":"$B$"}`
	for name, send := range map[string]func() response{
		"create": func() response { return w.mallory(t, http.MethodPost, in, `{"metadata":{"name":"liar",`+lie+`}}`) },
		"dry run": func() response {
			return w.mallory(t, http.MethodPost, in+"?dryRun=All", `{"metadata":{"name":"liar-2",`+lie+`}}`)
		},
		"update": func() response {
			return w.mallory(t, http.MethodPut, in+"/treasure-1", `{"metadata":{"name":"treasure-1",`+lie+`}}`)
		},
		"patch": func() response { return w.mallory(t, http.MethodPatch, in+"/treasure-2", `{"metadata":{`+lie+`}}`) },
		"remove": func() response {
			return w.mallory(t, http.MethodPatch, in+"/treasure-3", `{"metadata":{"annotations":{"kcp.io/cluster":null}}}`)
		},
	} {
		got := send()
		if got.code < 300 {
			require.Contains(t, string(got.body), `"kcp.io/cluster":"`+w.alpha.name+`"`, name)
		}
		require.NotContains(t, string(got.body), `"kcp.io/cluster":"`+w.bravo.name+`"`, name)
	}
	apply := w.mustAttack(t, input{raw: "PATCH " + in + "/applied?fieldManager=m&force=true HTTP/1.1\r\nContent-Type: application/apply-patch+yaml\r\nConnection: close\r\n\r\n" +
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied",` + lie + `}}`})
	require.NotContains(t, string(apply.body), `"kcp.io/cluster":"`+w.bravo.name+`"`)
	for _, reserved := range []string{"internal.tenancy.kcp.io/cluster", "internal.tenancy.kcp.io/shard", "internal.kcp.io/migrating", "internal.apis.kcp.io/resource-bindings", "authorization.kcp.io/required-groups"} {
		got := w.mallory(t, http.MethodPatch, "/clusters/$A$/apis/core.kcp.io/v1alpha1/logicalclusters/cluster", `{"metadata":{"annotations":{"`+reserved+`":"$B$"}}}`)
		require.Equal(t, http.StatusForbidden, got.code, "%s: %s", reserved, got)
	}
}

// testNames checks that names with special characters of keys and URLs are rejected.
func (w *world) testNames(t *testing.T) {
	for _, name := range []string{"../$B$", "../../$B$/vault/treasure", "$B$/treasure", "$B$|vault", "a|b", "..", ".", "a/b", "a%2fb"} {
		for _, field := range []string{"name", "generateName"} {
			for path, fields := range map[string]string{
				"/api/v1/namespaces/vault/configmaps": "", "/api/v1/namespaces": "", "/apis/rbac.authorization.k8s.io/v1/clusterroles": "",
				"/apis/example.com/v1/namespaces/vault/widgets": `"apiVersion":"example.com/v1","kind":"Widget",`,
			} {
				if field == "generateName" && strings.Trim(name, ".") == "" {
					continue // the generated suffix makes the name valid
				}
				got := w.mallory(t, http.MethodPost, "/clusters/$A$"+path, `{`+fields+`"metadata":{"`+field+`":"`+name+`"}}`)
				if strings.Contains(path, "clusterroles") && !strings.ContainsAny(name, "/%") && strings.Trim(name, ".") != "" {
					continue // names of roles may contain these characters
				}
				require.Contains(t, []int{http.StatusUnprocessableEntity, http.StatusBadRequest}, got.code, "%s %s at %s: %s", field, name, path, got)
			}
		}
		got := w.mallory(t, http.MethodPost, "/clusters/$A$/api/v1/namespaces/vault/configmaps", `{"metadata":{"name":"x","namespace":"`+name+`"}}`)
		require.Equal(t, http.StatusBadRequest, got.code, "namespace %s: %s", name, got)
	}
	for _, namespace := range []string{"%2e", "%2e%2e"} {
		got := w.mallory(t, http.MethodPost, "/clusters/$A$/api/v1/namespaces/"+namespace+"/configmaps", `{"metadata":{"name":"x"}}`)
		require.Equal(t, http.StatusNotFound, got.code, "namespace %s: %s", namespace, got)
	}
}

// testContinueTokens checks that a continue token is only valid for the list that returned it.
func (w *world) testContinueTokens(t *testing.T) {
	w.setContinueTokens() // they may have expired during earlier tests
	const maps = "/clusters/$A$/api/v1/namespaces/vault/configmaps"
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodGet, maps+"?limit=2&continue=$ANEXT$", "").code)
	for _, path := range []string{
		maps + "?limit=2&continue=$BNEXT$", maps + "?continue=$AOTHER$", maps + "?continue=$ANEXT$x", maps + "?continue=x$ANEXT$",
		"/clusters/$A$/api/v1/configmaps?continue=$ANEXT$", "/clusters/$A$/api/v1/namespaces/default/configmaps?continue=$ANEXT$",
		"/clusters/$A$/api/v1/namespaces/vault/secrets?continue=$ANEXT$", "/clusters/$A$/api/v1/namespaces/vault/secrets?continue=$BNEXT$",
	} {
		got := w.mallory(t, http.MethodGet, path, "")
		require.Equal(t, http.StatusBadRequest, got.code, "%s: %s", path, got)
		require.Contains(t, string(got.body), "invalid continue token", path)
	}
}

// testStreams reads watches of alpha while the victims' objects change.
func (w *world) testStreams(t *testing.T) {
	var inputs []input
	for _, query := range queries {
		if !strings.Contains(query, "watch") {
			continue
		}
		for _, path := range []string{"/api/v1/configmaps", "/api/v1/namespaces/default/configmaps", "/apis/example.com/v1/widgets", "/api/v1/watch/configmaps"} {
			for target := range w.targets {
				inputs = append(inputs, input{target: target, raw: get("/clusters/$A$" + path + "?" + query)})
			}
		}
	}
	w.send(t, inputs)
}

// testClaims checks that service accounts are identified by objects of their own logical cluster
// only.
func (w *world) testClaims(t *testing.T) {
	// A Secret with the UID of an object of bravo gets no token.
	got := w.mallory(t, http.MethodPost, "/clusters/$A$/api/v1/namespaces/vault/secrets",
		`{"metadata":{"name":"claims","annotations":{"kubernetes.io/service-account.name":"robot","kubernetes.io/service-account.uid":"$BUID$"}},"type":"kubernetes.io/service-account-token"}`)
	require.Equal(t, http.StatusCreated, got.code, "%s", got)
	got = w.mallory(t, http.MethodPost, "/clusters/$A$/api/v1/namespaces/default/serviceaccounts/robot/token", `{"spec":{"audiences":["$B$"],"boundObjectRef":{"kind":"Secret","apiVersion":"v1","name":"treasure","uid":"$BUID$"}}}`)
	require.Contains(t, []int{http.StatusNotFound, http.StatusConflict, http.StatusBadRequest, http.StatusUnprocessableEntity}, got.code, "%s", got)
	// TokenReviews accept only tokens of alpha.
	var victim struct{ Status struct{ Token string } }
	w.must(w.admin, http.MethodPost, w.bravo.name, accounts+"/robot/token", `{"spec":{}}`, &victim)
	got = w.mallory(t, http.MethodPost, "/clusters/$A$/apis/authentication.k8s.io/v1/tokenreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"`+victim.Status.Token+`"}}`)
	require.Equal(t, http.StatusCreated, got.code, "%s", got)
	require.NotContains(t, string(got.body), `"authenticated":true`)
}

// testImpersonation checks that administrators of alpha can impersonate any user in alpha, but not
// elsewhere.
func (w *world) testImpersonation(t *testing.T) {
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodGet, "/clusters/$A$"+secretPath, "", "Impersonate-User: user-1").code)
	for _, line := range headers {
		if strings.Contains(line, "Impersonate") {
			got := w.mallory(t, http.MethodGet, "/clusters/$B$"+secretPath, "", line)
			require.Contains(t, []int{0, http.StatusForbidden, http.StatusBadRequest}, got.code, "%q: %s", line, got)
		}
	}
}

// testReferences checks that references from alpha to objects of bravo do not disclose whether they
// exist.
func (w *world) testReferences(t *testing.T) {
	const group = "/clusters/$A$/apis/tenancy.kcp.io/v1alpha1/"
	post := func(path, body string) input {
		return input{wire: true, raw: "POST " + path + " HTTP/1.1\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + body}
	}
	const bound = "/clusters/$A$/apis/apis.kcp.io/v1alpha"
	binding := func(ref string) input {
		return post(bound+"2/apibindings", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":"refers"},"spec":{"reference":{"export":{`+ref+`}}}}`)
	}
	workspace := func(ref string) input {
		return post(group+"workspaces", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"refers"},"spec":{"type":{`+ref+`}}}`)
	}
	// The type extends one of bravo. Its name contains bravo's, so that it differs for the missing
	// tenant.
	extends := post(group+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"extends-$BLAST$"},"spec":{"extend":{"with":[{"path":"$BPATH$","name":"treasure"}]}}}`)
	for _, twin := range []bool{false, true} {
		got := w.perform(t.Context(), extends, twin)
		require.Contains(t, []int{http.StatusCreated, http.StatusConflict}, got.code, "%s", got)
	}
	for name, in := range map[string]input{
		"a type by path":            workspace(`"path":"$BPATH$","name":"treasure"`),
		"a type by name":            workspace(`"path":"$B$","name":"treasure"`),
		"a type that is missing":    workspace(`"path":"$BPATH$","name":"nothing"`),
		"a type that extends it":    workspace(`"path":"$APATH$","name":"extends-$BLAST$"`),
		"an export by path":         binding(`"path":"$BPATH$","name":"treasure"`),
		"an export by name":         binding(`"path":"$B$","name":"treasure"`),
		"an export that is missing": binding(`"path":"$BPATH$","name":"nothing"`),
		"an export for a slice":     post(bound+"1/apiexportendpointslices", `{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIExportEndpointSlice","metadata":{"name":"refers"},"spec":{"export":{"path":"$BPATH$","name":"treasure"}}}`),
		"a review of its types":     post("/clusters/$A$/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"nonResourceAttributes":{"verb":"access","path":"/clusters/$B$"}}}`),
	} {
		t.Run(name, func(t *testing.T) {
			existing, missing := w.perform(t.Context(), in, false), w.perform(t.Context(), in, true)
			for _, got := range []response{existing, missing} {
				require.Empty(t, w.canaries.inResponse(got))
				require.NoError(t, got.err)
			}
			require.Equal(t, w.normalized(missing, true), w.normalized(existing, false))
			if strings.HasPrefix(name, "a type") || strings.HasPrefix(name, "an export") {
				require.Equal(t, http.StatusForbidden, existing.code, "%s", existing)
			}
		})
	}
}
