package kit

import (
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// CreateExport makes an export of schemas, named as its resources are, and returns its identity.
func (k WorkspaceClient) CreateExport(name string, schemas ...string) string {
	k.T.Helper()
	var resources []string
	for _, schema := range schemas {
		parts := strings.SplitN(schema, ".", 3)
		resources = append(resources, fmt.Sprintf(`{"group":%q,"name":%q,"schema":%q,"storage":{"crd":{}}}`, strings.TrimPrefix(parts[2], "core"), parts[1], schema))
	}
	k.Create(APIsV1Alpha2+"apiexports", `{"metadata":{"name":%q},"spec":{"resources":[%s]}}`, name, strings.Join(resources, ","))
	identity := ""
	k.Eventually("the export has an identity", func() bool {
		identity, _ = Field(k.Get(APIsV1Alpha2+"apiexports/"+name), "status", "identityHash").(string)
		return identity != ""
	})
	return identity
}

// CreateSchema makes a schema of a resource of example.org, whose objects have a field.
func (k WorkspaceClient) CreateSchema(prefix, plural, field string) string {
	k.T.Helper()
	kind := strings.ToUpper(plural[:1]) + plural[1:len(plural)-1]
	name := prefix + "." + plural + ".example.org"
	k.Create(APIsV1Alpha1+"apiresourceschemas", `{"metadata":{"name":%q},"spec":{"group":"example.org","scope":"Namespaced","names":{"plural":%q,"singular":%q,"kind":%q,"listKind":%q},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"type":"object","properties":{"spec":{"type":"object","properties":{%q:{"type":"integer"}}},"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}]}}`,
		name, plural, plural[:len(plural)-1], kind, kind+"List", field)
	return name
}

// Bind makes a binding to an export of a provider.
func (k WorkspaceClient) Bind(name string, provider WorkspaceClient, export string) {
	k.T.Helper()
	k.Create(APIsV1Alpha2+"apibindings", `{"metadata":{"name":%q},"spec":{"reference":{"export":{"path":%q,"name":%q}}}}`, name, provider.ClusterName, export)
}

// UntilBinding waits until a condition of a binding has a status and reason.
func (k WorkspaceClient) UntilBinding(binding, kind, want string) *unstructured.Unstructured {
	k.T.Helper()
	var b *unstructured.Unstructured
	k.Eventually(fmt.Sprintf("%s of binding %s is %s", kind, binding, want), func() bool {
		b = k.Get(APIsV1Alpha2 + "apibindings/" + binding)
		return Condition(b, kind) == want
	})
	return b
}

// BindPath makes a binding to an export, by the path of its logical cluster.
func (k WorkspaceClient) BindPath(want int, name, path, export string) (says string) {
	k.T.Helper()
	k.Eventually(fmt.Sprintf("binding %s:%s is answered %d", path, export, want), func() bool {
		code, answer := k.TryDo(http.MethodPost, APIsV1Alpha2+"apibindings", WithKind(APIsV1Alpha2+"apibindings", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"reference":{"export":{"path":%q,"name":%q}}}}`, name, path, export)))
		says = answer
		return code == want
	})
	return says
}

// CreateEndpointSlice makes an endpoint slice of the export e as soon as that is known.
func (k WorkspaceClient) CreateEndpointSlice(name, provider, more string) {
	k.T.Helper()
	k.Eventually("slice "+name+" is created", func() bool {
		code, _ := k.TryDo(http.MethodPost, APIsV1Alpha1+"apiexportendpointslices", WithKind(APIsV1Alpha1+"apiexportendpointslices", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"export":{"path":%q,"name":"e"}%s}}`, name, provider, more)))
		return code == http.StatusCreated
	})
}

// AllRights is a ClusterRoleBinding that makes user-1 an administrator.
const AllRights = `{"metadata":{"name":"all"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`

// IdentityOf waits for the identity of an export.
func (k WorkspaceClient) IdentityOf(export string) string {
	k.T.Helper()
	var hash string
	k.Eventually(export+" has an identity", func() bool {
		code, says := k.TryDo(http.MethodGet, APIsV1Alpha2+"apiexports/"+export, "")
		read := &unstructured.Unstructured{}
		if code != http.StatusOK || read.UnmarshalJSON([]byte(says)) != nil {
			return false
		}
		hash, _ = Field(read, "status", "identityHash").(string)
		return hash != ""
	})
	return hash
}

// ClaimInExport adds claims to the export e, which must exist.
func (k WorkspaceClient) ClaimInExport(claims string) {
	k.T.Helper()
	k.Do(http.StatusOK, http.MethodPatch, APIsV1Alpha2+"apiexports/e", `{"spec":{"permissionClaims":`+claims+`}}`)
}

// AcceptClaims has the binding e accept claims, once they are exported.
func (k WorkspaceClient) AcceptClaims(claims string) {
	k.T.Helper()
	k.Do(http.StatusOK, http.MethodPatch, APIsV1Alpha2+"apibindings/e", `{"spec":{"permissionClaims":`+claims+`}}`)
	want := strings.Count(claims, `"Accepted"`)
	k.Eventually("the claims have effect", func() bool {
		applied, _ := Field(k.Get(APIsV1Alpha2+"apibindings/e"), "status", "appliedPermissionClaims").([]any)
		return len(applied) == want
	})
}
