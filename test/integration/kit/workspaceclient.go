package kit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/shardplane/shardplane/test/harness"
)

// WorkspaceClient sends requests to one workspace on its shard, by default as an administrator.
type WorkspaceClient struct {
	*Env

	Config      *rest.Config
	ClusterName string
	// PathPrefix precedes /clusters/ in URLs of virtual workspaces.
	PathPrefix string
	// VirtualWorkspaceConfig reaches the shard that serves the virtual workspaces, if it is not the shard of the workspace.
	VirtualWorkspaceConfig *rest.Config
}

// NewWorkspaceClient creates a workspace below root, on shard root.
func NewWorkspaceClient(e *Env, name string) WorkspaceClient {
	e.T.Helper()
	return NewWorkspaceClientOn(e, name, 0)
}

// NewWorkspaceClientOn is NewWorkspaceClient on another shard.
func NewWorkspaceClientOn(e *Env, name string, shard int) WorkspaceClient {
	e.T.Helper()
	return WorkspaceClient{Env: e, Config: e.Shard(shard), ClusterName: e.WorkspaceOn("root", name, harness.ShardName(shard)).Spec.Cluster}
}

// As returns a client with the credentials of a token.
func (k WorkspaceClient) As(token string) WorkspaceClient {
	k.Config = WithToken(k.Config, token)
	if k.VirtualWorkspaceConfig != nil {
		k.VirtualWorkspaceConfig = WithToken(k.VirtualWorkspaceConfig, token)
	}
	return k
}

// ForTest returns a client that fails t.
func (k WorkspaceClient) ForTest(t *testing.T) WorkspaceClient {
	t.Helper()
	k.Env = k.Env.ForTest(t)
	return k
}

// In returns a client of another logical cluster, or of all for "*", on the same server.
func (k WorkspaceClient) In(cluster string) WorkspaceClient {
	k.ClusterName = cluster
	return k
}

// ThroughExport returns a client of the virtual workspace of an export, for one logical cluster or for "*".
func (k WorkspaceClient) ThroughExport(export, cluster string) WorkspaceClient {
	if k.VirtualWorkspaceConfig != nil {
		k.Config, k.VirtualWorkspaceConfig = k.VirtualWorkspaceConfig, nil
	}
	k.PathPrefix, k.ClusterName = "/services/apiexport/"+k.ClusterName+"/"+export, cluster
	return k
}

// kindsOf contains the kinds that WithKind adds.
var kindsOf = map[string]string{
	"apiresourceschemas": "APIResourceSchema", "apiexports": "APIExport", "apibindings": "APIBinding",
	"apiexportendpointslices": "APIExportEndpointSlice", "apiconversions": "APIConversion",
}

// WithKind adds the kind to the object in body, because custom resources must have it.
func WithKind(path, body string) string {
	version, resource, ok := strings.Cut(strings.TrimPrefix(path, "/apis/apis.kcp.io/"), "/")
	if !ok || kindsOf[resource] == "" {
		return body
	}
	return fmt.Sprintf(`{"apiVersion":"apis.kcp.io/%s","kind":%q,`, version, kindsOf[resource]) + body[1:]
}

// Do sends a request to the logical cluster, requires the status code, and returns the object in the response. It retries if the
// response contains retryAfterSeconds, as client-go does.
func (k WorkspaceClient) Do(want int, method, path, body string) *unstructured.Unstructured {
	k.T.Helper()
	header := http.Header{"Content-Type": {"application/json"}}
	switch {
	case strings.Contains(path, "fieldManager"):
		header.Set("Content-Type", "application/apply-patch+yaml")
	case method == http.MethodPatch:
		header.Set("Content-Type", "application/merge-patch+json")
	}
	request := Request{Method: method, Path: k.PathPrefix + "/clusters/" + k.ClusterName + path, Body: body, Header: header}
	var code int
	var response []byte
	k.Eventually(method+" "+path+" returns no retryAfterSeconds", func() bool {
		code, response = Do(k.T, k.Config, request)
		return code == want || !bytes.Contains(response, []byte(`"retryAfterSeconds"`))
	})
	require.Equal(k.T, want, code, "%s %s: %s", method, path, response)
	u := &unstructured.Unstructured{}
	require.NoError(k.T, json.Unmarshal(response, &u.Object), "%s", response)
	return u
}

