package integration

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
func (k apiKinds) meet() {
	k.t.Helper()
	hook := meeting(k.t)
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw}))
	k.create(registration+"validatingwebhookconfigurations", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":"meeting"},"webhooks":[{"name":"a.example.org","clientConfig":{"url":%q,"caBundle":%q},"sideEffects":"None","timeoutSeconds":30,"admissionReviewVersions":["v1"],"rules":[{"operations":["CREATE"],"apiGroups":["cache.kcp.io"],"apiVersions":["*"],"resources":["*"]}]}]}`, hook.URL, ca)
	k.eventually("the webhook is called", func() bool {
		_, said := k.status(http.MethodPost, cacheV1+"cachedresources?dryRun=All", rival{"CachedResource", "x"}.body("others"))
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
func (k apiKinds) race(plural string, rivals [2]rival) (winner, loser rival) {
	k.t.Helper()
	k.defineCluster(plural, "Of"+plural)
	k.create("/apis/shared.example.org/v1/"+plural, `{"apiVersion":"shared.example.org/v1","kind":%q,"metadata":{"name":"large"}}`, "Of"+plural)
	var all sync.WaitGroup
	var codes [2]int
	for i, r := range rivals {
		all.Go(func() {
			codes[i], _, _ = send(k.t.Context(), k.config, call{
				method: http.MethodPost, path: "/clusters/" + k.cluster + cacheV1 + resourceOf[r.kind], body: r.body(plural), header: http.Header{"Content-Type": {"application/json"}},
			})
		})
	}
	all.Wait()
	require.Equal(k.t, [2]int{http.StatusCreated, http.StatusCreated}, codes, "each is made before the other is there")
	says := func(r rival) string {
		return condition(k.get(cacheV1+resourceOf[r.kind]+"/"+r.name), "ReplicationStarted")
	}
	k.eventually("one has the resource replicated, and the other says so", func() bool {
		winner, loser = rivals[0], rivals[1]
		if says(winner) == "False AlreadyCached" {
			winner, loser = loser, winner
		}
		return says(winner) == "True <nil>" && says(loser) == "False AlreadyCached"
	})
	k.untilCached(winner.kind, winner.name, 1, 1)
	return winner, loser
}

// TestCachedResourceRivals: of two cached resources for the same resource that are made at the same moment, so that
// admission finds neither, one has the resource replicated. The other says so, and takes nothing away when it goes;
// when the first one goes, it goes on.
func TestCachedResourceRivals(t *testing.T) {
	e := newEnv(t, two.Get(t))
	for name, rivals := range map[string][2]rival{
		"two names": {{"CachedResource", "a"}, {"CachedResource", "b"}},
		// These have one secret, and so the same replicas.
		"two kinds": {{"CachedResource", "a"}, {"ClusterCachedResource", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newAPIKindsOn(e, "rivals-"+name[4:], 1).in(t)
			k.meet()
			replica := func(plural string, of rival) unstructured.Unstructured {
				t.Helper()
				hash, _ := field(k.get(cacheV1+resourceOf[of.kind]+"/"+of.name), "status", "identityHash").(string)
				return k.untilReplicas("", plural+":"+hash, "large")[0]
			}
			plural := "loser" + name[4:]
			winner, loser := k.race(plural, rivals)
			before := replica(plural, winner)
			at := cacheV1 + resourceOf[loser.kind]
			require.Contains(t, fmt.Sprint(k.get(at + "/" + loser.name).Object["status"]), "is cached already, by the "+resourceOf[winner.kind]+" "+winner.name+": delete this one")
			require.Nil(t, field(k.get(at+"/"+loser.name), "status", "resourceCounts"))
			k.ask(http.StatusOK, http.MethodDelete, at+"/"+loser.name, "")
			k.gone(at, loser.name)
			require.Equal(t, before.GetResourceVersion(), replicaOf(k, plural, &before).GetResourceVersion(), "it was written or deleted since")
			k.untilSays(winner.kind, winner.name, "ReplicationStarted", "True", "")
			k.ask(http.StatusOK, http.MethodDelete, cacheV1+resourceOf[winner.kind]+"/"+winner.name, "")
			k.gone(cacheV1+resourceOf[winner.kind], winner.name)

			plural = "winner" + name[4:]
			winner, loser = k.race(plural, rivals)
			k.ask(http.StatusOK, http.MethodDelete, cacheV1+resourceOf[winner.kind]+"/"+winner.name, "")
			k.untilCached(loser.kind, loser.name, 1, 1)
			k.untilSays(loser.kind, loser.name, "ReplicationStarted", "True", "")
			replica(plural, loser)
		})
	}
}

// replicaOf returns a replica as it is now in its logical cluster.
func replicaOf(k apiKinds, plural string, of *unstructured.Unstructured) *unstructured.Unstructured {
	k.t.Helper()
	all, err := k.replicasOf(k.cluster, plural)
	require.NoError(k.t, err)
	require.Equal(k.t, []string{of.GetName()}, names(all))
	return &all[0]
}
