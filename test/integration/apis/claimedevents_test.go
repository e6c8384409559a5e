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

// testClaimedEvents: a claim on events is one on those of events.k8s.io, which are the same objects:
// discovery lists both, and the selector holds in both.
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
		for _, view := range []kit.WorkspaceClient{all, in} {
			untilSees(view, "/apis/events.k8s.io/v1/events", "seen")
			untilSees(view, "/api/v1/events", "seen")
			require.Contains(t, fmt.Sprint(view.Get("/apis").Object), "events.k8s.io")
			for _, path := range []string{"/apis/events.k8s.io/v1", "/api/v1"} {
				require.Contains(t, fmt.Sprint(view.Get(path).Object), "name:events")
			}
		}
		for method, body := range map[string]string{http.MethodGet: "", http.MethodDelete: "", http.MethodPut: fmt.Sprintf(written, "hidden", "")} {
			code, says := in.TryDo(method, eventsV1+"/hidden", body)
			require.Equal(t, http.StatusNotFound, code, "%s: %s", method, says)
		}
		w := watchThrough(all, eventsv1.SchemeGroupVersion.WithResource("events"), "")
		name := "made-" + strings.ReplaceAll(claim.String(), ".", "-")
		in.Create(eventsV1, written, name, "")
		require.Equal(t, "provider", next(t, w, watch.Added, name).GetLabels()["for"])
		code, says := in.TryDo(http.MethodPost, eventsV1, fmt.Sprintf(written, "other", `,"labels":{"for":"others"}`))
		require.Equal(t, http.StatusForbidden, code, says)
		require.Contains(t, says, "for=provider")
		in.Do(http.StatusOK, http.MethodDelete, eventsV1+"/"+name, "")
		next(t, w, watch.Deleted, name)
	}
	require.Equal(t, "others", k.Get(eventsV1 + "/hidden").GetLabels()["for"])
}
