package shard

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/bindings"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/virtual/apiexport"
	"github.com/shardplane/shardplane/test/background"
)

// steps are the steps of a decision that an attacker can distinguish by their duration.
type steps struct {
	mu  sync.Mutex
	all []string
}

func (s *steps) add(step string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, step)
}

func (s *steps) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.all = nil }()
	return s.all
}

// otherShard denies SubjectAccessReviews, and rejects invalid logical clusters before authorization.
func otherShard(t *testing.T, name string, did *steps) *httptest.Server {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cluster, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, request.ClusterPath("")), "/")
		if !request.ValidClusterName(logicalcluster.Name(cluster)) {
			did.add("rejected by " + name)
			http.Error(w, "invalid", http.StatusBadRequest)
			return
		}
		did.add("denied by " + name)
		review := &authorizationv1.SubjectAccessReview{}
		_ = json.NewDecoder(r.Body).Decode(review)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	return server
}

// denyingShard is the shard "here", whose rules deny everything. The other shards are "there", which has the export e of
// the logical cluster provider, and others.
func denyingShard(t *testing.T, did *steps, others ...string) *installation {
	t.Helper()
	source, cache := clienttest.New(t, kinds.Scheme), clienttest.New(t, kinds.Scheme)
	clients, cached := clientsOf(t, source.ClientConfig()), clientsOf(t, cache.ClientConfig())
	for _, name := range append(others, "there") {
		source.Put(t, kinds.Shards.GroupVersionResource, &corev1alpha1.Shard{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: core.RootCluster.String()}},
			Spec:       corev1alpha1.ShardSpec{BaseURL: otherShard(t, name, did).URL},
		})
	}
	export := func(in *clienttest.Server, cluster string) {
		in.Put(t, kinds.APIExports.GroupVersionResource, &apisv1alpha2.APIExport{ObjectMeta: metav1.ObjectMeta{Name: "e", Annotations: map[string]string{
			logicalcluster.AnnotationKey: cluster, core.LogicalClusterPathAnnotationKey: "root:" + cluster, request.ShardAnnotation: "there",
		}}})
	}
	export(cache, "provider")
	export(source, "own")
	source.Put(t, kinds.LogicalClusters.GroupVersionResource, &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name: corev1alpha1.LogicalClusterName, Annotations: map[string]string{logicalcluster.AnnotationKey: "own", core.LogicalClusterPathAnnotationKey: "root:own"},
	}})

	shards := kinds.Shards.Informer(clients.Cluster(core.RootCluster.Path()), client.InformerOptions[*corev1alpha1.Shard]{})
	byPath := client.InformerOptions[*apisv1alpha2.APIExport]{Indexers: map[string]client.IndexFunc[*apisv1alpha2.APIExport]{apis.PathIndex: apis.IndexByPath}}
	informers := &controllers.Informers{
		LogicalClusters: kinds.LogicalClusters.Informer(clients.Wildcard(), client.InformerOptions[*corev1alpha1.LogicalCluster]{}),
		Workspaces:      kinds.Workspaces.Informer(clients.Wildcard(), client.InformerOptions[*tenancyv1alpha1.Workspace]{}),
		Shards:          shards,
	}
	s := &installation{informers: informers}
	s.local = newLocal("here", clients, informers)
	informers.APIExports = replicas.NewDual(kinds.APIExports.Informer(clients.Wildcard(), byPath),
		kinds.APIExports.Informer(cached.Shard(request.Wildcard).Wildcard(), replicas.OfOthers("here", byPath)), replicas.DualOptions{Owns: s.local.has})
	informers.RBAC.ClusterRoles = dualOf(t, kinds.ClusterRoles, all, replicas.DualOptions{})
	informers.RBAC.ClusterRoleBindings = dualOf(t, kinds.ClusterRoleBindings, all, replicas.DualOptions{})
	s.peers = peers.NewPeerBook(peers.Config{Self: "here", Local: clients, Shards: shards, Access: &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}})
	s.reviews = newReviews(authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		did.add("denied here")
		return authorizer.DecisionNoOpinion, "", nil
	}), s.local.has, s.peers)

	group := &client.Group{}
	group.Add(shards, informers.LogicalClusters, informers.Workspaces, informers.APIExports)
	background.Run(t.Context(), t, group.Run)
	background.Run(t.Context(), t, s.peers.Run)
	require.Eventually(t, func() bool {
		known, complete := s.peers.All()
		return complete && len(known) == len(others)+2 && informers.APIExports.Complete() == nil && s.local.has("own")
	}, 10*time.Second, time.Millisecond)
	return s
}

