package initialization

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/client"
	clientkinds "github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// within returns a context for the virtual workspace of the type home:apps.
func within(ctx context.Context, mount *request.Mount, in request.Cluster) context.Context {
	return request.WithScope(ctx, request.Scope{
		Cluster: request.Cluster{Name: "home"}, Mount: mount,
		VirtualWorkspace: &request.VirtualWorkspace{Name: "apps", In: in},
	})
}

var (
	one        = request.Cluster{Name: "one"}
	controller = &user.DefaultInfo{Name: "controller"}
)

// serve sends a request, and returns the response and the forwarded request.
func serve(
	ctx context.Context, w *VirtualWorkspaces, url string, info genericapirequest.RequestInfo,
) (response *httptest.ResponseRecorder, sent *http.Request) {
	response = httptest.NewRecorder()
	next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { sent = r })
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err := w.Serve(response, r, &info, next); err != nil {
		responsewriters.ErrorNegotiated(err, clientkinds.Codecs, schema.GroupVersion{Version: "v1"}, response, r)
	}
	return response, sent
}

func finding(lc *corev1alpha1.LogicalCluster) authz.FindLogicalCluster {
	return func(context.Context, logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) { return lc, nil }
}

func anyType(client.Key) (*tenancyv1alpha1.WorkspaceType, error) {
	return &tenancyv1alpha1.WorkspaceType{}, nil
}

// TestPermitsAfterWatchEvent: a client with a watch event can access a waiting logical cluster at once, even if the informer
// has not observed it. Other logical clusters are denied.
func TestPermitsAfterWatchEvent(t *testing.T) {
	scheduling := &corev1alpha1.LogicalCluster{Status: corev1alpha1.LogicalClusterStatus{Phase: corev1alpha1.LogicalClusterPhaseScheduling}}
	initializing := &corev1alpha1.LogicalCluster{Status: corev1alpha1.LogicalClusterStatus{
		Phase: corev1alpha1.LogicalClusterPhaseInitializing, Initializers: []corev1alpha1.LogicalClusterInitializer{"home:apps"},
	}}
	terminators := corev1alpha1.LogicalClusterStatus{Terminators: []corev1alpha1.LogicalClusterTerminator{"home:apps"}}
	ready := &corev1alpha1.LogicalCluster{Status: terminators}
	deleted := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}, Status: terminators}
	terminating := deleted.DeepCopy()
	terminating.Status.Phase = corev1alpha1.LogicalClusterPhaseTerminating
	others := &corev1alpha1.LogicalCluster{ObjectMeta: terminating.ObjectMeta, Status: corev1alpha1.LogicalClusterStatus{
		Phase: corev1alpha1.LogicalClusterPhaseTerminating, Terminators: []corev1alpha1.LogicalClusterTerminator{"home:others"},
	}}
	for name, c := range map[string]struct {
		mount          *request.Mount
		informer, etcd *corev1alpha1.LogicalCluster
		want           authorizer.Decision
	}{
		"initializing":               {request.InitializingWorkspaces, initializing, initializing, authorizer.DecisionAllow},
		"initializing, not observed": {request.InitializingWorkspaces, scheduling, initializing, authorizer.DecisionAllow},
		"scheduling":                 {request.InitializingWorkspaces, scheduling, scheduling, authorizer.DecisionDeny},
		"terminating":                {request.TerminatingWorkspaces, terminating, terminating, authorizer.DecisionAllow},
		"terminating, not observed":  {request.TerminatingWorkspaces, ready, terminating, authorizer.DecisionAllow},
		"ready":                      {request.TerminatingWorkspaces, ready, ready, authorizer.DecisionDeny},
		"not yet terminating":        {request.TerminatingWorkspaces, deleted, deleted, authorizer.DecisionDeny},
		"of another type":            {request.TerminatingWorkspaces, others, others, authorizer.DecisionDeny},
		"deleted":                    {request.TerminatingWorkspaces, ready, nil, authorizer.DecisionDeny},
	} {
		rules := []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}}
		workspaces := &VirtualWorkspaces{
			Type: func(client.Key) (*tenancyv1alpha1.WorkspaceType, error) {
				return &tenancyv1alpha1.WorkspaceType{Spec: tenancyv1alpha1.WorkspaceTypeSpec{InitializerPermissions: rules, TerminatorPermissions: rules}}, nil
			},
			Find: finding(c.informer), Read: finding(c.etcd),
			Bounds: func(next authorizer.Authorizer) authorizer.Authorizer { return next },
		}
		ctx := within(t.Context(), c.mount, one)
		got, reason, err := workspaces.Permits(ctx, authorizer.AttributesRecord{
			User: controller, Verb: "delete", Resource: "configmaps", APIVersion: "v1", ResourceRequest: true,
		})
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, "%s: %s", name, reason)
		require.Equal(t, c.want == authorizer.DecisionAllow, workspaces.Shows(ctx), name)
	}
}

