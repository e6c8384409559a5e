package apis

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/integration/kit"
)

const eventsV1 = "/apis/events.k8s.io/v1/namespaces/default/events"

// testClaimedEvents checks that a claim on events of either group applies to both groups, which contain the same objects: discovery
// lists both, and the selector applies to both.
func testClaimedEvents(t *testing.T, e *kit.Env) {
	provider, _, consumers := consumersOf(t, e, "claimed-events", 1)
	k := consumers[0]
	in, all := provider.ThroughExport("e", k.ClusterName), provider.ThroughExport("e", "*")
	const (
		coreEvents = "/api/v1/namespaces/default/events"
		core       = `{"metadata":{"name":%q,"namespace":"default","labels":{"for":%q}},"involvedObject":{"kind":"ConfigMap","namespace":"default","name":"x"}}`
		written    = `{"metadata":{"name":%q,"namespace":"default"%s},"regarding":{"kind":"ConfigMap","namespace":"default","name":"x"},"eventTime":"2026-01-01T00:00:00.000000Z","type":"Normal","reason":"Made","action":"Make","reportingController":"example.org/test","reportingInstance":"test"}`
	)
	k.Create(coreEvents, core, "seen", "provider")
	k.Create(coreEvents, core, "hidden", "others")
	for _, claim := range []schema.GroupResource{corev1.Resource("events"), eventsv1.Resource("events")} {
		text := fmt.Sprintf(`{"group":%q,"resource":"events","verbs":["*"]`, claim.Group)
		provider.ClaimInExport(`[` + text + `}]`)
		k.AcceptClaims(`[` + text + `,"selector":{"matchLabels":{"for":"provider"}},"state":"Accepted"}]`)
		for _, vw := range []kit.WorkspaceClient{all, in} {
			untilListed(vw, "/apis/events.k8s.io/v1/events", "seen")
			untilListed(vw, "/api/v1/events", "seen")
			require.Contains(t, fmt.Sprint(vw.Get("/apis").Object), "events.k8s.io")
			for _, path := range []string{"/apis/events.k8s.io/v1", "/api/v1"} {
				require.Contains(t, fmt.Sprint(vw.Get(path).Object), "name:events")
			}
		}
		for method, body := range map[string]string{http.MethodGet: "", http.MethodDelete: "", http.MethodPut: fmt.Sprintf(written, "hidden", "")} {
			in.RequireCode(http.StatusNotFound, method, eventsV1+"/hidden", body)
		}
		w := watchThrough(all, eventsv1.SchemeGroupVersion.WithResource("events"), "")
		name := "made-" + strings.ReplaceAll(claim.String(), ".", "-")
		in.Create(eventsV1, written, name, "")
		require.Equal(t, "provider", next(t, w, watch.Added, name).GetLabels()["for"])
		message := in.RequireCode(http.StatusForbidden, http.MethodPost, eventsV1, fmt.Sprintf(written, "other", `,"labels":{"for":"others"}`))
		require.Contains(t, message, "for=provider")
		in.Delete(eventsV1 + "/" + name)
		next(t, w, watch.Deleted, name)
	}
	require.Equal(t, "others", k.Get(eventsV1 + "/hidden").GetLabels()["for"])
}
