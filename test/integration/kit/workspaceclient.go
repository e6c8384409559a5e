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

// WorkspaceClient sends requests to one workspace on its shard, by default as an administrator
// and on shard root.
type WorkspaceClient struct {
	*Env

	Config      *rest.Config
	ClusterName string
	// PathPrefix comes before /clusters/ in URLs of virtual workspaces.
	PathPrefix string
	// VirtualWorkspaceConfig is for the shard that serves the virtual workspaces, if that is not
	// the shard of the workspace.
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
	on := "root"
	if shard > 0 {
		on = fmt.Sprintf("shard-%d", shard)
	}
	return WorkspaceClient{Env: e, Config: e.Shard(shard), ClusterName: e.WorkspaceOn("root", name, on).Spec.Cluster}
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

// ThroughExport returns a client of the virtual workspace of an export, for one logical cluster or
// for "*".
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

// WithKind returns the object in body with its kind, as custom resources must have it.
func WithKind(path, body string) string {
	version, resource, ok := strings.Cut(strings.TrimPrefix(path, "/apis/apis.kcp.io/"), "/")
	if !ok || kindsOf[resource] == "" {
		return body
	}
	return fmt.Sprintf(`{"apiVersion":"apis.kcp.io/%s","kind":%q,`, version, kindsOf[resource]) + body[1:]
}

// Do sends a request below the logical cluster, and returns the object in the answer. As client-go
// does, it tries again if the answer asks for that.
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
	var answer []byte
	k.Eventually(method+" "+path+" is not answered with a request to try again", func() bool {
		code, answer = Do(k.T, k.Config, request)
		return code == want || !bytes.Contains(answer, []byte(`"retryAfterSeconds"`))
	})
	require.Equal(k.T, want, code, "%s %s: %s", method, path, answer)
	u := &unstructured.Unstructured{}
	require.NoError(k.T, json.Unmarshal(answer, &u.Object), "%s", answer)
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

// ServiceAccountToken returns a token of the account default of the namespace default, once there is one.
func (k WorkspaceClient) ServiceAccountToken() string {
	k.T.Helper()
	const account = "/api/v1/namespaces/default/serviceaccounts/default"
	k.Eventually("there is an account", func() bool {
		code, _ := k.TryDo(http.MethodGet, account, "")
		return code == http.StatusOK
	})
	made := k.Create(account+"/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
	return fmt.Sprint(Field(made, "status", "token"))
}

// maxRetries is that of client-go.
const maxRetries = 10

// TryDo sends a request and returns the code and body of the answer. As clients do, it tries again for a while if the
// answer is 503 with Retry-After: on a busy machine a shard may not know for a moment what others have written.
func (k WorkspaceClient) TryDo(method, path, body string) (code int, says string) {
	k.T.Helper()
	request := Request{Method: method, Path: k.PathPrefix + "/clusters/" + k.ClusterName + path, Body: body, Header: http.Header{"Content-Type": {"application/json"}}}
	for tries := 0; ; tries++ {
		code, answer := Do(k.T, k.Config, request)
		if tries == maxRetries || code != http.StatusServiceUnavailable || !bytes.Contains(answer, []byte(`"retryAfterSeconds"`)) {
			return code, string(answer)
		}
		select {
		case <-k.T.Context().Done():
			return code, string(answer)
		case <-time.After(Timeout / 300):
		}
	}
}

// UntilGone waits until an object does not exist.
func (k WorkspaceClient) UntilGone(path, name string) {
	k.T.Helper()
	k.Eventually(path+"/"+name+" is gone", func() bool {
		code, _ := k.TryDo(http.MethodGet, path+"/"+name, "")
		return code == http.StatusNotFound
	})
}

// Define creates a CustomResourceDefinition without a schema.
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

// UntilShows waits until the answer to a GET contains something.
func (k WorkspaceClient) UntilShows(path, something string) {
	k.T.Helper()
	var said []string
	require.Eventually(k.T, func() bool {
		code, says := k.TryDo(http.MethodGet, path, "")
		said = []string{fmt.Sprint(code), says}
		return code == http.StatusOK && strings.Contains(says, something)
	}, Timeout, Timeout/300, "%s%s is to show %s: %v", k.PathPrefix, path, something, &said)
}

// Kubectl runs kubectl below the logical cluster.
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
	command := exec.CommandContext(k.T.Context(), harness.Kubectl(k.T), append([]string{"--kubeconfig", file, "--cache-dir", k.T.TempDir()}, args...)...) //nolint:gosec // our own
	out, err := command.CombinedOutput()
	require.NoError(k.T, err, "%s", out)
	return string(out)
}