// TestUnknownType: until a type is loaded, requests to its virtual workspaces get 503 with a delay.
func TestUnknownType(t *testing.T) {
	workspaces := &VirtualWorkspaces{
		Type: func(client.Key) (*tenancyv1alpha1.WorkspaceType, error) { return nil, client.ErrIncomplete },
	}
	for _, mount := range Mounts() {
		w, _ := serve(within(t.Context(), mount, one), workspaces, "/", genericapirequest.RequestInfo{})
		require.Equal(t, http.StatusServiceUnavailable, w.Code, "%s", w.Body)
		require.Equal(t, "1", w.Header().Get("Retry-After"))
	}
}

// TestOwnerPermissionsAreLimitedToTheCluster: initializers and terminators that act as the owner have the owner's
// permissions only in this logical cluster.
func TestOwnerPermissionsAreLimitedToTheCluster(t *testing.T) {
	const owner = `{"username":"owner","groups":["team","system:authenticated"],"extra":{"authorization.kcp.io/warrant":["{\"user\":\"deputy\"}"]}}`
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey: owner},
	}}
	lc.Status.Phase = corev1alpha1.LogicalClusterPhaseInitializing
	lc.Status.Initializers = []corev1alpha1.LogicalClusterInitializer{"home:apps"}
	lc.Status.Terminators = []corev1alpha1.LogicalClusterTerminator{"home:apps"}
	var requested user.Info
	workspaces := &VirtualWorkspaces{
		Type: anyType, Find: finding(lc), Read: finding(lc),
		Bounds: func(authorizer.Authorizer) authorizer.Authorizer {
			return authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				requested = a.GetUser()
				return authorizer.DecisionAllow, "", nil
			})
		},
	}
	for _, mount := range Mounts() {
		if mount == request.TerminatingWorkspaces {
			lc.Status.Phase = corev1alpha1.LogicalClusterPhaseTerminating
		}
		ctx := within(genericapirequest.WithUser(t.Context(), controller), mount, one)
		_, reason, err := workspaces.Permits(ctx, authorizer.AttributesRecord{
			User: controller, Verb: "create", APIGroup: "apis.kcp.io", Resource: "apibindings", APIVersion: "v1alpha2", ResourceRequest: true,
		})
		require.NoError(t, err, reason)
		_, r := serve(ctx, workspaces, "/", genericapirequest.RequestInfo{
			IsResourceRequest: true, Verb: "create", APIGroup: "apis.kcp.io", Resource: "apibindings",
		})
		require.NotNil(t, r)
		sent, _ := genericapirequest.UserFrom(r.Context())

		for name, as := range map[string]user.Info{"authorized user": requested, "forwarded user": sent} {
			require.NotNil(t, as, "%s: %s", mount.Prefix, name)
			require.Equal(t, []string{"owner"}, namesOf(identity.In("one", as)), "%s: %s", mount.Prefix, name)
			require.Equal(t, []string{user.Anonymous}, namesOf(identity.In("home", as)), "%s: %s", mount.Prefix, name)
		}
	}
}

