package isolation

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	stones  = "/apis/warden.example/v1/namespaces/vault/stones"
	pearls  = "/apis/warden.example/v1/namespaces/vault/pearls"
	rbac    = "/apis/rbac.authorization.k8s.io/v1/"
	reviews = "/apis/authorization.k8s.io/v1/"
)

// newWarden creates a provider on the other shard, and binds its APIs in alpha. Its maximal
// permission policy allows all users to read stones, and trusted users to do everything. Only
// trusted users have access to pearls.
func (w *world) newWarden() tenant {
	w.t.Helper()
	warden := w.workspace("root", "warden", "shard-1")
	for _, plural := range []string{"stones", "pearls"} {
		kind := strings.ToUpper(plural[:1]) + plural[1:len(plural)-1]
		w.must(w.admin, http.MethodPost, warden.path, "/apis/apis.kcp.io/v1alpha1/apiresourceschemas", fmt.Sprintf(
			`{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIResourceSchema","metadata":{"name":"v1.%[1]s.warden.example"},"spec":{"group":"warden.example","scope":"Namespaced","names":{"plural":%[1]q,"singular":%[2]q,"kind":%[3]q,"listKind":"%[3]sList"},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}},"schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}]}}`,
			plural, plural[:len(plural)-1], kind), nil)
	}
	w.must(w.admin, http.MethodPost, warden.path, boundAPI+"apiexports", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"all"},"spec":{"maximalPermissionPolicy":{"local":{}},"resources":[
		{"group":"warden.example","name":"stones","schema":"v1.stones.warden.example","storage":{"crd":{}}},{"group":"warden.example","name":"pearls","schema":"v1.pearls.warden.example","storage":{"crd":{}}}]}}`, nil)
	for name, rule := range map[string]string{
		"read": `{"apiGroups":["warden.example"],"resources":["stones"],"verbs":["get","list","watch"]}`,
		"all":  `{"apiGroups":["warden.example"],"resources":["*"],"verbs":["*"]}`,
	} {
		w.must(w.admin, http.MethodPost, warden.path, rbac+"clusterroles", `{"metadata":{"name":"`+name+`"},"rules":[`+rule+`]}`, nil)
	}
	subject := func(kind, name string) string {
		return `{"apiGroup":"rbac.authorization.k8s.io","kind":"` + kind + `","name":"apis.kcp.io:binding:` + name + `"}`
	}
	for role, subjects := range map[string]string{"read": subject("Group", "system:authenticated"), "all": subject("User", "trusted") + "," + subject("Group", "staff")} {
		w.must(w.admin, http.MethodPost, warden.path, rbac+"clusterrolebindings", `{"metadata":{"name":"`+role+`"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"`+role+`"},"subjects":[`+subjects+`]}`, nil)
	}
	w.must(w.admin, http.MethodPost, w.alpha.path, boundAPI+"apibindings", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":"warden"},"spec":{"reference":{"export":{"path":"`+warden.path+`","name":"all"}}}}`, nil)
	for plural, path := range map[string]string{"Stone": stones, "Pearl": pearls} {
		w.must(w.masters, http.MethodPost, w.alpha.name, path, fmt.Sprintf(`{"apiVersion":"warden.example/v1","kind":%q,"metadata":{"name":"treasure","labels":{"tier":"%s-pearl"}},"spec":{"replicas":1}}`, plural, w.secret), nil)
		if plural == "Stone" { // alpha may read stones, so that they must not contain a canary
			w.must(w.masters, http.MethodPatch, w.alpha.name, path+"/treasure", `{"metadata":{"labels":null}}`, nil)
		}
	}
	return warden
}

