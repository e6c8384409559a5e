package isolation

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testTable sends each piece alone, by all relevant attackers. One of five requests, and all that
// depend on the network, use TLS, and one of seven HTTP/2.
func (w *world) testTable(t *testing.T) {
	w.useHandlers()
	inputs := w.tabulated()
	for i := range inputs {
		inputs[i].wire = i%5 == 0 || strings.Contains(inputs[i].raw, "$HUGE$") || strings.Contains(inputs[i].raw, "Expect:")
		inputs[i].http2 = i%7 == 0 && !inputs[i].wire
	}
	w.send(t, inputs)
	t.Run("access", w.testAccess)
	t.Run("frames and connections", w.testWire)
	t.Run("messages", w.testForbiddenMessages)
	t.Run("services/admin", w.testInstallation)
}

// send reports the findings of inputs.
func (w *world) send(t *testing.T, inputs []input) {
	t.Helper()
	for _, f := range w.attackAll(t, inputs) {
		t.Error(w.describe(*f))
	}
}

const (
	secretPath = "/api/v1/namespaces/vault/secrets/treasure"
	secretList = "/api/v1/namespaces/vault/secrets"
)

// get returns the text of a GET request.
func get(path string, lines ...string) string {
	return strings.Join(append([]string{"GET " + path + " HTTP/1.1"}, append(lines, "Connection: close")...), "\r\n") + "\r\n\r\n"
}

// tabulated returns each piece in an otherwise valid request.
func (w *world) tabulated() []input {
	var inputs []input
	add := func(attacker, target int, raw string) {
		if w.attackers[attacker].attacks(w.targets[target].name) {
			inputs = append(inputs, input{attacker: attacker, target: target, raw: raw})
		}
	}
	for target := range w.targets {
		// All attackers send these.
		for attacker := range w.attackers {
			for _, path := range []string{"/clusters/$B$" + secretPath, "/clusters/$BPATH$" + secretList, secretPath, "/services/cache/shards/*/clusters/*/apis/tenancy.kcp.io/v1alpha1/workspacetypes"} {
				add(attacker, target, get(path))
			}
		}
		// Administrators of alpha take turns with the others.
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

// testAccess checks that the credentials of the attackers work. Otherwise, all requests may be
// rejected because of an error in this suite.
func (w *world) testAccess(t *testing.T) {
	for attacker, p := range w.attackers {
		for target, name := range []string{frontProxy, "root"} {
			if !p.attacks(name) {
				continue
			}
			for _, http2 := range []bool{false, true} {
				raw := get("/clusters/$A$" + secretPath)
				got := w.perform(t.Context(), input{attacker: attacker, target: target, wire: true, http2: http2, raw: raw}, false)
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

// testForbiddenMessages checks that administrators of alpha get the documented 403 response for
// other logical clusters, by name and path, existing or not.
func (w *world) testForbiddenMessages(t *testing.T) {
	for attacker, p := range w.attackers[:5] {
		for target, name := range []string{frontProxy, "root"} {
			for _, cluster := range []string{w.bravo.name, w.bravo.path, w.absent.name, w.absent.path} {
				got := w.perform(t.Context(), input{attacker: attacker, target: target, raw: get("/clusters/" + cluster + secretPath)}, false)
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

// testInstallation checks that attackers cannot read the resources of the whole installation.
func (w *world) testInstallation(t *testing.T) {
	for attacker, p := range w.attackers {
		for target := range w.targets {
			if !p.attacks(w.targets[target].name) {
				continue
			}
			for _, path := range []string{"", "/apis", "/apis/core.kcp.io/v1alpha1/shards", "/apis/core.kcp.io/v1alpha1/shards/root", "/apis/core.kcp.io/v1alpha1/shards?watch=1", "/openapi/v3"} {
				got := w.perform(t.Context(), input{attacker: attacker, target: target, wire: true, raw: get("/services/admin" + path)}, false)
				require.NoError(t, got.err)
				require.Contains(t, []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound}, got.code, "%s at %s: %s", p.name, w.targets[target].name, got)
				require.NotContains(t, string(got.body), "baseURL")
			}
		}
	}
}
