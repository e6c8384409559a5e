package isolation

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

const (
	// testTimeout is the timeout of conditions that a test waits for.
	testTimeout = 30 * time.Second
	// pulse is the name of an object of each victim that changes continuously, so that watches have
	// events.
	pulse = "pulse"
)

// tenant is a logical cluster with its objects.
type tenant struct {
	// path and name both identify the logical cluster in URLs.
	path, name string
}

// world is a cluster with the attackers' tenant, alpha, and two victims. Attackers can use the name
// and the path of bravo, but not those of blind, which is on another shard.
type world struct {
	*harness.Cluster

	t                   testing.TB
	alpha, bravo, blind tenant
	// inner is a workspace in bravo on the other shard.
	inner tenant
	// warden is on the other shard. Its maximal permission policy applies to alpha.
	warden tenant
	// absent does not exist. Its path and name have the form of bravo's.
	absent tenant
	// secret is the prefix of all canaries.
	secret string
	canaries
	// victims are the logical clusters of the victims, and protected all that must not change.
	victims, protected []string
	// vars are the values of $NAME$ in requests to bravo, and twins the different values for
	// absent.
	vars, twins map[string]string

	attackers []*attacker
	targets   []*target
	hook      *hook

	admin, masters *rest.Config
}

// newWorld creates tenants, objects and attackers in a cluster of two shards.
func newWorld(t testing.TB, c *harness.Cluster) *world {
	t.Helper()
	w := &world{
		Cluster: c, t: t, admin: c.Proxy(), masters: c.Shard(0), secret: "zq" + randomLetters(14),
		twins: map[string]string{},
	}
	w.canaries.add("secret of the victims", w.secret)
	// It is created some seconds after root.
	w.must(w.masters, http.MethodGet, "root", "/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt", "", nil)
	w.alpha, w.bravo, w.blind = w.workspace("root", "alpha", "root"), w.workspace("root", "bravo", "root"), w.workspace("root", "blind", "shard-1")
	w.absent = tenant{path: "root:" + randomLetters(len("bravo")), name: similarName(w.bravo.name)}
	w.inner = w.workspace(w.bravo.path, w.secret+"-inner", "shard-1")
	w.canaries.add("name of blind", w.blind.name)
	w.canaries.add("name of inner", w.inner.name)
	w.victims = []string{w.bravo.name, w.blind.name, w.inner.name}
	w.protected = append([]string{"root", "system:admin"}, w.victims...)
	w.createObjects(w.alpha, "own", common)
	for _, victim := range []tenant{w.bravo, w.blind} {
		w.createObjects(victim, w.secret, common)
		w.createObjects(victim, w.secret, private)
	}
	w.canaries.add("UID of bravo's secret", w.uid(w.bravo, "/api/v1/namespaces/vault/secrets/treasure"))
	w.canaries.add("UID of blind's secret", w.uid(w.blind, "/api/v1/namespaces/vault/secrets/treasure"))
	w.warden = w.newWarden()
	w.hook = serveHook(t, w)
	w.targets = w.newTargets()
	w.attackers = w.newAttackers()
	w.setVars()
	w.newRelics()
	w.awaitLogicalClusters()
	return w
}

// awaitLogicalClusters waits until controllers have set the annotations of the protected
// LogicalClusters, some of them long after they are Ready: bindings of the system, replication, and
// garbage collection. It then waits until the cache server has the same objects.
func (w *world) awaitLogicalClusters() {
	w.t.Helper()
	const (
		path       = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
		bound      = `"internal.shardplane.io/system-bindings":"true"`
		replicated = `"internal.kcp.io/replicate":"apis.kcp.io,tenancy.kcp.io"`
		collected  = `"internal.shardplane.io/garbage-collected-since"`
		// The last binding of the type universal. The annotation above is set before.
		topology = `partitionsets.topology.kcp.io`
	)
	first, second := w.masters, w.Shard(1)
	for _, of := range []struct {
		on       *rest.Config
		shard    string // empty if not replicated
		cluster  string
		contains []string
	}{
		{first, "", "system:admin", []string{collected}},
		{second, "", "system:admin", []string{collected}},
		{second, "", w.inner.name, []string{bound, topology}},
		{first, "root", "root", []string{bound, replicated}},
		{first, "root", w.bravo.name, []string{bound, topology, replicated}},
		{second, "shard-1", w.blind.name, []string{bound, topology, replicated}},
	} {
		var got response
		require.Eventually(w.t, func() bool {
			var err error
			if got, err = call(w.t.Context(), of.on, http.MethodGet, of.cluster, path, ""); err != nil {
				return false
			}
			// The order of the reasons depends on the controllers.
			text := strings.Replace(string(got.body), `"tenancy.kcp.io,apis.kcp.io"`, `"apis.kcp.io,tenancy.kcp.io"`, 1)
			for _, word := range append(of.contains, `"tenancy.kcp.io/phase":"Ready"`) {
				if !strings.Contains(text, word) {
					return false
				}
			}
			return of.shard == "" || w.isReplicated(of.shard, of.cluster, path, got.body)
		}, testTimeout, 20*time.Millisecond, "the LogicalCluster of %s does not contain %v: %v", of.cluster, of.contains, &got)
	}
}

