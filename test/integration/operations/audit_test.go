package operations

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestAudit checks that events in the log and at the webhook contain the logical cluster, its path, the URI, the ID from the
// front-proxy, and the content that the policy specifies, and that the front-proxy records requests that it rejects.
func TestAudit(t *testing.T) {
	t.Parallel()
	e := sharedWithEverything(t)
	logged := func(component string) func() []auditv1.Event {
		return sinceNow(func() []auditv1.Event { return auditLog(t, component) })
	}
	events, received, ofProxy, ofCache := logged("root"), sinceNow(everything.hook.received), logged("front-proxy"), logged("cache-server")
	ws := e.WorkspaceOn("root", "audited", "root")
	in := harness.Clientset(t, e.Proxy(), "root:audited")
	harness.Create(t, in.CoreV1().ConfigMaps("default"), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "noted"}, Data: map[string]string{"k": "v"},
	})
	code, _ := kit.Do(t, harness.In(e.Proxy(), "root:audited"), kit.Request{
		Path:   "/api/v1/namespaces/default/secrets?limit=7",
		Header: http.Header{"Audit-ID": {"the-client-chose-it"}},
	})
	require.Equal(t, http.StatusOK, code)
	virtualWorkspaces := "/services/apiexport/" + ws.Spec.Cluster + "/none/clusters/"
	kit.RequireCode(t, e.Shard(0), kit.Request{Path: virtualWorkspaces + "*/api/v1/secrets", Header: http.Header{"Audit-ID": {"through-a-virtual-workspace"}}}, http.StatusNotFound)
	stranger := kit.WithToken(e.Proxy(), "user-5-token")
	kit.RequireCode(t, harness.In(kit.AtHost(stranger, e.Shard(0).Host), "root:audited"), kit.Request{Path: "/api/v1/namespaces/default/secrets/x"}, http.StatusForbidden)

	for name, events := range map[string]func() []auditv1.Event{"log": events, "webhook": received} {
		t.Run(name, func(t *testing.T) {
			prefix := "/clusters/" + ws.Spec.Cluster
			created := awaitAuditEvent(e, events, func(ev auditv1.Event) bool {
				return ev.Verb == "create" && ev.ObjectRef.Name == "noted"
			})
			require.Equal(t, prefix+"/api/v1/namespaces/default/configmaps", strings.Split(created.RequestURI, "?")[0])
			require.Equal(t, ws.Spec.Cluster, created.Annotations["kcp.io/cluster"])
			require.Equal(t, "root:audited", created.Annotations["kcp.io/path"])
			require.NotContains(t, created.Annotations, "shardplane.io/request-uri")
			require.Contains(t, string(created.RequestObject.Raw), `"k":"v"`)
			require.NotEmpty(t, created.User.Username)

			listed := awaitAuditEvent(e, events, func(ev auditv1.Event) bool { return ev.AuditID == "the-client-chose-it" })
			require.Equal(t, prefix+"/api/v1/namespaces/default/secrets?limit=7", listed.RequestURI)
			require.Nil(t, listed.ResponseObject, "events must not contain secrets")

			throughExport := awaitAuditEvent(e, events, func(ev auditv1.Event) bool { return ev.AuditID == "through-a-virtual-workspace" })
			require.Equal(t, ws.Spec.Cluster, throughExport.Annotations["kcp.io/cluster"], "the event belongs to the provider's logical cluster")
			require.Equal(t, virtualWorkspaces+"*", throughExport.Annotations["shardplane.io/virtual-workspace"])

			denied := awaitAuditEvent(e, events, func(ev auditv1.Event) bool {
				return ev.User.Username == "user-5" && ev.ObjectRef.Name == "x" && ev.ResponseStatus != nil && ev.ResponseStatus.Code == http.StatusForbidden
			})
			require.Equal(t, "/clusters/root:audited/api/v1/namespaces/default/secrets/x", denied.RequestURI, "the URI as received by the shard")
			require.Equal(t, ws.Spec.Cluster, denied.Annotations["kcp.io/cluster"])
			require.Equal(t, "root:audited", denied.Annotations["kcp.io/path"])
			require.Equal(t, "forbid", denied.Annotations["authorization.k8s.io/decision"])
			require.Contains(t, denied.Annotations["authorization.k8s.io/reason"], kit.NotPermitted)
		})
	}
	t.Run("levels", func(t *testing.T) { testAuditLevels(t, e, in, events) })
	t.Run("front-proxy", func(t *testing.T) {
		testProxyAudit(t, e, ws.Spec.Cluster, ofProxy, events)
	})
	t.Run("cache server", func(t *testing.T) {
		kit.RequireCode(t, e.Cache(), kit.Request{Path: "/services/cache/shards/root/clusters/root/apis/core.kcp.io/v1alpha1/shards/root", Header: http.Header{"Audit-ID": {"cached"}}}, http.StatusOK)
		ev := awaitAuditEvent(e, ofCache, func(ev auditv1.Event) bool {
			return ev.AuditID == "cached" && ev.Stage == auditv1.StageResponseComplete
		})
		require.Equal(t, "root", ev.Annotations["kcp.io/shard"])
		require.Equal(t, "root", ev.Annotations["kcp.io/cluster"])
		require.Equal(t, "/services/cache/shards/root/clusters/root/apis/core.kcp.io/v1alpha1/shards/root", ev.RequestURI)
	})
}

