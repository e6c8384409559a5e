package noisyneighbors

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
)

const (
	apisV1, apisV2 = "/apis/apis.kcp.io/v1alpha1/", "/apis/apis.kcp.io/v1alpha2/"
	registration   = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
)

// providers checks an API of the attacker, bound by the quiet tenant, with webhooks that hang and
// rules with excessive cost. Only writes of this API may be delayed or rejected.
func providers(t *testing.T, w *world) {
	const limit, waiting = 64, 70
	group := w.id + ".provided.example"
	name := "v1.things." + group
	version := func(name string, stored bool) string {
		return fmt.Sprintf(`{"name":%q,"served":true,"storage":%t,"schema":{"type":"object","properties":{"all":{"type":"array","items":{"type":"string"}},"n":{"type":"integer"}}}}`, name, stored)
	}
	w.attacker.create(t, apisV1+"apiresourceschemas", fmt.Sprintf(`{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIResourceSchema","metadata":{"name":%q},"spec":{"group":%q,"scope":"Cluster","conversion":{"strategy":"None"},"names":{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList"},"versions":[%s,%s]}}`,
		name, group, version("v1", true), version("v2", false)))
	conversion := func(rule string) string {
		return fmt.Sprintf(`{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIConversion","metadata":{"name":%q},
			"spec":{"conversions":[{"from":"v1","to":"v2","rules":[
			{"field":".all","destination":".n","transformation":%q}]}]}}`, name, rule)
	}
	rejected(t, http.StatusUnprocessableEntity, "rules[0].transformation", func() (int, []byte, error) {
		large := conversion("self.exists(x, x.matches('" + strings.Repeat("a{0,1000}", 100) + "')) ? 1 : 0")
		return w.attacker.call(t.Context(), http.MethodPost, apisV1+"apiconversions", large)
	})
	const squared = "self.map(x, self.filter(y, self.exists(z, z == x + y)).size()).size()"
	w.attacker.create(t, apisV1+"apiconversions", conversion(squared))
	w.attacker.create(t, apisV2+"apiexports", fmt.Sprintf(`{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":%q},"spec":{"resources":[{"group":%q,"name":"things","schema":%q,"storage":{"crd":{}}}]}}`, w.id, group, name))
	for _, consumer := range []*tenant{w.quiet, w.attacker} {
		consumer.create(t, apisV2+"apibindings", fmt.Sprintf(`{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":%q},"spec":{"reference":{"export":{"path":"root:attacker","name":%q}}}}`, w.id, w.id))
		consumer.untilResponse(t, http.MethodGet, "/apis/"+group+"/v1/things", "", http.StatusOK, "", "the API is not served")
	}
	t.Run("rules", func(t *testing.T) { expensiveRules(t, w, group) })

	called, release := make(chan struct{}, 2*waiting), make(chan struct{})
	unblock := sync.OnceFunc(func() { close(release) })
	var pending sync.WaitGroup
	var finished atomic.Int64
	t.Cleanup(pending.Wait)
	t.Cleanup(unblock)
	hook := hangingWebhook(t, called, release)
	w.attacker.create(t, registration, validates("hangs."+w.id+".example", hook, group, "things"))
	write := func(by *tenant) {
		pending.Go(func() {
			_, _, _ = by.call(t.Context(), http.MethodPost, "/apis/"+group+"/v1/things?dryRun=All", thing(group, "v1", "one", ""))
			finished.Add(1)
		})
	}
	require.Eventually(t, func() bool { write(w.quiet); return len(called) > 0 }, testTimeout, tick, "the provider's webhook was not called")
	// Sequentially, because hanging requests should delay others, not a burst of the quiet tenant
	// itself.
	for n := len(called); n < limit; n++ {
		write(w.quiet)
		require.Eventually(t, func() bool { return len(called) > n }, testTimeout, tick, "less than %d calls for the quiet tenant's objects are pending", n+1)
	}
	for range waiting - limit {
		write(w.quiet)
	}

	// The quiet tenant's own webhooks are called, and nothing else is delayed, also for other
	// consumers.
	var minPaused atomic.Int64
	mine := allows(t, &minPaused)
	w.quiet.must(t, http.MethodPost, registration, validates("mine."+w.id+".example", mine, "", "configmaps"))
	for minPaused.Load() == 0 { // the webhook may be effective only later
		code, body, err := w.quiet.call(t.Context(), http.MethodPost, configMaps+"?dryRun=All", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"own"}}`)
		require.NoError(t, err)
		require.Equal(t, http.StatusCreated, code, "%s", body)
	}
	w.quiet.must(t, http.MethodDelete, registration+"/mine."+w.id+".example", "")
	w.quiet.must(t, http.MethodGet, "/apis/"+group+"/v1/things", "")
	write(w.attacker)
	require.Eventually(t, func() bool { return len(called) == limit+1 }, testTimeout, tick, "another consumer has no slots of its own")
	// Sequentially, for the same reason.
	over := make(chan struct{})
	go func() { pending.Wait(); close(over) }()
	for {
		n := finished.Load()
		select {
		case <-over:
			return
		case release <- struct{}{}:
			require.Eventually(t, func() bool { return finished.Load() > n }, testTimeout, tick, "a write did not finish although its webhook responded")
		}
	}
}

// expensiveRules checks that only objects with excessive conversion cost are rejected.
func expensiveRules(t *testing.T, w *world, group string) {
	with := func(name string, n int) string {
		all, err := json.Marshal(make([]string, n))
		require.NoError(t, err)
		return fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Thing","metadata":{"name":%q},"all":%s}`, group, name, all)
	}
	things := "/apis/" + group + "/v1/things"
	code, body, err := w.quiet.call(t.Context(), http.MethodPost, things, with("large", 2000))
	require.NoError(t, err)
	require.Equal(t, http.StatusUnprocessableEntity, code, "%s", body)
	require.Contains(t, string(body), "cannot be converted to "+group+"/v2")
	w.quiet.must(t, http.MethodPost, things, with("small", 20))
	require.Contains(t, string(w.quiet.must(t, http.MethodGet, strings.Replace(things, "/v1/", "/v2/", 1), "")), `"n":20`)
	w.quiet.must(t, http.MethodDelete, things+"/small", "")
}

// validates returns a configuration with a webhook for the creation of a resource.
func validates(name string, hook *httptest.Server, group, resource string) string {
	return fmt.Sprintf(`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":%[1]q},"webhooks":[{"name":%[1]q,"clientConfig":{"url":%[2]q,"caBundle":%[3]q},"timeoutSeconds":30,"sideEffects":"None","admissionReviewVersions":["v1"],"rules":[{"operations":["CREATE"],"apiGroups":[%[4]q],"apiVersions":["*"],"resources":[%[5]q]}]}]}`,
		name, hook.URL, base64.StdEncoding.EncodeToString(harness.CABundle(hook)), group, resource)
}

// allows starts a webhook that admits everything and counts calls.
func allows(t *testing.T, called *atomic.Int64) *httptest.Server {
	t.Helper()
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		called.Add(1)
		body, _ := io.ReadAll(r.Body)
		_, after, _ := strings.Cut(string(body), `"uid":"`)
		uid, _, _ := strings.Cut(after, `"`)
		_, _ = io.WriteString(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"`+uid+`","allowed":true}}`)
	}))
	t.Cleanup(hook.Close)
	return hook
}
