package frontproxy

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
)

// pending announces a workspace of owner that has no logical cluster yet.
func (w *world) pending(t *testing.T, name string) {
	t.Helper()
	w.workspace(t, "root", "root", name, "", func(ws *tenancyv1alpha1.Workspace) {
		ws.Status.Phase = corev1alpha1.LogicalClusterPhaseScheduling
		ws.Annotations[tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey] = `{"username":"owner","groups":["g"]}`
	})
	require.Eventually(t, func() bool {
		_, outcome := w.proxy.shards.index.Lookup("root:" + name)
		return outcome.String() == "Pending"
	}, timeout, time.Millisecond)
}

// TestOwnersAwaitTheirWorkspace holds that a request for a workspace that has no logical
// cluster yet waits for it, if it is of the owner or of an administrator, and that others
// are answered as if there were none.
func TestOwnersAwaitTheirWorkspace(t *testing.T) {
	w := newWorld(t, "root")
	w.options.IndexTimeout, w.options.WorkspaceReadyTimeout = 20*time.Millisecond, maxReadyTimeout
	w.ready(t)
	w.pending(t, "new")
	owner, admin, jane := w.person(t, "owner"), w.person(t, "kcp-admin", "system:kcp:admin"), w.person(t, "jane")
	answers := []<-chan string{owner.async(t, "/clusters/root:new/api"), admin.async(t, "/clusters/root:new/api")}

	// Who leaves takes its place along.
	gone, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(gone, http.MethodGet, w.proxy.URL()+"/clusters/root:new/api", nil)
	require.NoError(t, err)
	left := make(chan error, 1)
	go func() {
		_, err := owner.Do(r)
		left <- err
	}()
	require.Eventually(t, func() bool { return w.waiting() == 3 }, timeout, time.Millisecond)

	unknownRes, unknown := jane.get(t, "/clusters/root:old/api")
	hiddenRes, hidden := jane.get(t, "/clusters/root:new/api")
	require.Equal(t, http.StatusForbidden, hiddenRes.StatusCode)
	require.Equal(t, strings.ReplaceAll(unknown, "root:old", "root:new"), hidden)
	unknownRes.Header.Del("Date")
	hiddenRes.Header.Del("Date")
	require.Equal(t, unknownRes.Header, hiddenRes.Header)

	leave()
	require.ErrorIs(t, <-left, context.Canceled)
	require.Eventually(t, func() bool { return w.waiting() == 2 }, timeout, time.Millisecond)
	for _, answer := range answers {
		select {
		case text := <-answer:
			t.Fatalf("answered before there is a workspace: %s", text)
		default:
		}
	}
	w.cluster(t, "root", "nnnn")
	w.workspace(t, "root", "root", "new", "nnnn")
	for _, answer := range answers {
		require.Contains(t, <-answer, `"URI":"/clusters/nnnn/api"`)
	}

	// One that goes is refused as any that is not there.
	w.pending(t, "brief")
	answer := owner.async(t, "/clusters/root:brief/api")
	require.Eventually(t, func() bool { return w.waiting() == 1 }, timeout, time.Millisecond)
	jane.get(t, "/clusters/root:brief/api") // the wait of strangers passes
	w.shards["root"].data.Delete(t, kinds.Workspaces.GroupVersionResource, "", "root", "", "brief")
	require.Contains(t, <-answer, "Forbidden")
}

// TestWorkspacesThatDoNotBecomeReady holds that owners are told to come again, whatever
// the workspace waits for.
func TestWorkspacesThatDoNotBecomeReady(t *testing.T) {
	w := newWorld(t, "root")
	w.options.IndexTimeout, w.options.WorkspaceReadyTimeout = 10*time.Millisecond, 50*time.Millisecond
	w.ready(t)
	w.pending(t, "stuck")
	start := time.Now()
	res, body := w.person(t, "owner").get(t, "/clusters/root:stuck/api")
	require.Equal(t, "1", res.Header.Get("Retry-After"))
	require.Contains(t, status(t, res, body, http.StatusServiceUnavailable).Message, "not ready")
	require.GreaterOrEqual(t, time.Since(start), w.options.WorkspaceReadyTimeout)
}

// TestShardsLearnHowLongToWait holds that of a logical cluster that is not ready the shard
// is told how much of the wait is left, for bodies before they are read, and that it is
// nobody else's to say.
func TestShardsLearnHowLongToWait(t *testing.T) {
	w := newWorld(t, "root")
	w.cluster(t, "root", "born", func(lc *corev1alpha1.LogicalCluster) { lc.Status.Phase = corev1alpha1.LogicalClusterPhaseInitializing })
	w.cluster(t, "root", "grown")
	w.ready(t)
	w.knows(t, "born", "root")
	w.knows(t, "grown", "root")
	said := make(chan string, 10)
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		said <- r.Method + " " + r.Header.Get(request.ReadyTimeoutHeader)
		rw.Header().Set(request.AccessAuthorizedHeader, "true")
		rw.Header().Set("Retry-After", "1")
		rw.WriteHeader(http.StatusServiceUnavailable)
	})
	owner := w.person(t, "owner")
	res, _ := owner.get(t, "/clusters/born/api", request.ReadyTimeoutHeader, "1h")
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
	require.Equal(t, "1", res.Header.Get("Retry-After"))
	told := func(method string) {
		t.Helper()
		verb, text, _ := strings.Cut(<-said, " ")
		require.Equal(t, method, verb)
		left, err := time.ParseDuration(text)
		require.NoError(t, err)
		require.LessOrEqual(t, left, w.options.WorkspaceReadyTimeout)
		require.Positive(t, left)
	}
	told(http.MethodGet)
	w.proxy.router.accessCache.denied(accessKeyOf(namedUser("owner"), "born", ""))
	res, _ = owner.do(t, http.MethodPost, "/clusters/born/api", strings.NewReader("a body"))
	require.Equal(t, http.StatusServiceUnavailable, res.StatusCode)
	told(http.MethodGet)
	told(http.MethodPost)
	owner.get(t, "/clusters/grown/api", request.ReadyTimeoutHeader, "1h")
	require.Equal(t, "GET ", <-said)
}