// Get returns an object that must exist.
func (k WorkspaceClient) Get(path string) *unstructured.Unstructured {
	k.T.Helper()
	return k.Do(http.StatusOK, http.MethodGet, path, "")
}

// Create creates an object. WithKind completes it.
func (k WorkspaceClient) Create(path, format string, args ...any) *unstructured.Unstructured {
	k.T.Helper()
	body := format
	if len(args) > 0 {
		body = fmt.Sprintf(format, args...)
	}
	return k.Do(http.StatusCreated, http.MethodPost, path, WithKind(path, body))
}

// Patch sends a merge patch or, if path specifies a field manager, an apply patch.
func (k WorkspaceClient) Patch(path, body string) *unstructured.Unstructured {
	k.T.Helper()
	return k.Do(http.StatusOK, http.MethodPatch, path, body)
}

// Delete deletes an object that must exist.
func (k WorkspaceClient) Delete(path string) {
	k.T.Helper()
	k.Do(http.StatusOK, http.MethodDelete, path, "")
}

// DeleteAndWait deletes an object and waits until it does not exist.
func (k WorkspaceClient) DeleteAndWait(path string) {
	k.T.Helper()
	k.Delete(path)
	k.UntilDeleted(path)
}

// maxRetries is that of client-go.
const maxRetries = 10

// TryDo sends a request and returns the status code and the body of the response. It retries for a while if the response is 503
// with retryAfterSeconds, because on a busy machine a shard may lag behind others.
func (k WorkspaceClient) TryDo(method, path, body string) (code int, text string) {
	k.T.Helper()
	request := Request{Method: method, Path: k.PathPrefix + "/clusters/" + k.ClusterName + path, Body: body, Header: http.Header{"Content-Type": {"application/json"}}}
	for tries := 0; ; tries++ {
		code, response := Do(k.T, k.Config, request)
		if tries == maxRetries || code != http.StatusServiceUnavailable || !bytes.Contains(response, []byte(`"retryAfterSeconds"`)) {
			return code, string(response)
		}
		select {
		case <-k.T.Context().Done():
			return code, string(response)
		case <-time.After(Timeout / 300):
		}
	}
}

// RequireCode sends a request, requires the status code, and returns the body of the response.
func (k WorkspaceClient) RequireCode(want int, method, path, body string) string {
	k.T.Helper()
	code, text := k.TryDo(method, path, body)
	require.Equal(k.T, want, code, "%s %s%s: %s", method, k.ClusterName, path, text)
	return text
}

// UntilCode repeats a request until the response has the status code, and returns the body.
func (k WorkspaceClient) UntilCode(want int, method, path, body string) string {
	k.T.Helper()
	var text string
	EventuallyEqual(k.Env, want, func() int {
		var code int
		code, text = k.TryDo(method, path, body)
		return code
	}, "%s %s%s: %v", method, k.ClusterName, path, stringer(func() string { return text }))
	return text
}

// UntilDeleted waits until an object does not exist.
func (k WorkspaceClient) UntilDeleted(path string) {
	k.T.Helper()
	k.UntilCode(http.StatusNotFound, http.MethodGet, path, "")
}

// UntilShows waits until the response to a GET contains a text.
func (k WorkspaceClient) UntilShows(path, want string) {
	k.T.Helper()
	var code int
	var text string
	err := k.poll(func() bool {
		code, text = k.TryDo(http.MethodGet, path, "")
		return code == http.StatusOK && strings.Contains(text, want)
	})
	require.NoError(k.T, err, "%s%s returns %d, and does not contain %s: %s", k.PathPrefix, path, code, want, text)
}

