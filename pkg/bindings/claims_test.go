package bindings

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
)

var (
	secrets    = schema.GroupResource{Resource: "secrets"}
	coreEvents = schema.GroupResource{Resource: "events"}
	newEvents  = schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	ofProvider = client.Key{Cluster: "provider", Name: "e"}
)

func claimOn(resource schema.GroupResource, identity string, verbs ...string) apisv1alpha2.PermissionClaim {
	return apisv1alpha2.PermissionClaim{
		GroupResource: apisv1alpha2.GroupResource{Group: resource.Group, Resource: resource.Resource}, IdentityHash: identity, Verbs: verbs,
	}
}

// applied returns a claim in effect, for objects with a label, or for all.
func applied(claim apisv1alpha2.PermissionClaim, value string) apisv1alpha2.ScopedPermissionClaim {
	s := apisv1alpha2.PermissionClaimSelector{MatchAll: value == ""}
	if value != "" {
		s.MatchLabels = map[string]string{"value": value}
	}
	return apisv1alpha2.ScopedPermissionClaim{PermissionClaim: claim, Selector: s}
}

// accepting returns a binding to the export ofProvider, with claims in effect.
func accepting(cluster, name string, claims ...apisv1alpha2.ScopedPermissionClaim) *apisv1alpha2.APIBinding {
	b := bindingOf(cluster, name)
	b.Labels = map[string]string{apis.ExportLabel: apis.ExportLabelValue("provider", "e")}
	b.Status.AppliedPermissionClaims = claims
	return b
}

// claiming creates the export ofProvider with claims.
func (w *shard) claiming(claims ...apisv1alpha2.PermissionClaim) *apisv1alpha2.APIExport {
	export := &apisv1alpha2.APIExport{ObjectMeta: metav1.ObjectMeta{Name: "e"}}
	export.Spec.PermissionClaims = claims
	w.exports[ofProvider] = export
	return export
}

// TestReach: a provider can access the objects that its export offers or claims, if bindings allow it.
func TestReach(t *testing.T) {
	w := newShard(t).run()
	w.schema("one", widgets, "size", 1)
	b := accepting("a", "x", applied(claimOn(secrets, "", "get", "list"), "mine"),
		applied(claimOn(coreEvents, "", "*"), ""), applied(claimOn(gadgets, "other", "get"), ""))
	b.Status.BoundResources = []apisv1alpha2.BoundAPIResource{boundTo(widgets, "one", "h")}
	w.put(b)
	reach := func(in request.Cluster, resource schema.GroupResource, verb string) *Reach {
		r, err := w.Reach(t.Context(), ofProvider, in, resource, verb)
		require.NoError(t, err)
		return r
	}
	require.Nil(t, reach(in("a"), widgets, "get"), "no access without an export")
	export := w.claiming(claimOn(secrets, "", "get", "list", "watch"), claimOn(coreEvents, "", "*"),
		claimOn(gadgets, "other", "*"), claimOn(widgets, "theirs", "*"))
	export.Spec.Resources = []apisv1alpha2.ResourceSchema{{Group: widgets.Group, Name: widgets.Resource, Schema: "one"}}
	require.Nil(t, reach(wildcard, widgets, "list"), "no access without an identity")
	export.Status.IdentityHash = "h"

	for _, cluster := range []request.Cluster{in("a"), wildcard} {
		own := reach(cluster, widgets, "list")
		require.True(t, own.Own(), "offered resources must take precedence over claims")
		require.Equal(t, "h", own.Identity)
		claimed := reach(cluster, secrets, "list")
		require.False(t, claimed.Own())
		require.Empty(t, claimed.Identity)
		require.True(t, claimed.Set.Selection("a").MatchesObject("", labels.Set{"value": "mine"}))
		require.False(t, claimed.Set.Selection("a").MatchesObject("", labels.Set{"value": "other"}))
		require.False(t, claimed.Set.Selection("b").Held())
		require.Equal(t, "other", reach(cluster, gadgets, "get").Identity)
		for _, resource := range []schema.GroupResource{coreEvents, newEvents} {
			events := reach(cluster, resource, "watch")
			require.Equal(t, coreEvents, events.Set.Resource(), "events must be selected in the group in which they are stored")
			require.Equal(t, coreEvents, events.Resource)
			require.True(t, events.Set.Selection("a").Held())
		}
		require.Nil(t, reach(cluster, secrets, "delete"), "no access with a verb that the export does not claim")
		require.Nil(t, reach(cluster, schema.GroupResource{Resource: "configmaps"}, "get"))
		require.Nil(t, reach(cluster, bindingsResource, "update"))
		require.True(t, reach(cluster, bindingsResource, "list").Set.Selection("a").MatchesObject("", labels.Set(b.Labels)))
		require.False(t, reach(cluster, bindingsResource, "list").Set.Selection("a").MatchesObject("", nil))
	}
	require.Nil(t, reach(in("a"), secrets, "watch"), "no access with a verb that the binding does not accept")
	require.False(t, reach(wildcard, secrets, "watch").Set.Selection("a").Held())
	for _, resource := range []schema.GroupResource{widgets, secrets, bindingsResource} {
		require.Nil(t, reach(in("b"), resource, "get"))
		require.Nil(t, reach(in("provider"), resource, "get"))
	}
	export.Spec.Resources[0].Storage.Virtual = &apisv1alpha2.ResourceSchemaStorageVirtual{}
	require.Equal(t, "theirs", reach(wildcard, widgets, "get").Identity, "resources in virtual storage must be accessed by the claim")
}