// impersonations are headers that an administrator of alpha may send.
var impersonations = [][]string{
	{"X: y"},
	{"Impersonate-User: trusted"},
	{"Impersonate-User: trusted", "Impersonate-Group: system:authenticated", "Impersonate-Group: staff"},
	{"Impersonate-User: mallory", "Impersonate-Group: staff"},
	{"Impersonate-User: apis.kcp.io:binding:trusted"},
	{"Impersonate-User: mallory", "Impersonate-Group: apis.kcp.io:binding:staff"},
	{"Impersonate-User: apis.kcp.io:binding:apis.kcp.io:binding:trusted", "Impersonate-Group: apis.kcp.io:binding:system:authenticated"},
	{"Impersonate-User: system:serviceaccount:default:trusted"},
	{"Impersonate-User: system:kcp:serviceaccount:$W$:default:default"},
	{"Impersonate-User: trusted", "Impersonate-Extra-Authentication.kcp.io%2fscopes: cluster:$W$"},
	{"Impersonate-User: trusted", "Impersonate-Extra-Authentication.kcp.io%2fscopes: cluster:$A$,cluster:$W$"},
	{"Impersonate-User: mallory", `Impersonate-Extra-Authorization.kcp.io%2fwarrant: {"user":"trusted"}`},
	{"Impersonate-User: mallory", `Impersonate-Extra-Authorization.kcp.io%2fwarrant: {"user":"x","groups":["system:masters"]}`},
	{"Impersonate-User: system:serviceaccount:default:default", "Impersonate-Extra-Authentication.kcp.io%2fcluster-name: $W$"},
	{"Impersonate-User: mallory", "Impersonate-Group: system:kcp:logical-cluster-admin"},
	{"Impersonate-User: mallory", "Impersonate-Group: system:kcp:initializer:root:universal"},
	{"X-Remote-User: trusted", "X-Remote-Group: staff"},
	{`X-Remote-User: mallory`, `X-Remote-Extra-Authorization.kcp.io%2fwarrant: {"user":"trusted"}`},
}

