package isolation

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// table sends each piece alone, by everybody to whom it may matter: one of five
// over real TLS, each at another server, with what the network has a say in, and
// one of seven by HTTP/2.
func (w *world) table(t *testing.T) {
	w.inside()
	inputs := w.tabulated()
	for i := range inputs {
		inputs[i].wire = i%5 == 0 || strings.Contains(inputs[i].raw, "$HUGE$") || strings.Contains(inputs[i].raw, "Expect:")
		inputs[i].http2 = i%7 == 0 && !inputs[i].wire
	}
	w.send(t, inputs)
	t.Run("insiders get in, and nobody else", w.testInsiders)
	t.Run("below the answers", w.testWire)
	t.Run("strangers are told what to do", w.testStrangers)
	t.Run("nobody is told of the installation", w.testInstallation)
}

// send sends inputs, of which none may bring anything to light.
func (w *world) send(t *testing.T, inputs []input) {
	t.Helper()
	for _, f := range w.catch(t, inputs) {
		t.Error(w.describe(*f))
	}
}

const (
	secretPath = "/api/v1/namespaces/vault/secrets/treasure"
	secretList = "/api/v1/namespaces/vault/secrets"
)

// tabulated are the pieces, each in an otherwise valid request.
func (w *world) tabulated() []input {
	var inputs []input
	add := func(who, target int, raw string) {
		if w.whos[who].attacks(w.targets[target].name) {
			inputs = append(inputs, input{who: who, target: target, raw: raw})
		}
	}
	get := func(path string, lines ...string) string {
		return strings.Join(append([]string{"GET " + path + " HTTP/1.1"}, append(lines, "Connection: close")...), "\r\n") + "\r\n\r\n"
	}
	for target := range w.targets {
		// Everybody tries the front door.
		for who := range w.whos {
			for _, path := range []string{"/clusters/$B$" + secretPath, "/clusters/$BPATH$" + secretList, secretPath, "/services/cache/shards/*/clusters/*/apis/tenancy.kcp.io/v1alpha1/workspacetypes"} {
				add(who, target, get(path))
			}
		}
		// The rest is tried by one administrator of alpha after the other.
		insider := 0
		next := func() int { insider++; return insider % 4 }
		for _, segment := range clusterSegments {
			add(next(), target, get("/clusters/"+segment+secretPath))
		}
		for _, prefix := range prefixes {
			add(next(), target, get(strings.ReplaceAll(prefix, "CLUSTER", "$B$")+secretPath))
		}
		for _, line := range headers {
			add(next(), target, get("/clusters/$B$"+secretPath, line))
			add(next(), target, get("/clusters/$BPATH$"+secretPath, line))
		}
		for _, line := range []string{"X-Long: $HUGE$", "X-Long: $LONG$", "Expect: 100-continue"} {
			add(next(), target, get("/clusters/$B$"+secretPath, line)+"a body")
		}
		add(next(), target, get("/clusters/$B$"+secretPath, "Transfer-Encoding: chunked")+"5\r\n12345\r\n0\r\n\r\n")
		for _, query := range queries {
			add(next(), target, get("/clusters/$A$/api/v1/namespaces/vault/configmaps?"+query))
			add(next(), target, get("/clusters/$B$/api/v1/configmaps?"+query))
		}
		for _, name := range names {
			add(next(), target, get("/clusters/$A$/api/v1/namespaces/"+name+"/configmaps"))
			add(next(), target, get("/clusters/$A$/api/v1/namespaces/vault/secrets/"+name))
		}
		for _, path := range others {
			add(next(), target, get("/clusters/$A$"+path))
			add(next(), target, get("/clusters/$B$"+path))
			add(next(), target, get(path))
		}
		for _, res := range resources {
			add(next(), target, get("/clusters/$A$"+res.group+"/"+res.plural))
		}
	}
	return inputs
}

// testInsiders holds that the attackers are who they say: without it, all their
// requests might be refused for a mistake of this suite.
func (w *world) testInsiders(t *testing.T) {
	for who, p := range w.whos {
		for target, name := range []string{frontProxy, "root"} {
			if !p.attacks(name) {
				continue
			}
			for _, http2 := range []bool{false, true} {
				raw := "GET /clusters/$A$" + secretPath + " HTTP/1.1\r\nConnection: close\r\n\r\n"
				got := w.perform(t.Context(), input{who: who, target: target, wire: true, http2: http2, raw: raw}, false)
				require.NoError(t, got.err)
				if p.insider {
					require.Equal(t, http.StatusOK, got.code, "%s at %s: %s", p.name, name, got)
				} else {
					require.Contains(t, []int{http.StatusUnauthorized, http.StatusForbidden}, got.code, "%s at %s: %s", p.name, name, got)
				}
			}
		}
	}
}

// testStrangers holds that administrators of one workspace get a helpful 403 in
// another, by name and path, existing or not.
func (w *world) testStrangers(t *testing.T) {
	for who, p := range w.whos[:5] {
		for target, name := range []string{frontProxy, "root"} {
			for _, cluster := range []string{w.bravo.name, w.bravo.path, w.absent.name, w.absent.path} {
				raw := fmt.Sprintf("GET /clusters/%s%s HTTP/1.1\r\nConnection: close\r\n\r\n", cluster, secretPath)
				got := w.perform(t.Context(), input{who: who, target: target, raw: raw}, false)
				require.Equal(t, http.StatusForbidden, got.code, "%s at %s: %s", p.name, name, got)
				var status metav1.Status
				require.NoError(t, json.Unmarshal(got.body, &status))
				require.Equal(t, metav1.StatusReasonForbidden, status.Reason)
				require.Contains(t, status.Message, `secrets "treasure" is forbidden: User "`)
				require.Contains(t, status.Message, `cannot get resource "secrets" in API group "" in the namespace "vault": workspace access not permitted`)
			}
		}
	}
}

// testInstallation holds that attackers are told nothing of the whole installation, in
// whatever way they ask for it.
func (w *world) testInstallation(t *testing.T) {
	for who, p := range w.whos {
		for target := range w.targets {
			if !p.attacks(w.targets[target].name) {
				continue
			}
			for _, path := range []string{"", "/apis", "/apis/core.kcp.io/v1alpha1/shards", "/apis/core.kcp.io/v1alpha1/shards/root", "/apis/core.kcp.io/v1alpha1/shards?watch=1", "/openapi/v3"} {
				raw := "GET /services/admin" + path + " HTTP/1.1\r\nConnection: close\r\n\r\n"
				got := w.perform(t.Context(), input{who: who, target: target, wire: true, raw: raw}, false)
				require.NoError(t, got.err)
				require.Contains(t, []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound}, got.code, "%s at %s: %s", p.name, w.targets[target].name, got)
				require.NotContains(t, string(got.body), "baseURL")
			}
		}
	}
}