// testAuditLevels checks that the content of events depends on the level: of secrets nothing, unless the policy specifies it.
func testAuditLevels(t *testing.T, e *kit.Env, in kubernetes.Interface, events func() []auditv1.Event) {
	harness.Create(t, in.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "recorded"}})
	for _, namespace := range []string{"default", "recorded"} {
		harness.Create(t, in.CoreV1().Secrets(namespace), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"password": "hunter2"},
		})
	}
	of := func(namespace string) auditv1.Event {
		return awaitAuditEvent(e, events, func(ev auditv1.Event) bool {
			return ev.Verb == "create" && ev.ObjectRef.Resource == "secrets" && ev.ObjectRef.Namespace == namespace && ev.ResponseStatus.Code == http.StatusCreated
		})
	}
	plain, whole := of("default"), of("recorded")
	require.Equal(t, auditv1.LevelMetadata, plain.Level)
	require.Nil(t, plain.RequestObject)
	require.Nil(t, plain.ResponseObject)
	require.Equal(t, auditv1.LevelRequestResponse, whole.Level)
	require.Contains(t, string(whole.RequestObject.Raw), base64.StdEncoding.EncodeToString([]byte("hunter2")))
	require.Contains(t, string(whole.ResponseObject.Raw), `"uid"`)
	for _, ev := range events() {
		require.NotEqual(t, "system:apiserver", ev.User.Username, "the policy omits these events")
		require.NotEqual(t, auditv1.StageRequestReceived, ev.Stage, "the policy omits these events")
	}
}

