package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/test/harness"
)

const (
	garbageCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"gadgets.garbage.example.org"},"spec":{"group":"garbage.example.org","scope":"Namespaced","names":{"plural":"gadgets","singular":"gadget","kind":"Gadget","listKind":"GadgetList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`
	crds       = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	gadgets    = "/apis/garbage.example.org/v1/namespaces/default/gadgets"
)

// owned makes an object of a path with references to owners, each "<apiVersion> <kind> <name> <uid>",
// which blocks them if it ends with " blocks".
func (k apiKinds) owned(path, name string, owners ...string) *unstructured.Unstructured {
	k.t.Helper()
	var references []string
	for _, owner := range owners {
		of := strings.Fields(owner)
		references = append(references, fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q,"blockOwnerDeletion":%t}`, of[0], of[1], of[2], of[3], len(of) > 4))
	}
	kind := ""
	switch path {
	case gadgets:
		kind = `"apiVersion":"garbage.example.org/v1","kind":"Gadget",`
	case widgets:
		kind = `"apiVersion":"example.org/v1","kind":"Widget",`
	}
	return k.create(path, `{%s"metadata":{"name":%q,"ownerReferences":[%s]}}`, kind, name, strings.Join(references, ","))
}

func owner(of *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s %s %s", of.GetAPIVersion(), of.GetKind(), of.GetName(), of.GetUID())
}

func (k apiKinds) gone(path, name string) {
	k.t.Helper()
	k.eventually(path+"/"+name+" is gone", func() bool {
		code, _ := k.status(http.MethodGet, path+"/"+name, "")
		return code == http.StatusNotFound
	})
}

func (k apiKinds) remove(path, name, policy string) {
	k.t.Helper()
	code, says := k.status(http.MethodDelete, path+"/"+name, fmt.Sprintf(`{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":%q}`, policy))
	require.Equal(k.t, http.StatusOK, code, says)
}

// TestGarbageCollection: objects go with their owners as in Kubernetes, in each logical cluster
// for itself, whatever kinds they are of.
func TestGarbageCollection(t *testing.T) {
	e := start(t, harness.Options{DevTokens: true})
	provider, k, other := newAPIKinds(e, "garbage-provider"), newAPIKinds(e, "garbage"), newAPIKinds(e, "garbage-other")
	provider.export("widgets", provider.schema("v1", "widgets", "size"))
	for _, in := range []apiKinds{k, other} {
		in.create(crds, garbageCRD)
		in.bind("widgets", provider, "widgets")
		in.until("widgets", "Ready", "True <nil>")
	}
	t.Run("background", func(t *testing.T) { testBackground(t, k.in(t), other.in(t)) })
	t.Run("foreground", func(t *testing.T) { testForeground(t, k.in(t)) })
	t.Run("orphan", func(t *testing.T) { testOrphan(t, k.in(t)) })
	t.Run("wrong references", func(t *testing.T) { testWrongReferences(t, k.in(t)) })
	t.Run("kinds that nobody serves", func(t *testing.T) { testUnservedOwners(t, k.in(t)) })
	t.Run("webhooks and policies", func(t *testing.T) { testJudgedCollection(t, k.in(t)) })
	t.Run("owners of all kinds", func(t *testing.T) { testOwnersOfAllKinds(t, k.in(t)) })
	t.Run("kinds that go and come back", func(t *testing.T) { testKindsThatGo(t, k.in(t), provider.in(t)) })

	// Of what nobody has asked for since the start, the collector knows all the same.
	a := k.owned(configMaps, "restart")
	g := k.owned(gadgets, "restart", owner(a))
	k.owned(widgets, "restart", owner(g))
	shard := e.Component("root")
	shard.RestartWith("--enable-garbage-collector=false")
	withoutCollector(k)
	shard.RestartWith()
	k.remove(configMaps, "restart", "Background")
	k.gone(widgets, "restart")

	// What nobody has collected meanwhile is.
	k.gone(configMaps, "probe-off")
	k.gone(configMaps, "orphan-off")
	for _, path := range []string{configMaps, gadgets, widgets} {
		k.gone(path, "below-off")
		k.gone(path, "waits-off")
	}
}

// withoutCollector holds what a server does on which none runs: nothing is collected, a deletion asks
// nobody to do anything with dependents, and finalizers that ask for it are like any other.
func withoutCollector(k apiKinds) {
	k.t.Helper()
	k.eventually("the bound kind is served", func() bool {
		code, _ := k.status(http.MethodGet, widgets, "")
		return code == http.StatusOK
	})
	for _, path := range []string{configMaps, gadgets, widgets} {
		for _, policy := range []string{"Background", "Foreground", "Orphan"} {
			a := k.owned(path, "off")
			if policy == "Background" {
				k.owned(path, "below-off", owner(a)+" blocks")
			}
			k.remove(path, "off", policy)
			code, says := k.status(http.MethodGet, path+"/off", "")
			require.Equal(k.t, http.StatusNotFound, code, "%s, %s: %s", path, policy, says)
		}
		k.owned(path, "waits-off")
		k.ask(http.StatusOK, http.MethodPatch, path+"/waits-off", `{"metadata":{"finalizers":["foregroundDeletion"]}}`)
		k.remove(path, "waits-off", "Background")
		waits := k.get(path + "/waits-off")
		require.NotNil(k.t, waits.GetDeletionTimestamp())
		require.Equal(k.t, []string{"foregroundDeletion"}, waits.GetFinalizers())
	}
	k.owned(configMaps, "orphan-off")
	k.ask(http.StatusOK, http.MethodPatch, configMaps+"/orphan-off", `{"metadata":{"finalizers":["orphan"]}}`)
	k.remove(configMaps, "orphan-off", "Foreground")
	require.Equal(k.t, []string{"orphan"}, k.get(configMaps+"/orphan-off").GetFinalizers())
	k.owned(configMaps, "probe-off", "v1 ConfigMap absent none")
	for _, path := range []string{configMaps + "/probe-off", configMaps + "/below-off", gadgets + "/below-off", widgets + "/below-off"} {
		require.Nil(k.t, k.get(path).GetDeletionTimestamp(), path)
	}
}

// testOwnersOfAllKinds: what owns may be of the system's own kinds, cluster-scoped, a definition or
// bound.
func testOwnersOfAllKinds(t *testing.T, k apiKinds) {
	late := strings.NewReplacer("garbage.example.org", "owner.example.org", "gadget", "owner", "Gadget", "Owner").Replace(garbageCRD)
	for path, body := range map[string]string{
		"/apis/tenancy.kcp.io/v1alpha1/workspacetypes": `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"owner"}}`,
		apisV2 + "apiexports":                          `{"metadata":{"name":"owner"},"spec":{}}`,
		rbacPath + "clusterroles":                      `{"metadata":{"name":"owner"}}`,
		"/api/v1/namespaces":                           `{"metadata":{"name":"owner"}}`,
		crds:                                           late,
		widgets:                                        `{"apiVersion":"example.org/v1","kind":"Widget","metadata":{"name":"owner"}}`,
	} {
		a := k.create(path, "%s", body)
		name := strings.ToLower("of-" + a.GetKind())
		k.owned(configMaps, name, owner(a))
		blocks := k.owned(configMaps, name+"-blocks", owner(a)+" blocks")
		require.Nil(t, k.get(configMaps+"/"+blocks.GetName()).GetDeletionTimestamp())
		k.remove(path, a.GetName(), "Foreground")
		k.gone(configMaps, name+"-blocks")
		k.gone(path, a.GetName())
		k.gone(configMaps, name)
	}
}

// testKindsThatGo: definitions and bindings that go take their objects along, and these what they
// own. What refers to a kind, or a version of one, that is not served is judged when it is.
func testKindsThatGo(t *testing.T, k, provider apiKinds) {
	const comes = "/apis/comes.example.org/v1/namespaces/default/comes"
	definition := strings.NewReplacer("garbage.example.org", "comes.example.org", "gadget", "come", "Gadget", "Come").Replace(garbageCRD)
	dependents := func(of *unstructured.Unstructured) (names []string) {
		for n := range 10 {
			name := fmt.Sprintf("of-%s-%d", of.GetName(), n)
			k.owned(configMaps, name, owner(of))
			names = append(names, name)
		}
		return names
	}
	instance := func() *unstructured.Unstructured {
		k.create(crds, "%s", definition)
		k.eventually("it is served", func() bool {
			code, _ := k.status(http.MethodGet, comes, "")
			return code == http.StatusOK
		})
		return k.create(comes, `{"apiVersion":"comes.example.org/v1","kind":"Come","metadata":{"name":"here"}}`)
	}
	first := instance()
	names := dependents(first)
	k.remove(crds, "comes.comes.example.org", "Background")
	for _, name := range names {
		k.gone(configMaps, name)
	}
	k.gone(crds, "comes.comes.example.org")
	k.eventually("it is not served any more", func() bool { // by which the collector goes
		code, _ := k.status(http.MethodGet, comes, "")
		return code == http.StatusNotFound
	})
	k.owned(configMaps, "of-the-first", owner(first))
	probe := k.owned(configMaps, "probe", "v1 ConfigMap absent none")
	k.gone(configMaps, probe.GetName()) // which came later
	require.Nil(t, k.get(configMaps+"/of-the-first").GetDeletionTimestamp(), "it cannot be verified")

	second := instance()
	k.gone(configMaps, "of-the-first")
	// An unserved version names nothing, and what it named before stays until it is served again.
	k.owned(configMaps, "by-v1", owner(second))
	k.owned(configMaps, "by-v2", strings.Replace(owner(second), "/v1 ", "/v2 ", 1))
	serveV2 := func(served bool) {
		crd := k.get(crds + "/comes.comes.example.org")
		versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
		require.NoError(t, err)
		versions[1].(map[string]any)["served"] = served
		text, err := json.Marshal(map[string]any{"spec": map[string]any{"versions": versions}})
		require.NoError(t, err)
		k.ask(http.StatusOK, http.MethodPatch, crds+"/comes.comes.example.org", string(text))
		k.eventually("its second version is served, or not", func() bool {
			code, _ := k.status(http.MethodGet, strings.Replace(comes, "/v1/", "/v2/", 1), "")
			return (code == http.StatusOK) == served
		})
	}
	serveV2(false)
	k.owned(configMaps, "by-v2-late", strings.Replace(owner(second), "/v1 ", "/v2 ", 1))
	k.owned(configMaps, "by-v2-wrong", "comes.example.org/v2 Come here none")
	probe = k.owned(configMaps, "probe", "v1 ConfigMap absent none")
	k.gone(configMaps, probe.GetName())
	serveV2(true)
	k.gone(configMaps, "by-v2-wrong")
	for _, name := range []string{"by-v1", "by-v2", "by-v2-late"} {
		require.Nil(t, k.get(configMaps+"/"+name).GetDeletionTimestamp(), name)
	}
	k.remove(comes, "here", "Background")
	for _, name := range []string{"by-v1", "by-v2", "by-v2-late"} {
		k.gone(configMaps, name)
	}

	bound := k.owned(widgets, "here")
	names = dependents(bound)
	k.remove(apisV2+"apibindings", "widgets", "Background")
	for _, name := range names {
		k.gone(configMaps, name)
	}
	k.gone(apisV2+"apibindings", "widgets")
	k.bind("widgets", provider, "widgets")
	k.until("widgets", "Ready", "True <nil>")
}

func testBackground(t *testing.T, k, other apiKinds) {
	for _, in := range []apiKinds{k, other} {
		a := in.owned(configMaps, "a")
		b := in.owned(gadgets, "b", owner(a))
		c := in.owned(widgets, "c", strings.Replace(owner(b), "/v1 ", "/v2 ", 1))
		in.owned("/api/v1/namespaces/default/secrets", "d", owner(c))
	}
	// The owner of another logical cluster, by its name and UID.
	foreign := k.get(configMaps + "/a")
	other.owned(configMaps, "foreign", owner(foreign))
	other.gone(configMaps, "foreign")
	k.remove(configMaps, "a", "Background")
	k.gone(gadgets, "b")
	k.gone(widgets, "c")
	k.gone("/api/v1/namespaces/default/secrets", "d")
	for _, path := range []string{configMaps + "/a", gadgets + "/b", widgets + "/c", "/api/v1/namespaces/default/secrets/d"} {
		require.Nil(t, other.get(path).GetDeletionTimestamp(), path)
	}
}

func testForeground(t *testing.T, k apiKinds) {
	a := k.owned(configMaps, "fore")
	b := k.owned(gadgets, "fore", owner(a)+" blocks")
	k.owned(widgets, "fore", owner(b)+" blocks")
	k.owned(configMaps, "second", owner(b))
	stay := k.owned(configMaps, "stays")
	k.owned(configMaps, "shared", owner(a)+" blocks", owner(stay))
	k.ask(http.StatusOK, http.MethodPatch, widgets+"/fore", `{"metadata":{"finalizers":["example.org/mine"]}}`)

	kubectl := exec.CommandContext(t.Context(), harness.Kubectl(t), "--kubeconfig", k.ShardKubeconfig(0), "--server", k.config.Host+"/clusters/"+k.cluster,
		"delete", "configmap", "fore", "--cascade=foreground", "--wait=false")
	out, err := kubectl.CombinedOutput()
	require.NoError(t, err, "%s", out)
	k.eventually("the last is being deleted", func() bool { return k.get(widgets+"/fore").GetDeletionTimestamp() != nil })
	require.Equal(t, []string{"foregroundDeletion"}, k.get(configMaps+"/fore").GetFinalizers())
	require.Equal(t, []string{"foregroundDeletion"}, k.get(gadgets+"/fore").GetFinalizers())
	k.gone(configMaps, "second")
	k.ask(http.StatusOK, http.MethodPatch, widgets+"/fore", `{"metadata":{"finalizers":null}}`)
	k.gone(widgets, "fore")
	k.gone(gadgets, "fore")
	k.gone(configMaps, "fore")
	shared := k.get(configMaps + "/shared").GetOwnerReferences()
	require.Len(t, shared, 1)
	require.Equal(t, "stays", shared[0].Name)
}

func testOrphan(t *testing.T, k apiKinds) {
	a := k.owned(configMaps, "leaves")
	b := k.owned(gadgets, "orphaned", owner(a))
	k.owned(widgets, "below", owner(b))
	k.remove(configMaps, "leaves", "Orphan")
	k.gone(configMaps, "leaves")
	require.Empty(t, k.get(gadgets+"/orphaned").GetOwnerReferences())
	require.Len(t, k.get(widgets+"/below").GetOwnerReferences(), 1)
}

func testWrongReferences(t *testing.T, k apiKinds) {
	a := k.owned(configMaps, "right")
	good := k.owned(configMaps, "good", owner(a))
	k.owned(configMaps, "wrong-uid", "v1 ConfigMap right 11111111-1111-1111-1111-111111111111")
	k.owned(configMaps, "wrong-kind", strings.Replace(owner(a), "ConfigMap", "Secret", 1))
	k.owned(configMaps, "no-uuid", "v1 ConfigMap right whatever")
	k.owned(gadgets, "mixed", "v1 ConfigMap right whatever", owner(a), "v1 ConfigMap absent whatever")
	k.gone(configMaps, "wrong-uid")
	k.gone(configMaps, "wrong-kind")
	k.gone(configMaps, "no-uuid")
	k.eventually("one reference is left", func() bool { return len(k.get(gadgets+"/mixed").GetOwnerReferences()) == 1 })
	require.Nil(t, good.GetDeletionTimestamp())

	k.create("/api/v1/namespaces", `{"metadata":{"name":"elsewhere"}}`)
	k.create("/api/v1/namespaces/elsewhere/configmaps", `{"metadata":{"name":"crossing","ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"right","uid":%q}]}}`, string(a.GetUID()))
	k.gone("/api/v1/namespaces/elsewhere/configmaps", "crossing")
	scoped := k.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"metadata":{"name":"scoped","ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"absent","uid":"none"}]}}`)
	for namespace, object := range map[string]string{"elsewhere": "crossing", "default": "scoped"} {
		k.eventually("an Event tells of "+object, func() bool {
			events := k.get("/api/v1/namespaces/" + namespace + "/events?fieldSelector=reason=OwnerRefInvalidNamespace,involvedObject.name=" + object)
			items, _ := field(events, "items").([]any)
			return len(items) == 1 && strings.Contains(fmt.Sprint(items), "does not exist in namespace")
		})
	}
	require.Nil(t, k.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/"+scoped.GetName()).GetDeletionTimestamp())
	k.get(configMaps + "/good")
}

// testUnservedOwners: what cannot be verified stays, and is judged when it can be.
func testUnservedOwners(t *testing.T, k apiKinds) {
	k.owned(configMaps, "waits", "late.example.org/v1 Late late none")
	probe := k.owned(configMaps, "probe", "v1 ConfigMap absent none")
	k.gone(configMaps, probe.GetName()) // which came later
	require.Nil(t, k.get(configMaps+"/waits").GetDeletionTimestamp())
	late := strings.NewReplacer("garbage.example.org", "late.example.org", "gadget", "late", "Gadget", "Late").Replace(garbageCRD)
	k.create(crds, "%s", late)
	k.gone(configMaps, "waits")
}

// testJudgedCollection: a policy that protects objects protects them from the collector.
func testJudgedCollection(t *testing.T, k apiKinds) {
	const admission = "/apis/admissionregistration.k8s.io/v1/"
	k.create(admission+"validatingadmissionpolicies", `{"metadata":{"name":"protect"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["DELETE"],"resources":["configmaps"]}]},"validations":[{"expression":"oldObject.metadata.name != 'protected' || request.userInfo.username != 'system:serviceaccount:kube-system:generic-garbage-collector'"}]}}`)
	k.create(admission+"validatingadmissionpolicybindings", `{"metadata":{"name":"protect"},"spec":{"policyName":"protect","validationActions":["Deny"]}}`)
	k.eventually("the policy is enforced", func() bool {
		k.owned(configMaps, "protected")
		code, _ := do(t, k.config, call{method: http.MethodDelete, path: "/clusters/" + k.cluster + configMaps + "/protected", header: http.Header{
			"Impersonate-User": {"system:serviceaccount:kube-system:generic-garbage-collector"}, "Impersonate-Group": {"system:masters"},
		}})
		if code == http.StatusOK {
			return false
		}
		k.remove(configMaps, "protected", "Background")
		return true
	})
	k.owned(configMaps, "protected", "v1 ConfigMap absent none")
	k.owned(configMaps, "unprotected", "v1 ConfigMap absent none")
	k.gone(configMaps, "unprotected")
	require.Nil(t, k.get(configMaps+"/protected").GetDeletionTimestamp())
	k.remove(admission+"validatingadmissionpolicybindings", "protect", "Background")
	k.gone(configMaps, "protected")
}