// UntilCondition waits until a condition of an object has a status and reason.
func (k WorkspaceClient) UntilCondition(path, kind, want string) (object *unstructured.Unstructured) {
	k.T.Helper()
	EventuallyEqual(k.Env, want, func() string {
		object = k.Get(path)
		return Condition(object, kind)
	}, "condition %s of %s: %v", kind, path, stringer(func() string { return fmt.Sprint(object.Object["spec"], object.Object["status"]) }))
	return object
}

// stringer is a value that is formatted when a message is printed.
type stringer func() string

func (s stringer) String() string { return s() }

// BindRole binds a user to a ClusterRole.
func (k WorkspaceClient) BindRole(name, role, user string) { k.bind(name, role, "User", user) }

// BindGroup binds a group to a ClusterRole.
func (k WorkspaceClient) BindGroup(name, role, group string) { k.bind(name, role, "Group", group) }

func (k WorkspaceClient) bind(name, role, kind, subject string) {
	k.T.Helper()
	k.Create(RBACPath+"clusterrolebindings", `{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%q},"subjects":[{"kind":%q,"apiGroup":"rbac.authorization.k8s.io","name":%q}]}`, name, role, kind, subject)
}

// Allow creates a ClusterRole with rules, and binds a user to it.
func (k WorkspaceClient) Allow(name, user, rules string) {
	k.T.Helper()
	k.Create(RBACPath+"clusterroles", `{"metadata":{"name":%q},"rules":[%s]}`, name, rules)
	k.BindRole(name, name, user)
}

// BindAdmin makes a user, e.g. user-1, an administrator of the workspace, and returns its client once it has access.
func (k WorkspaceClient) BindAdmin(user string) WorkspaceClient {
	k.T.Helper()
	k.BindRole("admin-"+user, "cluster-admin", user)
	c := k.As(user + "-token")
	c.UntilCode(http.StatusOK, http.MethodGet, "/api/v1/secrets", "")
	return c
}

// ServiceAccountToken returns a token of the account default of the namespace default, once that exists.
func (k WorkspaceClient) ServiceAccountToken() string {
	k.T.Helper()
	const account = "/api/v1/namespaces/default/serviceaccounts/default"
	k.UntilCode(http.StatusOK, http.MethodGet, account, "")
	made := k.Create(account+"/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
	return fmt.Sprint(Field(made, "status", "token"))
}

// Define creates a CustomResourceDefinition that accepts any object.
func (k WorkspaceClient) Define(group, plural, kind, version string) {
	k.T.Helper()
	name := plural + "." + group
	if group == "" {
		name = plural + ".core"
	}
	made := k.Create(DefinitionsPath, `{"metadata":{"name":%q},"spec":{"group":%q,"scope":"Namespaced","names":{"plural":%q,"singular":%q,"kind":%q},"versions":[{"name":%q,"served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`,
		name, group, plural, strings.ToLower(kind), kind, version)
	require.Equal(k.T, "True InitialNamesAccepted", Condition(made, "Established"))
}

// Kubectl runs kubectl in the logical cluster and returns its output.
func (k WorkspaceClient) Kubectl(args ...string) string {
	k.T.Helper()
	file := filepath.Join(k.T.TempDir(), "kubeconfig")
	require.NoError(k.T, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: k.Config.Host + k.PathPrefix + "/clusters/" + k.ClusterName, CertificateAuthority: k.Config.CAFile, CertificateAuthorityData: k.Config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"u": {
			ClientCertificate: k.Config.CertFile, ClientCertificateData: k.Config.CertData, ClientKey: k.Config.KeyFile, ClientKeyData: k.Config.KeyData, Token: k.Config.BearerToken,
		}},
		Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}}, CurrentContext: "x",
	}, file))
	command := exec.CommandContext(k.T.Context(), harness.Kubectl(k.T), append([]string{"--kubeconfig", file, "--cache-dir", k.T.TempDir()}, args...)...) //nolint:gosec // arguments of tests
	out, err := command.CombinedOutput()
	require.NoError(k.T, err, "%s", out)
	return string(out)
}