// isReplicated reports whether the cache server has the current version of an object.
func (w *world) isReplicated(shard, cluster, path string, object []byte) bool {
	var obj struct {
		Metadata struct{ ResourceVersion string }
	}
	replica, err := call(w.t.Context(), w.Cache(), http.MethodGet, "", "/services/cache/shards/"+shard+"/clusters/"+cluster+path, "")
	return err == nil && json.Unmarshal(object, &obj) == nil &&
		strings.Contains(string(replica.body), `"cache.kcp.io/original-resource-version":"`+obj.Metadata.ResourceVersion+`"`)
}

// setVars sets the variables of requests.
func (w *world) setVars() {
	w.vars = map[string]string{
		"A": w.alpha.name, "APATH": w.alpha.path, "W": w.warden.name, "B": w.bravo.name, "BPATH": w.bravo.path,
		"BUID": w.uid(w.bravo, "/api/v1/namespaces/vault/configmaps/treasure"),
		"HOOK": w.hook.URL, "HOOKCA": w.hook.ca,
		"UPPERB": strings.ToUpper(w.bravo.name), "BLAST": "bravo",
		"LONG": strings.Repeat("long", 20<<10), "HUGE": strings.Repeat("huge", 255<<10),
	}
	w.setContinueTokens()
	w.twins["B"], w.twins["BPATH"], w.twins["UPPERB"] = w.absent.name, w.absent.path, strings.ToUpper(w.absent.name)
	var export struct{ Status struct{ IdentityHash string } }
	w.must(w.admin, http.MethodGet, w.bravo.path, "/apis/apis.kcp.io/v1alpha2/apiexports/gems", "", &export)
	w.vars["GEMS"] = export.Status.IdentityHash
	w.twins["BLAST"] = strings.TrimPrefix(w.absent.path, "root:")
}

// setContinueTokens sets continue tokens of lists. They expire after five minutes.
func (w *world) setContinueTokens() {
	for name, list := range map[string]struct {
		of   tenant
		path string
	}{
		"BNEXT":  {w.bravo, "/api/v1/namespaces/vault/configmaps"},
		"ANEXT":  {w.alpha, "/api/v1/namespaces/vault/configmaps"},
		"AOTHER": {w.alpha, "/apis/rbac.authorization.k8s.io/v1/namespaces/vault/roles"},
	} {
		var page struct{ Metadata struct{ Continue string } }
		w.must(w.admin, http.MethodGet, list.of.path, list.path+"?limit=2", "", &page)
		require.NotEmpty(w.t, page.Metadata.Continue)
		w.vars[name] = page.Metadata.Continue
	}
}

// randomLetters returns a random name.
func randomLetters(n int) string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz"
	out := make([]byte, n)
	for i := range out {
		out[i] = alphabet[rand.IntN(len(alphabet))]
	}
	return string(out)
}

// similarName returns another name with letters and digits at the same positions, because servers
// may parse names, e.g. as durations.
func similarName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= '0' && r <= '9':
			return '0' + (r-'0'+1)%10
		case r >= 'a' && r <= 'z':
			return 'a' + (r-'a'+1)%26
		}
		return r
	}, name)
}

// expand replaces $NAME$ in text.
func (w *world) expand(text string, twin bool) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, after, closed := strings.Cut(rest, "$")
		value, found := w.vars[name]
		if other, has := w.twins[name]; twin && has {
			value = other
		}
		if !closed || !found {
			out.WriteByte('$')
			text = rest
			continue
		}
		out.WriteString(value)
		text = after
	}
}

