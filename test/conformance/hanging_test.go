package conformance

import (
	"fmt"
	"net/http"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHangingWebhook checks that requests which wait for a webhook get a response when they time out,
// and leave no goroutines. The long version includes the server's own timeout of half a minute. The test
// does not run in parallel, because it counts goroutines of the process.
func TestHangingWebhook(t *testing.T) {
	admin := sharedShard.Get(t).Shard(0)
	u := newUser(t, admin, "hanging", "hanging.example.com")
	hook := startConverter(t)
	u.define(twoVersions())
	u.convertBy(hook)
	for i := range 5 {
		u.widget(fmt.Sprintf("w%d", i), `{size: 1}`)
	}
	hook.mode.Store("hangs")
	inParallel(t, 8, func(i int) error {
		path := "/apis/" + u.group + "/v2/widgets?timeout=1s"
		if i%2 == 0 {
			path = "/apis/" + u.group + "/v2/namespaces/default/widgets/w0?timeout=1s"
		}
		if response, body := u.request(path, "application/json"); response.StatusCode != http.StatusGatewayTimeout {
			return fmt.Errorf("%d: %s", response.StatusCode, body)
		}
		return nil
	})
	require.NotZero(t, pendingConversions(t), "no pending conversions were found")
	if !testing.Short() {
		response, body := u.request("/apis/"+u.group+"/v2/namespaces/default/widgets/w0", "application/json")
		require.Equal(t, http.StatusInternalServerError, response.StatusCode)
		require.Contains(t, string(body), "conversion webhook")
	} else {
		hook.release()
	}
	u.eventually("conversions are still pending", func() bool { return pendingConversions(t) == 0 })
}

// pendingConversions returns the number of goroutines that wait for conversion webhooks.
func pendingConversions(t *testing.T) int {
	t.Helper()
	var all strings.Builder
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&all, 2))
	return strings.Count(all.String(), "conversion.(*webhookConverter).Convert(")
}