// testMaximalPermissionPolicy checks that administrators of a consumer cannot exceed the provider's
// policy, whatever they impersonate and whatever kind of request they send, and that access reviews
// agree.
func (w *world) testMaximalPermissionPolicy(t *testing.T) {
	w.untilResponse(t, atProxy, http.MethodGet, "/clusters/$A$"+stones+"/treasure", "", http.StatusOK, "", "alpha cannot read stones")
	const stone, pearl = `{"apiVersion":"warden.example/v1","kind":"Stone","metadata":{"name":"treasure"},"spec":{"replicas":9}}`, `{"apiVersion":"warden.example/v1","kind":"Pearl","metadata":{"name":"mine"}}`
	before := w.treasure(t)
	const apply, strategic, scale = "Content-Type: application/apply-patch+yaml", "Content-Type: application/json-patch+json", `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"treasure"},"spec":{"replicas":9}}`
	// alpha gives rights to all impersonated users.
	w.must(w.masters, http.MethodPost, w.alpha.name, rbac+"clusterrolebindings", `{"metadata":{"name":"disguised"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"trusted"},{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"staff"},{"kind":"ServiceAccount","namespace":"default","name":"trusted"}]}`, nil)
	for _, impersonation := range impersonations {
		for _, r := range []struct{ method, path, body, line string }{
			{http.MethodPost, stones, strings.Replace(stone, "treasure", "mine", 1), ""},
			{http.MethodPost, stones + "?dryRun=All", strings.Replace(stone, "treasure", "mine", 1), ""},
			{http.MethodPost, stones, "k8s\x00", "Content-Type: application/vnd.kubernetes.protobuf"},
			{http.MethodPut, stones + "/treasure", stone, ""},
			{http.MethodPatch, stones + "/treasure", `{"spec":{"replicas":9}}`, ""},
			{http.MethodPatch, stones + "/treasure", `[{"op":"remove","path":"/spec"}]`, strategic},
			{http.MethodPatch, stones + "/treasure?fieldManager=x&force=true", stone, apply},
			{http.MethodPatch, stones + "/fresh?fieldManager=x", strings.Replace(stone, "treasure", "fresh", 1), apply},
			{http.MethodPatch, stones + "/treasure/status", `{"status":{"replicas":9}}`, ""},
			{http.MethodPut, stones + "/treasure/status", stone, ""},
			{http.MethodPatch, stones + "/treasure/status?fieldManager=x", stone, apply},
			{http.MethodPatch, stones + "/treasure/scale", `{"spec":{"replicas":9}}`, ""},
			{http.MethodPut, stones + "/treasure/scale", scale, ""},
			{http.MethodDelete, stones + "/treasure", "", ""},
			{http.MethodDelete, stones, "", ""},
			{http.MethodDelete, stones + "?labelSelector=a!%3Db", "", "Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"},
			{http.MethodGet, pearls, "", ""},
			{http.MethodGet, pearls + "/treasure", "", ""},
			{http.MethodGet, pearls + "/treasure/status", "", ""},
			{http.MethodGet, pearls + "/treasure/scale", "", ""},
			{http.MethodGet, pearls + "?resourceVersion=0", "", "Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"},
			{http.MethodGet, pearls + "?limit=1", "", "Accept: application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"},
			{http.MethodGet, pearls + "/treasure", "", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io"},
			{http.MethodGet, "/apis/warden.example/v1/pearls", "", ""},
			{http.MethodGet, "/apis/warden.example/v1/watch/namespaces/vault/pearls/treasure", "", ""},
			{http.MethodGet, pearls + "?watch=true&resourceVersion=1", "", ""},
			{http.MethodGet, pearls + "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "", ""},
			{http.MethodPost, pearls, pearl, ""},
			{http.MethodDelete, pearls, "", ""},
		} {
			lines := impersonation
			if r.line != "" {
				lines = append([]string{r.line}, impersonation...)
			}
			got := w.mallory(t, r.method, "/clusters/$A$"+r.path, r.body, lines...)
			require.Equal(t, http.StatusForbidden, got.code, "%s %s as %v: %s", r.method, r.path, impersonation, got)
		}
	}
	require.Equal(t, before, w.treasure(t), "the object has changed")
	w.testReviews(t)
	w.testClaimsBeyondPolicy(t)
	require.Equal(t, before, w.treasure(t), "the object has changed")
	w.must(w.masters, http.MethodDelete, w.alpha.name, rbac+"clusterrolebindings/disguised", "", nil)
	w.must(w.masters, http.MethodDelete, w.alpha.name, boundAPI+"apibindings/warden", "", nil)
}

// treasure returns the version of a stone.
func (w *world) treasure(t *testing.T) string {
	t.Helper()
	var stone struct {
		Metadata struct{ UID, ResourceVersion string }
	}
	require.True(t, decode(w.mallory(t, http.MethodGet, "/clusters/$A$"+stones+"/treasure", ""), &stone))
	return stone.Metadata.UID + " " + stone.Metadata.ResourceVersion
}

// testReviews checks that access reviews agree with the results of requests.
func (w *world) testReviews(t *testing.T) {
	const attributes, reviewFormat = `"resourceAttributes":{"group":"warden.example","resource":"stones","namespace":"vault","verb":%q}`, `{"apiVersion":"authorization.k8s.io/v1","kind":%q,"metadata":{"namespace":%q},"spec":{%s%s}}`
	for _, r := range []struct {
		kind, namespace, spec, verb string
		lines                       []string
		allowed                     bool
	}{
		{kind: "SelfSubjectAccessReview", verb: "get", allowed: true},
		{kind: "SelfSubjectAccessReview", verb: "create"},
		{kind: "SelfSubjectAccessReview", verb: "deletecollection"},
		{kind: "SelfSubjectAccessReview", verb: "create", lines: []string{"Impersonate-User: trusted"}},
		{kind: "SubjectAccessReview", spec: `"user":"mallory","groups":["crooks","system:authenticated"],`, verb: "get", allowed: true},
		{kind: "SubjectAccessReview", spec: `"user":"mallory","groups":["crooks","system:authenticated"],`, verb: "create"},
		{kind: "SubjectAccessReview", spec: `"user":"trusted","groups":["system:authenticated"],`, verb: "create", allowed: true},
		{kind: "SubjectAccessReview", spec: `"user":"trusted","extra":{"authentication.kcp.io/scopes":["cluster:$A$"]},`, verb: "create"},
		{kind: "SubjectAccessReview", spec: `"user":"apis.kcp.io:binding:trusted",`, verb: "create"},
		{kind: "SubjectAccessReview", spec: `"user":"system:serviceaccount:default:trusted",`, verb: "create"},
		{kind: "LocalSubjectAccessReview", namespace: "vault", spec: `"user":"mallory",`, verb: "delete"},
		{kind: "LocalSubjectAccessReview", namespace: "vault", spec: `"user":"trusted",`, verb: "delete", allowed: true},
	} {
		path := reviews + strings.ToLower(r.kind) + "s"
		if r.namespace != "" {
			path = reviews + "namespaces/vault/" + strings.ToLower(r.kind) + "s"
		}
		got := w.mallory(t, http.MethodPost, "/clusters/$A$"+path, fmt.Sprintf(reviewFormat, r.kind, r.namespace, r.spec, fmt.Sprintf(attributes, r.verb)), r.lines...)
		var review struct{ Status struct{ Allowed bool } }
		require.True(t, got.code == http.StatusCreated && decode(got, &review), "%+v: %s", r, got)
		require.Equal(t, r.allowed, review.Status.Allowed, "%+v: %s", r, got)
	}
}

// testClaimsBeyondPolicy checks that a virtual workspace gives no access beyond a policy, to
// bindings that its user may not create, or to objects of another identity.
func (w *world) testClaimsBeyondPolicy(t *testing.T) {
	var export struct{ Status struct{ IdentityHash string } }
	w.must(w.admin, http.MethodGet, "root:warden", boundAPI+"apiexports/all", "", &export)
	const greedy = "/services/apiexport/$A$/greedy/clusters/"
	claims := func(more string) string {
		return fmt.Sprintf(`[{"group":"warden.example","resource":"stones","identityHash":%q,"verbs":["*"]%[2]s},{"group":"bound.example","resource":"gems","identityHash":%[3]q,"verbs":["*"]%[2]s},{"group":"apis.kcp.io","resource":"apibindings","verbs":["*"]%[2]s}]`,
			export.Status.IdentityHash, more, strings.Repeat("0", 64))
	}
	empty := w.mallory(t, http.MethodPost, "/clusters/$A$"+boundAPI+"apiexports", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"greedy"},"spec":{"permissionClaims":[{"group":"warden.example","resource":"stones","verbs":["*"]}]}}`)
	require.Equal(t, http.StatusUnprocessableEntity, empty.code, "%s", empty)
	require.Contains(t, string(empty.body), "spec.permissionClaims[0].identityHash")
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, "/clusters/$A$"+boundAPI+"apiexports", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"greedy"},"spec":{"permissionClaims":`+claims("")+`}}`).code)
	require.Equal(t, http.StatusCreated, w.mallory(t, http.MethodPost, "/clusters/$A$"+boundAPI+"apibindings", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":"greedy"},"spec":{"reference":{"export":{"name":"greedy"}},"permissionClaims":`+claims(`,"state":"Accepted","selector":{"matchAll":true}`)+`}}`).code)
	w.untilResponse(t, atRoot, http.MethodGet, greedy+"$A$"+stones+"/treasure", "", http.StatusOK, "", "the virtual workspace does not allow reading stones")
	for _, impersonation := range impersonations {
		for _, r := range []struct{ method, path, body string }{
			{http.MethodPost, stones, `{"apiVersion":"warden.example/v1","kind":"Stone","metadata":{"name":"mine"}}`},
			{http.MethodDelete, stones + "/treasure", ""},
			{http.MethodDelete, stones, ""},
			{http.MethodGet, pearls, ""},
			{http.MethodPost, boundAPI + "apibindings", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":"led"},"spec":{"reference":{"export":{"path":"$BPATH$","name":"gems"}}}}`},
		} {
			got := w.malloryAt(t, atRoot, r.method, greedy+"$A$"+r.path, r.body, impersonation...)
			require.Equal(t, http.StatusForbidden, got.code, "%s %s as %v: %s", r.method, r.path, impersonation, got)
		}
		// There are gems, but none of the claimed identity.
		got := w.malloryAt(t, atRoot, http.MethodGet, greedy+"$A$"+gems, "", impersonation...)
		require.Equal(t, http.StatusForbidden, got.code, "%v: %s", impersonation, got)
	}
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, "/clusters/$A$"+boundAPI+"apibindings/greedy", "").code)
	require.Equal(t, http.StatusOK, w.mallory(t, http.MethodDelete, "/clusters/$A$"+boundAPI+"apiexports/greedy", "").code)
}