// TestWaitingTerminators: the terminators of a LogicalCluster are in its labels before it terminates.
func TestWaitingTerminators(t *testing.T) {
	for mount, phase := range map[*request.Mount]string{request.InitializingWorkspaces: "Initializing", request.TerminatingWorkspaces: "Terminating"} {
		ctx := within(t.Context(), mount, request.Cluster{Wildcard: true})
		_, r := serve(ctx, &VirtualWorkspaces{Type: anyType}, "/?labelSelector=a%3Db", genericapirequest.RequestInfo{
			IsResourceRequest: true, Verb: "list", APIGroup: "core.kcp.io", Resource: "logicalclusters",
		})
		require.NotNil(t, r)
		sent := r.URL.Query().Get("labelSelector")
		selector, err := labels.Parse(sent)
		require.NoError(t, err)
		key, value := kinds[mount].label("home:apps")
		waits := labels.Set{"a": "b", key: value, tenancyv1alpha1.WorkspacePhaseLabel: phase}
		require.True(t, selector.Matches(waits), sent)
		for missing := range waits {
			other := labels.Merge(waits, labels.Set{missing: "other"})
			require.False(t, selector.Matches(other), "%s: %v", sent, other)
		}
	}
}

// TestUnsupportedVerbs: unsupported requests for a LogicalCluster get 405, or 404 if it does not wait.
func TestUnsupportedVerbs(t *testing.T) {
	lc := &corev1alpha1.LogicalCluster{Status: corev1alpha1.LogicalClusterStatus{
		Phase: corev1alpha1.LogicalClusterPhaseTerminating, Terminators: []corev1alpha1.LogicalClusterTerminator{"home:apps"},
	}}
	find := func(_ context.Context, name logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
		if name == "one" {
			return lc, nil
		}
		return nil, nil //nolint:nilnil // there is none
	}
	workspaces := &VirtualWorkspaces{Type: anyType, Find: find, Read: find}
	for _, tc := range []struct {
		in                logicalcluster.Name
		verb, subresource string
		want              int
	}{
		{"one", "get", "", http.StatusOK},
		{"one", "get", "status", http.StatusOK},
		{"one", "patch", "status", http.StatusOK},
		{"one", "update", "status", http.StatusOK},
		{"one", "patch", "", http.StatusMethodNotAllowed},
		{"one", "update", "", http.StatusMethodNotAllowed},
		{"one", "create", "", http.StatusMethodNotAllowed},
		{"one", "delete", "", http.StatusMethodNotAllowed},
		{"one", "list", "", http.StatusMethodNotAllowed},
		{"one", "create", "status", http.StatusMethodNotAllowed},
		{"one", "get", "other", http.StatusNotFound},
		{"two", "get", "", http.StatusNotFound},
		{"two", "patch", "", http.StatusNotFound},
	} {
		ctx := within(t.Context(), request.TerminatingWorkspaces, request.Cluster{Name: tc.in})
		decision, reason, err := workspaces.Permits(ctx, authorizer.AttributesRecord{
			User: controller, Verb: tc.verb, APIGroup: "core.kcp.io", Resource: "logicalclusters", Subresource: tc.subresource, ResourceRequest: true,
		})
		require.NoError(t, err)
		require.Equal(t, authorizer.DecisionAllow, decision, "%v: %s", tc, reason)
		w, _ := serve(ctx, workspaces, "/", genericapirequest.RequestInfo{
			IsResourceRequest: true, Verb: tc.verb, APIGroup: "core.kcp.io", Resource: "logicalclusters", Subresource: tc.subresource, Name: "cluster",
		})
		require.Equal(t, tc.want, w.Code, "%v: %s", tc, w.Body)
	}
	all := within(t.Context(), request.TerminatingWorkspaces, request.Cluster{Wildcard: true})
	w, _ := serve(all, workspaces, "/", genericapirequest.RequestInfo{IsResourceRequest: true, Verb: "list", APIVersion: "v1", Resource: "configmaps"})
	require.Equal(t, http.StatusNotFound, w.Code, w.Body)
	require.Contains(t, w.Body.String(), "only waiting LogicalClusters are served")
}

func namesOf(all []user.Info) []string {
	var names []string
	for _, u := range all {
		names = append(names, u.GetName())
	}
	return names
}