// call sends a request with the credentials of a config.
func call(ctx context.Context, config *rest.Config, method, cluster, path, body string) (response, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return response{}, err
	}
	url := config.Host + path
	if cluster != "" {
		url = config.Host + "/clusters/" + cluster + path
	}
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewBufferString(body))
	if err != nil {
		return response{}, err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	res, err := client.Do(r)
	if err != nil {
		return response{}, err
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	return response{code: res.StatusCode, header: res.Header, body: data}, err
}

// must retries call until it succeeds, and decodes the response.
func (w *world) must(config *rest.Config, method, cluster, path, body string, into any) {
	w.t.Helper()
	var last response
	var err error
	require.Eventually(w.t, func() bool {
		last, err = call(w.t.Context(), config, method, cluster, path, body)
		return err == nil && (last.code < 300 || last.code == http.StatusConflict && method == http.MethodPost)
	}, testTimeout, 20*time.Millisecond, "%s %s in %s: %v", method, path, cluster, &last)
	if into != nil {
		require.NoError(w.t, json.Unmarshal(last.body, into), "%s", last)
	}
}

func (w *world) uid(of tenant, path string) string {
	w.t.Helper()
	var obj struct{ Metadata struct{ UID string } }
	w.must(w.admin, http.MethodGet, of.path, path, "", &obj)
	require.NotEmpty(w.t, obj.Metadata.UID)
	return obj.Metadata.UID
}

// workspace creates a workspace and waits until it is usable.
func (w *world) workspace(parent, name, shard string) tenant {
	w.t.Helper()
	w.must(w.admin, http.MethodPost, parent, "/apis/tenancy.kcp.io/v1alpha1/workspaces", fmt.Sprintf(
		`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q},"spec":{"location":{"selector":{"matchLabels":{"name":%q}}}}}`, name, shard), nil)
	var ws struct {
		Spec   struct{ Cluster string }
		Status struct{ Phase string }
	}
	require.Eventually(w.t, func() bool {
		got, err := call(w.t.Context(), w.admin, http.MethodGet, parent, "/apis/tenancy.kcp.io/v1alpha1/workspaces/"+name, "")
		return err == nil && json.Unmarshal(got.body, &ws) == nil && ws.Status.Phase == "Ready"
	}, testTimeout, 20*time.Millisecond, "workspace %s did not become Ready", name)
	made := tenant{path: parent + ":" + name, name: ws.Spec.Cluster}
	w.must(w.admin, http.MethodGet, made.path, "/api/v1/namespaces/default/serviceaccounts/default", "", nil)
	return made
}

// createObjects creates objects in a tenant, and replaces CANARY in them.
func (w *world) createObjects(in tenant, canary string, objects []manifest) {
	w.t.Helper()
	for _, m := range objects {
		w.must(w.admin, http.MethodPost, in.path, strings.ReplaceAll(m.path, "CANARY", canary), manifestBody(m, canary), nil)
	}
}

func manifestBody(m manifest, canary string) string {
	encoded := base64.StdEncoding.EncodeToString([]byte(canary + "-secret"))
	return strings.NewReplacer("CANARY", canary, "ENCODED", encoded).Replace(m.body)
}

// manifest is an object and the path of its collection.
type manifest struct{ path, body string }

// common are objects that all tenants have. Attackers can use their names, but must not read their
// content.
var common = append([]manifest{
	{"/api/v1/namespaces", `{"metadata":{"name":"vault","labels":{"tier":"CANARY-namespace"}}}`},
	{"/api/v1/namespaces/vault/secrets", `{"metadata":{"name":"treasure"},"data":{"key":"ENCODED"}}`},
	{"/api/v1/namespaces/default/serviceaccounts", `{"metadata":{"name":"robot"}}`},
	{"/api/v1/namespaces/vault/limitranges", `{"metadata":{"name":"treasure","labels":{"tier":"CANARY-limits"}},"spec":{"limits":[{"type":"Container"}]}}`},
	{"/api/v1/namespaces/vault/resourcequotas", `{"metadata":{"name":"treasure","labels":{"tier":"CANARY-quota"}},"spec":{"hard":{"count/gadgets.example.com":"5"}}}`},
	{"/api/v1/namespaces/vault/events", `{"metadata":{"name":"treasure","namespace":"vault"},"involvedObject":{"kind":"ConfigMap","namespace":"vault","name":"treasure"},"reason":"CANARY-reason","message":"CANARY-message"}`},
	{"/apis/coordination.k8s.io/v1/namespaces/vault/leases", `{"metadata":{"name":"treasure"},"spec":{"holderIdentity":"CANARY-holder"}}`},
	{"/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"metadata":{"name":"treasure","labels":{"tier":"CANARY-role"}},"rules":[{"verbs":["get"],"apiGroups":["CANARY-group"],"resources":["things"]}]}`},
	{"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":"robot"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"ServiceAccount","namespace":"default","name":"robot"}]}`},
	{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"versions":[{"name":"v1","served":true,"storage":true,"additionalPrinterColumns":[{"name":"Text","type":"string","jsonPath":".spec.text","description":"CANARY-column"}],"schema":{"openAPIV3Schema":{"type":"object","description":"CANARY-schema","properties":{"spec":{"type":"object","properties":{"text":{"type":"string","default":"CANARY-default"}}}}}}}]}}`},
	{"/apis/example.com/v1/namespaces/vault/widgets", `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"treasure"},"spec":{"text":"CANARY-widget"}}`},
	{"/apis/tenancy.kcp.io/v1alpha1/workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"treasure","annotations":{"note":"CANARY-type"}},"spec":{}}`},
	{"/apis/apis.kcp.io/v1alpha2/apiexports", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"treasure","annotations":{"note":"CANARY-export"}},"spec":{}}`},
	{"/apis/apis.kcp.io/v1alpha1/apiresourceschemas", `{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIResourceSchema","metadata":{"name":"v1.gems.bound.example"},"spec":{"group":"bound.example","scope":"Namespaced","names":{"plural":"gems","singular":"gem","kind":"Gem","listKind":"GemList"},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"type":"object","description":"CANARY-bound-schema","properties":{"spec":{"type":"object","properties":{"text":{"type":"string","default":"CANARY-bound-default"}}}}}}]}}`},
	{"/apis/apis.kcp.io/v1alpha2/apiexports", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":"gems"},"spec":{"resources":[{"group":"bound.example","name":"gems","schema":"v1.gems.bound.example","storage":{"crd":{}}}]}}`},
	{"/apis/apis.kcp.io/v1alpha2/apibindings", gemsBinding},
	{"/apis/bound.example/v1/namespaces/vault/gems", `{"apiVersion":"bound.example/v1","kind":"Gem","metadata":{"name":"treasure"},"spec":{"text":"CANARY-gem"}}`},
}, pages()...)

// gemsBinding binds the own export of a tenant, with its own identity.
const gemsBinding = `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":"gems"},"spec":{"reference":{"export":{"name":"gems"}}}}`

// pages returns objects for more than one page.
func pages() []manifest {
	var out []manifest
	for n := range 4 {
		name := "treasure"
		if n > 0 {
			name = fmt.Sprintf("treasure-%d", n)
		}
		out = append(out,
			manifest{"/api/v1/namespaces/vault/configmaps", `{"metadata":{"name":"` + name + `","labels":{"tier":"CANARY-label","same":"same"},"annotations":{"note":"CANARY-note"}},"data":{"key":"CANARY-data"}}`},
			manifest{"/apis/rbac.authorization.k8s.io/v1/namespaces/vault/roles", `{"metadata":{"name":"` + name + `"},"rules":[{"verbs":["get"],"apiGroups":["CANARY-group"],"resources":["things"]}]}`},
		)
	}
	return out
}

// private are additional objects of the victims.
var private = []manifest{
	{"/api/v1/namespaces", `{"metadata":{"name":"CANARY-ns"}}`},
	{"/api/v1/namespaces/CANARY-ns/configmaps", `{"metadata":{"name":"CANARY-object"},"data":{"key":"CANARY-data"}}`},
	{"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":"CANARY-binding"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"CANARY-owner"}]}`},
	{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"jewels.CANARY.example.com"},"spec":{"group":"CANARY.example.com","scope":"Cluster","names":{"plural":"jewels","singular":"jewel","kind":"Jewel","listKind":"JewelList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`},
	{"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", `{"metadata":{"name":"treasure"},"spec":{"failurePolicy":"Fail","matchConstraints":{"resourceRules":[{"apiGroups":["*"],"apiVersions":["*"],"operations":["*"],"resources":["*"]}]},"matchConditions":[{"name":"name","expression":"request.name == 'forbidden'"}],"validations":[{"expression":"false","message":"CANARY-policy"}]}}`},
	{"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings", `{"metadata":{"name":"treasure"},"spec":{"policyName":"treasure","validationActions":["Deny","Audit"]}}`},
	{"/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"` + pulse + `"},"data":{"key":"CANARY-pulse"}}`},
}
