package noisyneighbors

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// metrics checks that labels contain no names of the attacker, and that its objects add no series.
func metrics(t *testing.T, w *world) {
	// Each kind of request once, so that all series with bounded labels exist.
	for i := range 2 {
		group := fmt.Sprintf("warm%d.%s.example", i, w.id)
		w.useGroup(t, group)
		w.attacker.must(t, http.MethodGet, "/apis/"+group+"/"+w.version()+"/things?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1", "")
		w.attacker.undefine(t, "things."+group)
	}
	w.requestUnknown(t, 0)
	w.callWebhooks(t, 0)
	before := w.scrape(t)
	for i := range 12 {
		group := fmt.Sprintf("deleted%d.%s.example", i, w.id)
		w.useGroup(t, group)
		w.attacker.undefine(t, "things."+group)
		w.requestUnknown(t, i+1)
	}
	w.callWebhooks(t, 1)
	for i := range 40 {
		w.useGroup(t, fmt.Sprintf("kept%d.%s.example", i, w.id))
	}
	made := w.newSeries(t, before, w.scrape(t))

	// Without bounded labels, a group had 433 series and 79 KiB. A few series may be created late
	// by requests with other timing.
	const late, lateBytes = 100, 20 << 10
	require.Less(t, len(made), late, "52 groups and many unknown names created series: %.5000v", made)
	require.Less(t, len(strings.Join(made, "\n")), lateBytes)
	t.Logf("%d series, %d with 52 additional groups", len(before), len(before)+len(made))

	w.checkBuiltinLabels(t)
	require.True(t, countersMatch(upstreamMetric(t, "apiserver_watch_cache_initializations_total", map[string]string{"group": "", "resource": "configmaps"}) > 0))
	require.True(t, countersMatch(upstreamMetric(t, "apiserver_request_total", map[string]string{"group": "unexpected", "resource": "unexpected", "verb": "POST"}) > 0))
}

// checkBuiltinLabels checks that all built-in and system APIs have their labels, by a request to
// each resource and subresource.
func (w *world) checkBuiltinLabels(t *testing.T) {
	t.Helper()
	lists, err := w.quiet.kube.Discovery().ServerPreferredResources()
	require.NoError(t, err)
	require.Greater(t, len(lists), 5)
	for _, preferred := range lists {
		list, err := w.quiet.kube.Discovery().ServerResourcesForGroupVersion(preferred.GroupVersion)
		require.NoError(t, err)
		gv, err := schema.ParseGroupVersion(preferred.GroupVersion)
		require.NoError(t, err)
		base := "/apis/" + preferred.GroupVersion
		if gv.Group == "" {
			base = "/api/v1"
		}
		for _, resource := range list.APIResources {
			plural, subresource, _ := strings.Cut(resource.Name, "/")
			path := base
			if resource.Namespaced {
				path += "/namespaces/default"
			}
			path += "/" + plural
			method := http.MethodPut
			switch {
			case subresource == "" && slices.Contains(resource.Verbs, "list"):
				method = http.MethodGet
			case subresource == "" || slices.Contains(resource.Verbs, "create"):
				method = http.MethodPost
			}
			if subresource != "" {
				path += "/none/" + subresource
			}
			_, body, err := w.quiet.call(t.Context(), method, path, "{}")
			require.NoError(t, err)
			require.True(t, countersMatch(upstreamMetric(t, "apiserver_request_total", map[string]string{"group": gv.Group, "version": gv.Version, "resource": plural, "subresource": subresource}) > 0), "%s %s: %.200s", method, path, body)
		}
	}
}

// scrape returns the names and labels of all series of all servers without duplicates, and checks
// that they contain no name of the attacker.
func (w *world) scrape(t *testing.T) (series []string) {
	t.Helper()
	marked := 0
	for _, server := range w.servers {
		lines := bufio.NewScanner(bytes.NewReader(server.must(t, http.MethodGet, "/metrics", "")))
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			line := lines.Text()
			if strings.HasPrefix(line, "#") {
				continue
			}
			if strings.Contains(line, w.id) {
				if marked++; marked <= 20 {
					t.Errorf("a label of %s contains a name of the attacker: %.300s", server.config.Host, line)
				}
			}
			series = append(series, line[:strings.LastIndexByte(line, ' ')])
		}
		require.NoError(t, lines.Err())
	}
	require.Zero(t, marked, "series with a name of the attacker")
	slices.Sort(series)
	return slices.Compact(series)
}

// groupLabel matches the group of a series.
var groupLabel = regexp.MustCompile(`[{,]group="([^"]*)"`)

// newSeries returns series that did not exist before, except those of built-in and system groups,
// because the shard also reads and writes these.
func (w *world) newSeries(t *testing.T, before, after []string) []string {
	t.Helper()
	groups, err := w.quiet.kube.Discovery().ServerGroups()
	require.NoError(t, err)
	var found []string
	for _, s := range after {
		if _, was := slices.BinarySearch(before, s); was {
			continue
		}
		group := groupLabel.FindStringSubmatch(s)
		if len(group) != 2 || !slices.ContainsFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == group[1] }) {
			found = append(found, s)
		}
	}
	return found
}

