package apis

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestManyErrors checks that responses for objects with many errors are small: without limits, n errors would each contain a list of
// n items.
func TestManyErrors(t *testing.T) {
	e := kit.Shared(t)
	k := kit.NewWorkspaceClient(e, "many-errors").ForTest(t)
	const many = 5000
	repeated := func(format string) string {
		var b strings.Builder
		for i := range many {
			fmt.Fprintf(&b, strings.ReplaceAll(format, "N", "%[1]d"), i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	named := `"metadata":{"name":"bad"},`
	core := "/api/v1/namespaces/default/"
	for name, w := range map[string]wrong{
		"ConfigMap":              {path: core + "configmaps", body: `{` + named + `"data":{` + repeated(`"!N":"",`) + `}}`},
		"Secret":                 {path: core + "secrets", body: `{` + named + `"data":{` + repeated(`"!N":"",`) + `}}`},
		"labels":                 {path: core + "configmaps", body: `{"metadata":{"name":"bad","labels":{` + repeated(`"!N":"",`) + `}}}`},
		"owners":                 {path: core + "configmaps", body: `{"metadata":{"name":"bad","ownerReferences":[` + ofFirst(repeated(`{"apiVersion":"v1","kind":"ConfigMap","name":"aN","uid":"N","controller":true},`), 900) + `]}}`},
		"owners, custom":         {path: kit.TenancyPath + "workspacetypes", body: `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"bad","ownerReferences":[` + ofFirst(repeated(`{"apiVersion":"v1","kind":"ConfigMap","name":"aN","uid":"N","controller":true},`), 900) + `]},"spec":{}}`},
		"ResourceQuota":          {path: core + "resourcequotas", body: `{` + named + `"spec":{"scopes":[` + repeated(`"SN",`) + `]}}`},
		"ClusterRole":            {path: "/apis/rbac.authorization.k8s.io/v1/clusterroles", body: `{` + named + `"rules":[` + repeated(`{"resources":["rN"]},`) + `]}`},
		"ClusterRoleBinding":     {path: "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body: `{` + named + `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"a"},"subjects":[` + repeated(`{"kind":"KN"},`) + `]}`},
		"CertificateRequest":     {path: "/apis/certificates.k8s.io/v1/certificatesigningrequests", body: `{` + named + `"spec":{"request":"","signerName":"example.com/` + strings.Repeat("A.", many) + `A","usages":[` + repeated(`"uN",`) + `]}}`},
		"CustomResource":         {path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body: `{"metadata":{"name":"widgets.example.org"},"spec":{"group":"example.org","scope":"Cluster","names":{"plural":"widgets","kind":"Widget","shortNames":[` + repeated(`"!N",`) + `]},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`},
		"APIResourceSchema":      schemaWith(noRule, `"properties":{`+repeated(`"pN":{"type":"other"},`)+`}`),
		"APIExport":              exportOf(`"resources":[` + ofFirst(repeated(`{"group":"example.org","name":"nNx","schema":"bad","storage":{"crd":{}}},`), 900) + `]`),
		"duplicates of bindings": bindingOf(`{"name":"e"}`, ofFirst(repeated(`{"resource":"secrets","group":"gN","verbs":["get"],"state":"Accepted","selector":{"matchAll":true,"matchLabels":{"a":"b"}}},`), 900)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := kit.RequireCode(t, k.Config, kit.JSONRequest(http.MethodPost, "/clusters/"+k.ClusterName+w.path, kit.WithKind(w.path, w.body)), http.StatusUnprocessableEntity)
			var status metav1.Status
			require.NoError(t, json.Unmarshal(body, &status))
			require.NotEmpty(t, status.Details.Causes, "%.1000s", body)
			require.LessOrEqual(t, len(status.Details.Causes), 100)
			require.Less(t, len(body), 1<<20)
		})
	}
}

// ofFirst returns the first n elements of a list.
func ofFirst(list string, n int) string {
	elements := strings.SplitAfterN(list, "},", n+1)
	return strings.TrimSuffix(strings.Join(elements[:n], ""), ",")
}