// TestReachOfSystemResources: system resources are claimed with the identity of root's export, and stored without one.
func TestReachOfSystemResources(t *testing.T) {
	w := newShard(t).run()
	known := ""
	notYet := errors.New("not known yet")
	w.config.SystemIdentity = func(resource schema.GroupResource) (string, error) {
		if resource == gadgets && known == "" {
			return "", notYet
		}
		return known, nil
	}
	w.config.System = func(schema.GroupResource) *definitions.Definition { return &definitions.Definition{} }
	for _, identity := range []string{"root's", "another"} {
		w.put(accepting(identity[:1], "x", applied(claimOn(gadgets, identity, "*"), "")))
	}
	for _, now := range []struct{ known, claimed, under, labelled string }{
		{"", "root's", "", ""}, {"root's", "root's", "", "r"}, {"root's", "another", "another", "r"},
	} {
		known = now.known
		w.claiming(claimOn(gadgets, now.claimed, "*"))
		reach, err := w.Reach(t.Context(), ofProvider, wildcard, gadgets, "list")
		if known == "" {
			require.ErrorIs(t, err, notYet, "access must be an error while the identity is unknown")
		} else {
			require.NoError(t, err)
			require.Equal(t, now.claimed, reach.Identity, "the policies of the claimed identity must apply")
			require.Equal(t, now.under, reach.Set.Identity(), now)
			require.True(t, reach.Set.Selection(logicalcluster.Name(now.claimed[:1])).Held())
		}
		for _, cluster := range []string{"r", "a"} {
			require.Equal(t, cluster == now.labelled, len(w.ClaimLabels(logicalcluster.Name(cluster), gadgets, "")) == 1, now)
		}
	}
}

// TestClaimsFollow: sets and labels agree with the bindings, no matter when a set was created.
func TestClaimsFollow(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newShard(t).run()
	w.claiming(claimOn(secrets, "", "*"), claimOn(gadgets, "h", "*"))
	verbs := []string{"list", "watch", "get"}
	identities := []identified{{secrets, ""}, {gadgets, "h"}, {bindingsResource, ""}}
	clusters := []string{"a", "b", "c"}
	have := map[string]*apisv1alpha2.APIBinding{}

	for range 300 {
		cluster, name := clusters[random.IntN(len(clusters))], "x"
		if random.IntN(3) == 0 {
			name = "y"
		}
		key := cluster + "/" + name
		if have[key] != nil && random.IntN(3) == 0 {
			w.remove(cluster, name)
			delete(have, key)
		} else {
			b := accepting(cluster, name)
			for _, of := range identities[:2] {
				if random.IntN(3) > 0 {
					claim := claimOn(of.resource, of.identity, verbs[random.IntN(2)], verbs[random.IntN(3)])
					b.Status.AppliedPermissionClaims = append(b.Status.AppliedPermissionClaims, applied(claim, []string{"", "p", "q"}[random.IntN(3)]))
				}
			}
			w.put(b)
			have[key] = b
		}
		of := identities[random.IntN(len(identities))]
		target := []request.Cluster{wildcard, in(cluster)}[random.IntN(2)]
		_, err := w.Reach(t.Context(), ofProvider, target, of.resource, verbs[random.IntN(len(verbs))])
		require.NoError(t, err)
		require.Eventually(t, func() bool { return w.mismatch(t, have, clusters) == "" }, deadline, tick, "%s", w.mismatch(t, have, clusters))
	}
}

// mismatch returns differences between the bindings and the sets and labels.
func (w *shard) mismatch(t *testing.T, have map[string]*apisv1alpha2.APIBinding, clusters []string) string {
	w.claimed.mu.Lock()
	defer w.claimed.mu.Unlock()
	for _, cluster := range clusters {
		var all []*apisv1alpha2.APIBinding
		for _, name := range []string{"x", "y"} {
			if b := have[cluster+"/"+name]; b != nil {
				all = append(all, b)
			}
		}
		for key, set := range w.claimed.sets[ofProvider] {
			for _, value := range []string{"", "p", "q"} {
				l, want := labels.Set{"value": value}, lets(all, key, value)
				if key.resource == bindingsResource {
					l, want = labels.Set{apis.ExportLabel: apis.ExportLabelValue("provider", "e")}, len(all) > 0
				}
				if got := set.Selection(logicalcluster.Name(cluster)).MatchesObject("", l); got != want {
					return fmt.Sprintf("%v of %s with %q: selected %t", key, cluster, value, got)
				}
			}
		}
		for _, of := range []identified{{secrets, ""}, {gadgets, "h"}} {
			claims := 0
			for _, b := range all {
				for _, c := range b.Status.AppliedPermissionClaims {
					if c.Resource == of.resource.Resource {
						claims++
					}
				}
			}
			shown := w.ClaimLabels(logicalcluster.Name(cluster), of.resource, of.identity)
			if len(shown) != claims {
				return fmt.Sprintf("labels of %v in %s: got %d, want %d", of, cluster, len(shown), claims)
			}
			require.False(t, slices.ContainsFunc(shown, func(l storage.ClaimLabel) bool { return l.Value == "" }))
		}
	}
	return ""
}

// lets reports whether the first binding with the verb selects objects with a value.
func lets(all []*apisv1alpha2.APIBinding, key setKey, value string) bool {
	for _, b := range all {
		for _, c := range b.Status.AppliedPermissionClaims {
			if c.Resource == key.resource.Resource && c.IdentityHash == key.identity && slices.Contains(c.Verbs, key.verb) {
				return c.Selector.MatchAll || c.Selector.MatchLabels["value"] == value
			}
		}
	}
	return false
}