// testProxyAudit checks that the front-proxy records each request that it rejects, and none that it forwards.
func testProxyAudit(t *testing.T, e *kit.Env, audited string, events, ofShard func() []auditv1.Event) {
	stranger, anonymous := kit.WithToken(e.Proxy(), "user-5-token"), kit.Anonymous(e.Proxy())
	kit.RequireStatus(t, stranger, kit.Request{Path: "/clusters/root:nowhere/api/v1/namespaces/default/secrets/x?why=not", Header: http.Header{"Audit-ID": {"refused-1"}}}, http.StatusForbidden)
	kit.RequireStatus(t, stranger, kit.Request{Path: "/clusters/*/api/v1/secrets", Header: http.Header{"Audit-ID": {"refused-2"}}}, http.StatusForbidden)
	kit.RequireStatus(t, stranger, kit.Request{Path: "/clusters/root%2F..%2Fsystem:admin/api", Header: http.Header{"Audit-ID": {"refused-3"}}}, http.StatusForbidden)
	kit.RequireStatus(t, stranger, kit.Request{Path: "/clusters/0123456789abcdef/version", Header: http.Header{"Audit-ID": {"unwanted"}}}, http.StatusForbidden)
	kit.RequireStatus(t, anonymous, kit.Request{Path: "/clusters/root/api", Header: http.Header{"Audit-ID": {"unknown-1"}}}, http.StatusUnauthorized)
	kit.RequireStatus(t, kit.WithToken(e.Proxy(), "forged"), kit.Request{Path: "/clusters/root/api", Header: http.Header{"Audit-ID": {"unknown-2"}}}, http.StatusUnauthorized)
	kit.RequireStatus(t, stranger, kit.Request{Path: "/elsewhere", Header: http.Header{"Audit-ID": {"unmapped"}}}, http.StatusNotFound)
	kit.RequireStatus(t, stranger, kit.Request{Path: "/clusters/" + audited + "/api/v1/namespaces/default/secrets/y", Header: http.Header{"Audit-ID": {"hidden"}}}, http.StatusForbidden)
	kit.RequireCode(t, anonymous, kit.Request{Path: "/readyz", Header: http.Header{"Audit-ID": {"probe"}}}, http.StatusOK)

	byID := map[string]auditv1.Event{}
	e.Eventually("the rejected requests are recorded", func() bool {
		for _, ev := range events() {
			byID[string(ev.AuditID)] = ev
		}
		return byID["unmapped"].AuditID != ""
	})
	first := byID["refused-1"]
	require.Equal(t, "/clusters/root:nowhere/api/v1/namespaces/default/secrets/x?why=not", first.RequestURI)
	require.Equal(t, "user-5", first.User.Username)
	require.Equal(t, "get", first.Verb)
	require.Equal(t, &auditv1.ObjectReference{Resource: "secrets", Namespace: "default", Name: "x", APIVersion: "v1"}, first.ObjectRef)
	require.Equal(t, int32(http.StatusForbidden), first.ResponseStatus.Code)
	require.Equal(t, auditv1.StageResponseComplete, first.Stage)
	require.Equal(t, "root:nowhere", first.Annotations["kcp.io/path"])
	require.Equal(t, "forbid", first.Annotations["authorization.k8s.io/decision"])
	require.Contains(t, first.Annotations["authorization.k8s.io/reason"], kit.NotPermitted)
	require.NotEmpty(t, first.SourceIPs)
	require.Equal(t, "/clusters/*/api/v1/secrets", byID["refused-2"].RequestURI)
	require.Equal(t, "/clusters/root%2F..%2Fsystem:admin/api", byID["refused-3"].RequestURI)
	require.Equal(t, "authentication failed: no credentials", byID["unknown-1"].ResponseStatus.Message)
	require.Contains(t, byID["unknown-2"].ResponseStatus.Message, "a token")
	require.Empty(t, byID["unknown-2"].User.Username)
	require.Equal(t, int32(http.StatusNotFound), byID["unmapped"].ResponseStatus.Code)
	for _, id := range []string{"unwanted", "probe", "hidden", "the-client-chose-it"} {
		require.NotContains(t, byID, id)
	}
	hidden := awaitAuditEvent(e, ofShard, func(ev auditv1.Event) bool { return ev.AuditID == "hidden" })
	require.Equal(t, "user-5", hidden.User.Username, "the shard must record requests that it rejects")
	require.Equal(t, int32(http.StatusForbidden), hidden.ResponseStatus.Code)
}

// awaitAuditEvent waits for an event with an object reference for which fits is true.
func awaitAuditEvent(e *kit.Env, events func() []auditv1.Event, fits func(auditv1.Event) bool) auditv1.Event {
	e.T.Helper()
	var found auditv1.Event
	e.Eventually("the audit event is recorded", func() bool {
		for _, ev := range events() {
			if ev.ObjectRef != nil && fits(ev) {
				found = ev
				return true
			}
		}
		return false
	})
	return found
}

func readAuditLog(t *testing.T, file string) []auditv1.Event {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	var events []auditv1.Event
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return events // an incomplete line is read the next time
		}
		require.NoError(t, err)
		var ev auditv1.Event
		require.NoError(t, json.Unmarshal(line, &ev), "%s", line)
		events = append(events, ev)
	}
}

// auditHook is a webhook that stores the received events.
type auditHook struct {
	*httptest.Server

	mu     sync.Mutex
	events []auditv1.Event
}

func newAuditHook() *auditHook {
	h := &auditHook{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var list auditv1.EventList
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.events = append(h.events, list.Items...)
	}))
	return h
}

func (h *auditHook) received() []auditv1.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]auditv1.Event(nil), h.events...)
}