// useGroup creates a group and sends all kinds of requests to it.
func (w *world) useGroup(t *testing.T, group string) {
	t.Helper()
	a, version := w.attacker, w.version()
	crd := things(group, version)
	crd.Spec.Versions[0].Deprecated = true
	a.define(t, crd)
	path := "/apis/" + group + "/" + version + "/things"
	a.must(t, http.MethodPost, path, thing(group, version, "one", w.id))
	a.must(t, http.MethodPost, path+"?dryRun=All", thing(group, version, "two", w.id))
	a.must(t, http.MethodGet, path+"/one", "")
	a.must(t, http.MethodGet, path+"/one/status", "")
	a.must(t, http.MethodGet, path, "")
	a.must(t, http.MethodDelete, path+"/one", "")
	for _, missing := range []string{path + "/none", path + "/one/" + w.id, path + "/one/scale"} {
		code, body, err := a.call(t.Context(), http.MethodGet, missing, "")
		require.NoError(t, err)
		require.Equal(t, http.StatusNotFound, code, "%s", body)
		require.NotContains(t, string(body), "unexpected", "the error contains the metric label instead of the resource")
	}
}

// version returns the version of the attacker's groups.
func (w *world) version() string { return "v1" + w.id }

// requestUnknown requests missing resources in the attacker's workspace and as administrator, also
// with an immediate timeout.
func (w *world) requestUnknown(t *testing.T, n int) {
	t.Helper()
	name := fmt.Sprintf("%s%d", w.id, n)
	long := strings.Repeat("x", 100)
	for _, path := range []string{
		"/apis/" + name + ".example/" + name + "/" + name + "/" + long + "/" + name,
		"/apis/rbac.authorization.k8s.io/" + name + "/roles",
		"/apis/rbac.authorization.k8s.io/v1/" + name,
		configMaps + "/a/" + name,
		"/" + name + long,
	} {
		for _, get := range []func(string) (int, []byte, error){
			func(query string) (int, []byte, error) {
				return w.attacker.call(t.Context(), http.MethodGet, path+query, "")
			},
			func(query string) (int, []byte, error) {
				return w.operator.call(t.Context(), http.MethodGet, "/clusters/system:admin"+path+query, "")
			},
		} {
			code, body, err := get("")
			require.NoError(t, err)
			require.GreaterOrEqual(t, code, http.StatusBadRequest, "%s", body)
			// A response that has started is cut off by the timeout.
			if code, body, err = get("?timeout=1ns"); err == nil {
				require.GreaterOrEqual(t, code, http.StatusBadRequest, "%s", body)
			}
		}
	}
}

// callWebhooks calls webhooks and policies with names of the attacker.
func (w *world) callWebhooks(t *testing.T, n int) {
	t.Helper()
	a, name := w.attacker, fmt.Sprintf("%s%d", w.id, n)
	const admission = "/apis/admissionregistration.k8s.io/v1/"
	rules := `[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]`
	for kind, path := range map[string]string{"Validating": "validatingwebhookconfigurations", "Mutating": "mutatingwebhookconfigurations"} {
		a.must(t, http.MethodPost, admission+path, fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"%sWebhookConfiguration",
			"metadata":{"name":%[2]q},"webhooks":[{"name":"%[2]s.example.com","rules":%[3]s,"failurePolicy":"Ignore","sideEffects":"None","timeoutSeconds":1,
			"matchConditions":[{"name":"%[2]s","expression":"true"}],
			"admissionReviewVersions":["v1"],"clientConfig":{"url":"https://127.0.0.1:1/%[2]s"}}]}`, kind, name, rules))
	}
	a.must(t, http.MethodPost, admission+"validatingadmissionpolicies", fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy",
		"metadata":{"name":%[1]q},"spec":{"failurePolicy":"Fail","matchConstraints":{"resourceRules":%[2]s},"validations":[{"expression":"object.metadata.name != '%[1]s'"}]}}`, name, rules))
	a.must(t, http.MethodPost, admission+"validatingadmissionpolicybindings", fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding",
		"metadata":{"name":%[1]q},"spec":{"policyName":%[1]q,"validationActions":["Deny"]}}`, name))
	create := func(suffix string) int {
		const path = configMaps
		code, _, err := a.call(t.Context(), http.MethodPost, path, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`, name+suffix))
		require.NoError(t, err)
		if code == http.StatusCreated {
			a.must(t, http.MethodDelete, path+"/"+name+suffix, "")
		}
		return code
	}
	require.Eventually(t, func() bool { return create("") == http.StatusUnprocessableEntity }, testTimeout, tick, "the policy does not reject the write")
	for _, kind := range []string{"admit", "validating"} {
		calls := func() float64 {
			return upstreamMetric(t, "apiserver_admission_webhook_fail_open_count", map[string]string{"type": kind})
		}
		before := calls()
		require.Eventually(t, func() bool { create("-passes"); return countersMatch(calls() > before) }, testTimeout, tick, "the %s webhook was not called", kind)
	}
	for _, path := range []string{"validatingadmissionpolicybindings", "validatingadmissionpolicies", "validatingwebhookconfigurations", "mutatingwebhookconfigurations"} {
		a.must(t, http.MethodDelete, admission+path+"/"+name, "")
	}
}
