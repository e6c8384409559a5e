package kit

import (
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// CreateExport creates an APIExport of schemas with resources of the same names, and returns its identity.
func (k WorkspaceClient) CreateExport(name string, schemas ...string) string {
	k.T.Helper()
	var resources []string
	for _, schema := range schemas {
		parts := strings.SplitN(schema, ".", 3)
		group := strings.TrimPrefix(parts[2], "core")
		resources = append(resources, fmt.Sprintf(`{"group":%q,"name":%q,"schema":%q,"storage":{"crd":{}}}`, group, parts[1], schema))
	}
	k.Create(APIsV1Alpha2+"apiexports", `{"metadata":{"name":%q},"spec":{"resources":[%s]}}`, name, strings.Join(resources, ","))
	return k.IdentityOf(name)
}

// CreateSchema creates an APIResourceSchema of example.org with one integer field in its spec.
func (k WorkspaceClient) CreateSchema(prefix, plural, field string) string {
	k.T.Helper()
	kind := strings.ToUpper(plural[:1]) + plural[1:len(plural)-1]
	name := prefix + "." + plural + ".example.org"
	k.Create(APIsV1Alpha1+"apiresourceschemas", `{"metadata":{"name":%q},"spec":{"group":"example.org","scope":"Namespaced","names":{"plural":%q,"singular":%q,"kind":%q,"listKind":%q},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"type":"object","properties":{"spec":{"type":"object","properties":{%q:{"type":"integer"}}},"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}]}}`,
		name, plural, plural[:len(plural)-1], kind, kind+"List", field)
	return name
}

// Bind creates an APIBinding to an export of a provider.
func (k WorkspaceClient) Bind(name string, provider WorkspaceClient, export string) {
	k.T.Helper()
	k.Create(bindings, bindingBody, name, provider.ClusterName, export)
}

// BindReady is Bind, and waits until the binding is Ready.
func (k WorkspaceClient) BindReady(name string, provider WorkspaceClient, export string) *unstructured.Unstructured {
	k.T.Helper()
	k.Bind(name, provider, export)
	return k.UntilBinding(name, "Ready", "True <nil>")
}

const (
	bindings    = APIsV1Alpha2 + "apibindings"
	bindingBody = `{"metadata":{"name":%q},"spec":{"reference":{"export":{"path":%q,"name":%q}}}}`
)

// BindPath binds an export by the path of its logical cluster, and retries until the response has the status code.
func (k WorkspaceClient) BindPath(want int, name, path, export string) string {
	k.T.Helper()
	return k.UntilCode(want, http.MethodPost, bindings, WithKind(bindings, fmt.Sprintf(bindingBody, name, path, export)))
}

// BindPathReady is BindPath, and waits until the binding is Ready.
func (k WorkspaceClient) BindPathReady(name, path, export string) *unstructured.Unstructured {
	k.T.Helper()
	k.BindPath(http.StatusCreated, name, path, export)
	return k.UntilBinding(name, "Ready", "True <nil>")
}

// UntilBinding waits until a condition of a binding has a status and reason.
func (k WorkspaceClient) UntilBinding(binding, kind, want string) *unstructured.Unstructured {
	k.T.Helper()
	return k.UntilCondition(bindings+"/"+binding, kind, want)
}

// CreateEndpointSlice creates an endpoint slice of the export e, and retries until the export exists on the shard.
func (k WorkspaceClient) CreateEndpointSlice(name, provider, more string) {
	k.T.Helper()
	const path = APIsV1Alpha1 + "apiexportendpointslices"
	k.UntilCode(http.StatusCreated, http.MethodPost, path, WithKind(path, fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"export":{"path":%q,"name":"e"}%s}}`, name, provider, more)))
}

// IdentityOf waits for the identity of an export.
func (k WorkspaceClient) IdentityOf(export string) string {
	k.T.Helper()
	var hash string
	k.Eventually("the export "+export+" has an identity", func() bool {
		code, text := k.TryDo(http.MethodGet, APIsV1Alpha2+"apiexports/"+export, "")
		read := &unstructured.Unstructured{}
		if code != http.StatusOK || read.UnmarshalJSON([]byte(text)) != nil {
			return false
		}
		hash, _ = Field(read, "status", "identityHash").(string)
		return hash != ""
	})
	return hash
}

// ClaimInExport sets the permission claims of the export e.
func (k WorkspaceClient) ClaimInExport(claims string) {
	k.T.Helper()
	k.Patch(APIsV1Alpha2+"apiexports/e", `{"spec":{"permissionClaims":`+claims+`}}`)
}

// AcceptClaims sets the permission claims of the binding e, and waits until those that it accepts are applied.
func (k WorkspaceClient) AcceptClaims(claims string) {
	k.T.Helper()
	k.Patch(bindings+"/e", `{"spec":{"permissionClaims":`+claims+`}}`)
	EventuallyEqual(k.Env, strings.Count(claims, `"Accepted"`), func() int {
		applied, _ := Field(k.Get(bindings+"/e"), "status", "appliedPermissionClaims").([]any)
		return len(applied)
	}, "applied claims of %s", claims)
}
