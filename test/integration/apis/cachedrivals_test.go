package apis

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// meeting is a webhook that admits cached resources two at a time: when the second one is there, what else judges
// either has found no other.
func meeting(t *testing.T) *httptest.Server {
	t.Helper()
	second := make(chan struct{})
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if json.NewDecoder(r.Body).Decode(&review) != nil {
			http.Error(w, "not a review", http.StatusBadRequest)
			return
		}
		asked := *review.Request.DryRun
		if !asked {
			select {
			case second <- struct{}{}:
			case <-second:
			case <-r.Context().Done():
			}
		}
		_, _ = fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":%t,"status":{"message":"it is called"}}}`, review.Request.UID, !asked)
	}))
	t.Cleanup(s.Close)
	return s
}

// meet has cached resources be made two at the same moment from now on.
func meetRivals(k kit.WorkspaceClient) {
	k.T.Helper()
	hook := meeting(k.T)
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}))
	k.Create(registration+"validatingwebhookconfigurations", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":"meeting"},"webhooks":[{"name":"a.example.org","clientConfig":{"url":%q,"caBundle":%q},"sideEffects":"None","timeoutSeconds":30,"admissionReviewVersions":["v1"],"rules":[{"operations":["CREATE"],"apiGroups":["cache.kcp.io"],"apiVersions":["*"],"resources":["*"]}]}]}`, hook.URL, ca)
	k.Eventually("the webhook is called", func() bool {
		_, said := k.TryDo(http.MethodPost, kit.CachePath+"cachedresources?dryRun=All", rival{"CachedResource", "x"}.body("others"))
		return strings.Contains(said, "it is called")
	})
}

// rival is one of several cached resources for the same resource.
type rival struct{ kind, name string }

func (r rival) body(plural string) string {
	return fmt.Sprintf(`{"apiVersion":"cache.kcp.io/v1alpha1","kind":%q,"metadata":{"name":%q},"spec":{"group":"shared.example.org","version":"v1","resource":%q}}`, r.kind, r.name, plural)
}

// race makes two cached resources for a resource at the same moment, and returns the one that has it replicated
// and the one that says that it has not.
func raceRivals(k kit.WorkspaceClient, plural string, rivals [2]rival) (winner, loser rival) {
	k.T.Helper()
	k.DefineClusterScoped(plural, "Of"+plural)
	k.Create("/apis/shared.example.org/v1/"+plural, `{"apiVersion":"shared.example.org/v1","kind":%q,"metadata":{"name":"large"}}`, "Of"+plural)
	var all sync.WaitGroup
	var codes [2]int
	for i, r := range rivals {
		all.Go(func() {
			codes[i], _, _ = kit.Send(k.T.Context(), k.Config, kit.Request{
				Method: http.MethodPost, Path: "/clusters/" + k.ClusterName + kit.CachePath + kit.CachedResourcePlural[r.kind], Body: r.body(plural), Header: http.Header{"Content-Type": {"application/json"}},
			})
		})
	}
	all.Wait()
	require.Equal(k.T, [2]int{http.StatusCreated, http.StatusCreated}, codes, "each is made before the other is there")
	says := func(r rival) string {
		return kit.Condition(k.Get(kit.CachePath+kit.CachedResourcePlural[r.kind]+"/"+r.name), "ReplicationStarted")
	}
	k.Eventually("one has the resource replicated, and the other says so", func() bool {
		winner, loser = rivals[0], rivals[1]
		if says(winner) == "False AlreadyCached" {
			winner, loser = loser, winner
		}
		return says(winner) == "True <nil>" && says(loser) == "False AlreadyCached"
	})
	k.UntilCached(winner.kind, winner.name, 1, 1)
	return winner, loser
}

// TestCachedResourceRivals: of two cached resources for the same resource that are made at the same moment, so that
// admission finds neither, one has the resource replicated. The other says so, and takes nothing away when it goes;
// when the first one goes, it goes on.
func TestCachedResourceRivals(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	for name, rivals := range map[string][2]rival{
		"two names": {{"CachedResource", "a"}, {"CachedResource", "b"}},
		// These have one secret, and so the same replicas.
		"two kinds": {{"CachedResource", "a"}, {"ClusterCachedResource", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := kit.NewWorkspaceClientOn(e, "rivals-"+name[4:], 1).ForTest(t)
			meetRivals(k)
			replica := func(plural string, of rival) unstructured.Unstructured {
				t.Helper()
				hash, _ := kit.Field(k.Get(kit.CachePath+kit.CachedResourcePlural[of.kind]+"/"+of.name), "status", "identityHash").(string)
				return untilReplicas(k.Env, "", plural+":"+hash, "large")[0]
			}
			plural := "loser" + name[4:]
			winner, loser := raceRivals(k, plural, rivals)
			before := replica(plural, winner)
			at := kit.CachePath + kit.CachedResourcePlural[loser.kind]
			require.Contains(t, fmt.Sprint(k.Get(at + "/" + loser.name).Object["status"]), "is cached already, by the "+kit.CachedResourcePlural[winner.kind]+" "+winner.name+": delete this one")
			require.Nil(t, kit.Field(k.Get(at+"/"+loser.name), "status", "resourceCounts"))
			k.Do(http.StatusOK, http.MethodDelete, at+"/"+loser.name, "")
			k.UntilGone(at, loser.name)
			require.Equal(t, before.GetResourceVersion(), replicaOf(k, plural, &before).GetResourceVersion(), "it was written or deleted since")
			k.UntilCachedCondition(winner.kind, winner.name, "ReplicationStarted", "True", "")
			k.Do(http.StatusOK, http.MethodDelete, kit.CachePath+kit.CachedResourcePlural[winner.kind]+"/"+winner.name, "")
			k.UntilGone(kit.CachePath+kit.CachedResourcePlural[winner.kind], winner.name)

			plural = "winner" + name[4:]
			winner, loser = raceRivals(k, plural, rivals)
			k.Do(http.StatusOK, http.MethodDelete, kit.CachePath+kit.CachedResourcePlural[winner.kind]+"/"+winner.name, "")
			k.UntilCached(loser.kind, loser.name, 1, 1)
			k.UntilCachedCondition(loser.kind, loser.name, "ReplicationStarted", "True", "")
			replica(plural, loser)
		})
	}
}

// replicaOf returns a replica as it is now in its logical cluster.
func replicaOf(k kit.WorkspaceClient, plural string, of *unstructured.Unstructured) *unstructured.Unstructured {
	k.T.Helper()
	all, err := k.ReplicasOf(k.ClusterName, plural)
	require.NoError(k.T, err)
	require.Equal(k.T, []string{of.GetName()}, kit.Names(all))
	return &all[0]
}