// TestDenialsDoNotDiscloseExports: a denied user causes the same steps whether an export exists or not.
func TestDenialsDoNotDiscloseExports(t *testing.T) {
	did := &steps{}
	s := denyingShard(t, did)
	deny := func(s *installation, as, path, export string) []string {
		provider, _, err := s.exportAt(logicalcluster.NewPath(path), export)
		require.NoError(t, err)
		if provider == "" {
			provider = "nowhere:-"
		}
		for range 2 {
			may, err := s.mayBind(t.Context(), &user.DefaultInfo{Name: as}, provider, export)
			require.NoError(t, err)
			require.False(t, may)
		}
		return did.take()
	}
	exists := deny(s, "bob", "root:provider", "e")
	require.Equal(t, []string{"denied here", "denied by there", "denied here"}, exists)
	for name, ref := range map[string][2]string{
		"missing export":                              {"root:provider", "none"},
		"missing path":                                {"root:nowhere", "e"},
		"name of the logical cluster":                 {"provider", "e"},
		"missing export, name of the logical cluster": {"provider", "neither"},
		"export of this shard":                        {"root:own", "e"},
		"missing export of this shard":                {"root:own", "none"},
	} {
		require.Equal(t, exists, deny(s, name, ref[0], ref[1]), name)
	}

	// The selected shard must not depend on the export either.
	several := denyingShard(t, did, "another", "one", "two")
	for _, export := range []string{"e", "a", "b", "c", "d", "f"} {
		require.Equal(t, exists, deny(several, "bob", "root:provider", export), export)
	}
}

// TestUnreachableShardDisclosesNoType: an unreachable shard permits nothing, and causes no error by which a
// type of that shard differs from one that does not exist.
func TestUnreachableShardDisclosesNoType(t *testing.T) {
	did := &steps{}
	s := denyingShard(t, did)
	wt := &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: "t", Annotations: map[string]string{logicalcluster.AnnotationKey: "other", request.ShardAnnotation: "unknown"}}}
	for _, verb := range []string{"use", "get"} {
		may, err := s.mayUseType(t.Context(), &user.DefaultInfo{Name: "bob"}, verb, wt)
		require.NoError(t, err)
		require.False(t, may)
	}
	require.Equal(t, []string{"denied here", "denied here"}, did.take())
}

// TestAccessEnds: a request is not served if its binding ends after the authorization, e.g. while it waits for a seat.
func TestAccessEnds(t *testing.T) {
	server, export, binding := clienttest.New(t, kinds.Scheme), &apisv1alpha2.APIExport{}, &apisv1alpha2.APIBinding{}
	export.Spec.Resources = []apisv1alpha2.ResourceSchema{{Group: "g.io", Name: "things"}}
	require.NoError(t, json.Unmarshal([]byte(`{"metadata":{"name":"b","annotations":{"kcp.io/cluster":"consumer"}},
		"spec":{"reference":{"export":{"name":"e"}}},"status":{"apiExportClusterName":"provider","boundResources":[
		{"group":"g.io","resource":"things","schema":{"UID":"u","identityHash":"h"}}]}}`), binding))
	server.Put(t, kinds.APIBindings.GroupVersionResource, binding)
	index, err := bindings.NewBindingIndex(bindings.Config{
		Local: clientsOf(t, server.ClientConfig()), WaitForExports: func(context.Context) error { return nil },
		Export:         func(client.Key) (*apisv1alpha2.APIExport, error) { return export, nil },
		SystemIdentity: (&installation{}).knownSystemIdentity,
	})
	require.NoError(t, err)
	background.Run(t.Context(), t, index.Informer().Run)
	v := &apiexport.VirtualWorkspaces{Bindings: index, Inactive: func(logicalcluster.Name) bool { return false }}
	in := &request.VirtualWorkspace{Name: "e", In: request.Cluster{Name: "consumer"}}
	scope := request.Scope{Mount: request.APIExports, Cluster: request.Cluster{Name: "provider"}, VirtualWorkspace: in}
	r := (&http.Request{}).WithContext(request.WithScope(t.Context(), scope))
	attributes := authorizer.AttributesRecord{Verb: "list", APIGroup: "g.io", Resource: "things", ResourceRequest: true}
	decision, reason, _ := v.Permits(r.Context(), attributes)
	require.Equal(t, authorizer.DecisionAllow, decision, reason)
	server.Delete(t, kinds.APIBindings.GroupVersionResource, "", "consumer", "", "b")
	require.Eventually(t, func() bool { return !v.Shows(r.Context()) }, time.Minute, time.Millisecond)
	info := &genericapirequest.RequestInfo{IsResourceRequest: true, Verb: "list", APIGroup: "g.io", Resource: "things"}
	require.True(t, apierrors.IsForbidden(v.Serve(httptest.NewRecorder(), r, info, http.NotFoundHandler())))
}
